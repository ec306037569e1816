//! Damaged tokenizers and chat templates: each is refused with an error that names the file and the field.
use std::path::Path;

use serde_json::{Value, json};
use xtrain::model::chat::{ChatTemplate, Message, Options};
use xtrain::model::store;

use crate::cli::Scratch;
use crate::fixtures::path;

/// The undamaged tokenizer. Its vocabulary contains its added tokens.
const BASE: &str = "corrupt/t_base_ok/tokenizer.json";

/// The bytes of `tokenizer.json` with a change.
fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(&base()).unwrap();
    change(&mut json);
    json.to_string().into_bytes()
}

fn base() -> Vec<u8> {
    std::fs::read(path(BASE)).unwrap()
}

/// Opens the tokenizer of `dir` and renders a message with its chat template. Returns the error.
fn used(dir: &Path) -> Result<(), String> {
    let tokenizer = store::tokenizer_of(dir).map_err(|e| e.to_string())?;
    let ids = tokenizer.encode("quiz a b").map_err(|e| e.to_string())?;
    assert_eq!(tokenizer.decode(&ids), "quiz a b");
    let options = Options::of(&tokenizer);
    let template = ChatTemplate::of(&tokenizer, None, &options).map_err(|e| e.to_string())?;
    template.render(&[Message::new("user", "a")], &options).map(drop).map_err(|e| e.to_string())
}

/// Each case: its name in the fixtures, the damaged file, its content, and what the error says about the field.
fn cases() -> Vec<(&'static str, &'static str, Vec<u8>, &'static [&'static str])> {
    let file = "tokenizer.json";
    let template = |text: &str| json!({ "chat_template": text }).to_string().into_bytes();
    let half = base().len() / 2;
    let name = base().windows(7).position(|w| w == b"content").unwrap() + 4;
    vec![
        ("t_truncated", file, base()[..half].to_vec(), &["JSON that ends inside "]),
        ("t_not_utf8", file, [&base()[..name], b"\xff\xfe\xfd", &base()[name..]].concat(), &["UTF-8"]),
        (
            "t_unknown_model",
            file,
            changed(|json| json["model"]["type"] = json!("Morse")),
            &["model", "Morse"],
        ),
        (
            "t_merge_not_in_vocab",
            file,
            changed(|json| json["model"]["merges"].as_array_mut().unwrap().push(json!(["zz", "qq"]))),
            &["zz", "vocabulary"],
        ),
        (
            "t_duplicate_ids",
            file,
            changed(|json| json["model"]["vocab"]["a"] = json!(71)),
            &["one token for each id", "id 71"],
        ),
        (
            "t_id_huge",
            file,
            changed(|json| json["model"]["vocab"]["a"] = json!(u32::MAX)),
            &["ids below 524288", "id 4294967295 for \"a\""],
        ),
        (
            "t_id_at_the_limit",
            file,
            changed(|json| json["model"]["vocab"]["a"] = json!(524_288)),
            &["ids below 524288", "id 524288 for \"a\""],
        ),
        (
            "t_bad_regex",
            file,
            changed(|json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("([a-z")),
            &["a pattern of pre_tokenizer", "Invalid character class"],
        ),
        (
            "t_unknown_pretok",
            file,
            changed(|json| json["pre_tokenizer"] = json!({ "type": "Zigzag" })),
            &["pre_tokenizer", "Zigzag"],
        ),
        (
            "t_vocab_missing_bytes",
            file,
            changed(|json| {
                let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
                ["q", "z", "\u{120}"].into_iter().for_each(|token| drop(vocabulary.remove(token).unwrap()));
            }),
            &["\u{120}", "vocabulary"],
        ),
        ("t_empty_object", file, b"{}".to_vec(), &["an object without the field `model`"]),
        (
            "ct_syntax_error",
            "tokenizer_config.json",
            template("{% for m in messages %}{{ m['content'] }"),
            &["chat template: syntax error", "line 1"],
        ),
        (
            "ct_undefined_call",
            "tokenizer_config.json",
            template("{{ os_system('ls') }}"),
            &["chat template", "os_system"],
        ),
    ]
}

#[test]
pub(crate) fn every_damaged_tokenizer_is_refused_with_the_file_and_the_field() {
    let scratch = Scratch::new("corrupt-tokenizers");
    let dir = scratch.0.join("t_base_ok");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("tokenizer.json"), base()).unwrap();
    assert_eq!(used(&dir), Ok(()));
    let mut wrong = Vec::new();
    let cases = cases();
    for (name, file, bytes, expected) in &cases {
        let dir = scratch.0.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("tokenizer.json"), base()).unwrap();
        std::fs::write(dir.join(file), bytes).unwrap();
        let text = used(&dir).expect_err(name);
        let place = format!("{name}/{file}: ");
        let missing: Vec<_> = expected.iter().filter(|part| !text.contains(**part)).collect();
        if !text.contains(&place) || !missing.is_empty() || text.lines().count() != 1 {
            wrong.push(format!("{name}: {text:?} lacks the file or {missing:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(cases.len(), 13);
}
