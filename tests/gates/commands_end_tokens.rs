//! The end-of-text tokens of a model, wherever its files list them, when it is trained and evaluated.
use std::fs;
use std::path::Path;

use serde_json::Value;
use xtrain::model::data::TokenFile;

use crate::cli::Scratch;
use crate::commands::{done, parsed};
use crate::fixtures::path;

/// Ends turns with a token that the model lists as an end of text, and its tokenizer does not.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end_of_text|>{% endfor %}";

/// The same model with its list of end tokens in `generation_config.json`, in `config.json` alone, and in a GGUF file.
const MODELS: [&str; 3] = ["generation", "config", "m.gguf"];

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    for dir in &MODELS[..2] {
        fs::create_dir(scratch.0.join(dir)).unwrap();
        for file in fs::read_dir(path("models/llama3_rope")).unwrap().flatten() {
            fs::copy(file.path(), scratch.0.join(dir).join(file.file_name())).unwrap();
        }
        scratch.file(&format!("{dir}/chat_template.jinja"), TEMPLATE);
    }
    fs::remove_file(scratch.0.join("config/generation_config.json")).unwrap();
    done(&scratch.0, &["import", "generation", "imported"]);
    done(&scratch.0, &["export", "imported", "m.gguf"]);
    let row = |say: &str, answer: &str| {
        let turns = [("user", say), ("assistant", answer)];
        let turns = turns.map(|(role, content)| serde_json::json!({"role": role, "content": content}));
        format!("{}\n", serde_json::json!({"messages": turns}))
    };
    scratch.file("t.jsonl", &row("one", "two").repeat(6));
    scratch.file("v.jsonl", &[row("three", "four"), row("five", "six")].concat());
    scratch.file("t.txt", &"some text to train on, again and again\n".repeat(20));
    scratch
}

#[test]
pub(crate) fn a_model_gives_the_same_training_data_wherever_its_end_tokens_are_listed() {
    let scratch = scratch("end-tokens");
    let tokens = |model: &str| {
        done(&scratch.0, &["prepare", "t.jsonl", "--tokenizer", model, "--out", "t.tok", "--force"]);
        let file = TokenFile::open(&scratch.0.join("t.tok")).unwrap();
        let all = 0..file.count();
        (file.ids(all.clone()).unwrap(), file.target_mask(all).unwrap())
    };
    let want = tokens(MODELS[0]);
    assert_eq!(want.0.iter().filter(|&&id| id == 1).count(), 12, "two turns of each conversation end");
    assert!(!want.0.contains(&4), "an end token after the end of the turn: {:?}", want.0);
    for model in &MODELS[1..] {
        assert_eq!(tokens(model), want, "{model}");
    }
}

#[test]
fn a_run_with_the_end_tokens_of_its_initial_model_resumes_and_is_evaluated_with_them() {
    let scratch = scratch("end-tokens-run");
    let dir: &Path = &scratch.0;
    let keys =
        ["train.steps=1", "train.context=32", "train.batch=2", "train.sample_every=0", "train.eval_every=1"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    for model in MODELS {
        for (objective, data, more) in
            [("sft", "t.jsonl", "data.val_files=v.jsonl"), ("lm", "t.txt", "train.eps=1e-8")]
        {
            let run = format!("{model}-{objective}");
            let args = ["train", "--init", model, "--data", data, "--objective", objective, "--run", &run];
            done(dir, &[&args[..], &sets, &["--set", more]].concat());
            done(dir, &["train", "--resume", &run, "--set", "train.steps=2"]);
        }
        let run = format!("{model}-sft");
        let lines = fs::read_to_string(dir.join(&run).join("metrics.jsonl")).unwrap();
        let want = &parsed(lines.lines().last().unwrap())["val_loss"];
        let found: Value = parsed(&done(dir, &["eval", &run, "--data", "v.jsonl", "--json"]));
        assert_eq!(found["data"]["loss"], *want, "{run}");
    }
}
