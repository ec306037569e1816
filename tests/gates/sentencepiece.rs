//! SentencePiece tokenizers: packed data, rollouts and chats join pieces of text without spaces between them.
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xtrain::model::data::{Content, Tokens};
use xtrain::model::tokenizer::Tokenizer;

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::parsed;
use crate::fixtures::path;

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::load(&path(&format!("tokenizers/{name}"))).unwrap()
}

/// Packs a text of several blocks, and pairs of prompts and completions, and decodes the tokens: nothing is added where
/// pieces meet. Returns the number of compared bytes.
pub(crate) fn over() -> Result<usize, String> {
    let failed = |what: &str, at: usize| format!("gate continuation, seed 0: {what} differs at byte {at}");
    let scratch = Scratch::new("sentencepiece");
    let line = "The line of a long text that is encoded in blocks, 12 at a time: \u{e9}\u{6f22}.\n";
    // blocks have 1 MiB
    let long = line.repeat((1 << 20) / line.len() + 100);
    let pairs = [("2 + 3 = ", "5"), ("Hel", "lo"), ("a\n", " b")];
    let lines =
        pairs.map(|(prompt, completion)| json!({"prompt": prompt, "completion": completion}).to_string());
    let files = [scratch.file("long.txt", &long), scratch.file("pairs.jsonl", &lines.join("\n"))];
    // a document begins with the BOS token, after which the tokenizer adds its space
    let joined: String =
        pairs.iter().map(|(prompt, completion)| format!("<s> {prompt}{completion}</s>")).collect();
    let mut compared = 0;
    let long = format!("<s> {long}</s>");
    let cases = [
        ("llama_spm", &files[0], &long),
        ("llama_spm", &files[1], &joined),
        ("metaspace_spm", &files[1], &joined),
    ];
    for (name, file, want) in cases {
        let own = tokenizer(name);
        let tokens = Tokens::from_files(std::slice::from_ref(file), &own, Content::Any).unwrap();
        let (mut got, mut start) = (String::new(), 0);
        for end in tokens.ends().unwrap() {
            got += &own.decode(&tokens.ids(start..end).unwrap());
            start = end;
        }
        let differs = got.bytes().zip(want.bytes()).position(|(a, b)| a != b);
        if let Some(at) = differs.or((got.len() != want.len()).then_some(got.len().min(want.len()))) {
            return Err(failed(&format!("{name}, {}", file.file_name().unwrap().display()), at));
        }
        compared += want.len();
    }
    Ok(compared)
}

/// The first token of prompts, compared with HF tokenizers. Returns the number of texts.
pub(crate) fn begins() -> Result<usize, String> {
    let mut compared = 0;
    for name in ["llama3_bpe", "llama_spm", "metaspace_spm", "qwen_bpe"] {
        let own = tokenizer(name);
        for case in
            crate::fixtures::json(&format!("tokenizers/{name}/cases.json"))["encode"].as_array().unwrap()
        {
            let (text, want) = (case["text"].as_str().unwrap(), case["ids_with_special"][0].as_u64());
            let got = own.encode_with_bos(text).unwrap().first().map(|&id| u64::from(id));
            if got != want {
                return Err(format!(
                    "gate BOS, seed 0: {name}, {text:?}: the first token is {got:?}, expected {want:?}"
                ));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

#[test]
fn a_prompt_begins_as_with_hf_tokenizers() {
    let compared = begins().unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 80, "{compared}");
}

#[test]
pub(crate) fn prompts_of_every_command_begin_with_the_bos_token_once() {
    let scratch = Scratch::new("bos");
    let dir = &scratch.0;
    model(&scratch, "llama_spm");
    ok(dir, &["export", "base", "hf"]);
    ok(dir, &["export", "base", "m.gguf"]);
    let plain = tokenizer("llama_spm").encode("ROMEO:").unwrap().len();
    let lines = [json!({"prompt": "ROMEO:"}), json!({"prompt": "<s>ROMEO:"}), json!({"prompt_ids": [5, 6]})];
    scratch.file("p.jsonl", &lines.map(|line| line.to_string()).join("\n"));
    for model in ["base", "hf", "m.gguf"] {
        let tokens = |prompt: &str| {
            let args = ["generate", model, "--prompt", prompt, "--max-new", "1", "--json"];
            parsed(&ok(dir, &args))["prompt_ids"].as_array().unwrap().len()
        };
        assert_eq!((tokens("ROMEO:"), tokens("<s>ROMEO:")), (plain + 1, plain + 1), "{model}");
        let output = xtrain(dir, &["rollout", model, "--prompts", "p.jsonl", "--max-new", "1"]);
        let lines: Vec<Value> = text(&output.stdout).lines().map(parsed).collect();
        let ids = |at: usize| lines[at]["prompt_ids"].as_array().unwrap().clone();
        for at in [0, 1] {
            assert_eq!((ids(at).len(), ids(at)[0].as_u64()), (plain + 1, Some(1)), "{model}: {lines:?}");
        }
        assert_eq!(ids(2), [5, 6]);
    }
    // A prompt whose first tokens are removed still begins with the token.
    scratch.file("long.jsonl", &json!({"prompt": "what is the matter? ".repeat(60)}).to_string());
    let args = ["rollout", "base", "--prompts", "long.jsonl", "--max-new", "3", "--truncate-prompt", "left"];
    let output = xtrain(dir, &args);
    let line = parsed(&text(&output.stdout));
    let ids = line["prompt_ids"].as_array().unwrap();
    assert_eq!((ids.len(), ids[0].as_u64()), (253, Some(1)), "{line}");
    assert!(line["prompt"].as_str().unwrap().ends_with("the matter? "), "{line}");
}

#[test]
fn a_run_of_an_earlier_version_resumes_without_the_bos_token() {
    let scratch = Scratch::new("bos-resume");
    let dir = &scratch.0;
    let run = model(&scratch, "llama_spm");
    let data = run.join("data.json");
    let mut record: Value = serde_json::from_slice(&std::fs::read(&data).unwrap()).unwrap();
    assert_eq!(record["bos"], 1);
    let resume =
        |steps: &str| xtrain(dir, &["train", "--resume", "base", "--set", &format!("train.steps={steps}")]);
    let tokens = |errors: &str| {
        let words = errors.split(" training tokens").next().unwrap();
        words.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let new = text(&resume("2").stderr);
    record.as_object_mut().unwrap().remove("bos");
    std::fs::write(&data, record.to_string()).unwrap();
    let old = text(&resume("3").stderr);
    assert_eq!(tokens(&new), tokens(&old) + 1, "{new}\n{old}");
    record["bos"] = json!(2);
    std::fs::write(&data, record.to_string()).unwrap();
    let resume = ["train", "--resume", "base", "--set", "train.steps=4"];
    refused(dir, &resume, 65, &["the token that begins a text", "id 2", "id 1"]);
}

#[test]
fn pieces_of_a_text_are_joined_without_spaces() {
    let compared = over().unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 1 << 20, "{compared}");
}

/// A model directory with the tokenizer `name` and a vocabulary of 704.
pub(crate) fn model(scratch: &Scratch, name: &str) -> PathBuf {
    let run = scratch.0.join("base");
    let text = scratch.file("text.txt", &"ROMEO: what is the matter?\n".repeat(40));
    let (text, tokenizer) = (text.display().to_string(), path(&format!("tokenizers/{name}")));
    let tokenizer = format!("data.tokenizer={}", tokenizer.display());
    let keys = [
        "model.dim=16",
        "model.n_layers=1",
        "model.n_heads=2",
        "model.n_kv_heads=1",
        "model.head_dim=8",
        "model.ffn_dim=16",
        "model.max_positions=256",
        "model.qk_norm=false",
        "model.vocab=704",
        "train.context=32",
        "train.batch=2",
        "train.steps=1",
        &tokenizer,
    ];
    let set: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let args = ["train", "--data", &text, "--run", "base"];
    let output = xtrain(&scratch.0, &[&args[..], &set].concat());
    assert!(output.status.success(), "{output:?}");
    run
}

#[test]
fn a_model_with_a_sentencepiece_tokenizer_is_trained_exported_and_chatted_with() {
    let scratch = Scratch::new("sentencepiece-commands");
    model(&scratch, "llama_spm");
    ok(&scratch.0, &["export", "base", "hf"]);
    ok(&scratch.0, &["export", "base", "m.gguf"]);
    let want = tokenizer("llama_spm").encode("Speak, I pray.\nNow").unwrap();
    for model in ["base", "hf", "m.gguf"] {
        let got = parsed(&ok(&scratch.0, &["tokenize", "--model", model, "--json", "Speak, I pray.\nNow"]));
        assert_eq!(got["ids"], json!(want), "{model}");
    }
    let generated = ["base", "hf", "m.gguf"].map(|model| {
        let args =
            ["generate", model, "--prompt", "ROMEO:", "--max-new", "4", "--temperature", "0", "--json"];
        parsed(&ok(&scratch.0, &args))["completion_ids"].clone()
    });
    assert!(generated[0] == generated[1] && generated[0] == generated[2], "{generated:?}");
    let chat = xtrain(&scratch.0, &["chat", "--model", "hf", "--max-new", "2", "--temperature", "0"]);
    assert!(chat.status.success(), "{chat:?}");
}

/// Replaces the decoder of a directory's tokenizer by one of word pieces.
fn with_word_pieces(dir: &Path) {
    let file = dir.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": false});
    std::fs::write(file, json.to_string()).unwrap();
}

#[test]
fn a_model_with_an_unsupported_tokenizer_runs_on_ids_with_one_warning() {
    let scratch = Scratch::new("unsupported-tokenizer");
    let from = path("models/qwen3_tied");
    std::fs::create_dir(scratch.0.join("m")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), scratch.0.join("m").join(name)).unwrap();
    }
    with_word_pieces(&scratch.0.join("m"));
    let commands: [&[&str]; 4] = [
        &["inspect", "m"],
        &["generate", "m", "--tokens", "1,2", "--max-new", "2", "--json"],
        &["import", "m", "run"],
        &["export", "m", "m.gguf"],
    ];
    for command in commands {
        let output = xtrain(&scratch.0, command);
        let errors = text(&output.stderr);
        assert!(output.status.success() && errors.lines().count() == 1, "{command:?}: {errors}");
        assert!(errors.starts_with("warning: ") && errors.contains("found WordPiece"), "{errors}");
    }
    let output = xtrain(&scratch.0, &["generate", "m", "--prompt", "a"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{errors}");
    assert!(errors.contains("no supported tokenizer") && errors.contains("--tokens"), "{errors}");
    scratch.file("text.txt", &"a text to train on. ".repeat(20));
    let train = ["train", "--init", "m", "--data", "text.txt", "--run", "tuned"];
    refused(&scratch.0, &train, 2, &["found WordPiece", "`data.tokenizer` is not set"]);
    refused(&scratch.0, &["tokenize", "--tokenizer", "m", "a"], 65, &["not supported", "WordPiece"]);
}
