//! Chat templates against HF's answers.
use std::path::Path;

use super::*;
use crate::tokenizer::Tokenizer;

fn cases(name: &str) -> serde_json::Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers").join(name);
    serde_json::from_slice(&std::fs::read(file.join("chat_cases.json")).unwrap()).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers").join(name))
        .unwrap()
}

fn messages(json: &serde_json::Value) -> Vec<Message> {
    Message::list(&Json::from(json)).unwrap()
}

#[track_caller]
fn check_against_hf(name: &str) {
    let (tokenizer, cases) = (tokenizer(name), cases(name));
    let usual = ChatTemplate::of(&tokenizer, None, &Options::default()).unwrap();
    assert_eq!(usual.source(), cases["template"].as_str().unwrap());
    for case in cases["cases"].as_array().unwrap() {
        let variables = case["kwargs"].as_object().unwrap();
        let options = Options {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            variables: variables.iter().map(|(name, value)| (name.clone(), Json::from(value))).collect(),
            ..Options::of(&tokenizer)
        };
        let rendered = usual.render(&messages(&case["messages"]), &options).unwrap();
        assert_eq!(rendered.text, case["text"].as_str().unwrap());
        let ids: Vec<u64> = tokenizer.encode(&rendered.text).unwrap().into_iter().map(u64::from).collect();
        let want: Vec<u64> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        assert_eq!(ids, want);
    }
    for case in cases["errors"].as_array().unwrap() {
        let error = usual.render(&messages(&case["messages"]), &Options::of(&tokenizer)).unwrap_err();
        let want = case["must_fail_with"].as_str().unwrap().trim_start_matches("TemplateError: ");
        assert_eq!(error, ChatError::Raised { message: want.into() });
    }
}

#[test]
fn a_qwen_template_renders_as_hf_does() {
    check_against_hf("qwen_bpe");
}

#[test]
fn a_llama3_template_renders_as_hf_does() {
    check_against_hf("llama3_bpe");
}
