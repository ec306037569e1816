//! The BOS token of a prompt, and the tokens that end a completion, in evaluations, samples and GRPO.
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::{Scratch, text, xtrain};
use crate::commands::{done, parsed};
use crate::fixtures::path;

const PROMPT: &str = "12+34=";

/// Trains without a change of the weights, and samples from [`PROMPT`].
const KEYS: [&str; 12] = [
    "train.steps=1",
    "train.learning_rate=1e-30",
    "train.min_learning_rate=0",
    "train.warmup=0",
    "train.context=32",
    "train.batch=2",
    "train.eval_every=0",
    "train.sample_every=1",
    "sample.count=1",
    "sample.temperature=0",
    "sample.max_new=10",
    "sample.prompt='12+34='",
];

/// Flags of a single step of GRPO without evaluation.
const GRPO: [&str; 8] = [
    "grpo.steps=1",
    "grpo.eval_every=0",
    "grpo.prompts_per_step=2",
    "grpo.num_generations=4",
    "grpo.max_completion_length=6",
    "grpo.learning_rate=1e-6",
    "train.context=64",
    "grpo.show_every=0",
];

fn sets<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", *key]).collect()
}

/// A copy of a committed model.
fn copy(scratch: &Scratch, name: &str) {
    fs::create_dir(scratch.0.join("m")).unwrap();
    for file in fs::read_dir(path(&format!("models/{name}"))).unwrap().flatten() {
        fs::copy(file.path(), scratch.0.join("m").join(file.file_name())).unwrap();
    }
    scratch.file("t.txt", &"some text to train on, again and again\n".repeat(20));
    scratch.file("task.jsonl", &format!("{}\n", json!({"prompt": PROMPT, "answer": "no such answer"})));
}

/// The greedy completion of [`PROMPT`] in an evaluation, and in a sample of a run.
fn completions(dir: &Path) -> [String; 2] {
    let found = parsed(&done(dir, &["eval", "m", "--task", "task.jsonl", "--json"]));
    let evaluated = found["task"]["wrong"][0]["completion"].as_str().unwrap_or_else(|| panic!("{found}"));
    let args = ["train", "--init", "m", "--data", "t.txt", "--run", "r"];
    done(dir, &[&args[..], &sets(&KEYS)].concat());
    let sample = parsed(&fs::read_to_string(dir.join("r/samples.jsonl")).unwrap());
    let sampled = sample["samples"][0].as_str().unwrap().strip_prefix(PROMPT).unwrap();
    [evaluated.to_string(), sampled.to_string()]
}

/// The completions of a step of GRPO.
fn rows(dir: &Path, prompts: &[&str]) -> Vec<Value> {
    let args = ["grpo", "--init", "m", "--run", "g"];
    let output = xtrain(dir, &[&args[..], prompts, &sets(&GRPO)].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = fs::read_to_string(dir.join("g/rollouts/step_000001.jsonl")).unwrap();
    lines.lines().map(parsed).collect()
}

#[test]
fn prompts_of_evaluations_samples_and_tasks_begin_with_the_bos_token() {
    let scratch = Scratch::new("prompt-bos");
    copy(&scratch, "llama3_rope");
    let args = ["generate", "m", "--prompt", PROMPT, "--temperature", "0", "--json", "--max-new"];
    let want = |max_new: &str| parsed(&done(&scratch.0, &[&args[..], &[max_new]].concat()));
    let without = ["generate", "m", "--temperature", "0", "--json", "--max-new", "10", "--tokens"];
    let long = want("10");
    let ids: Vec<String> = long["prompt_ids"].as_array().unwrap()[1..].iter().map(Value::to_string).collect();
    let without = parsed(&done(&scratch.0, &[&without[..], &[&ids.join(",")]].concat()));
    assert_ne!(long["completion_ids"], without["completion_ids"], "the token changes nothing");
    let [evaluated, sampled] = completions(&scratch.0);
    assert_eq!(json!(sampled), long["completion"], "the sample of a run");
    let ids = long["completion_ids"].as_array().unwrap().len();
    assert!(ids > 4 && sampled.starts_with(&evaluated[..4]), "the evaluation: {evaluated:?}, {sampled:?}");
    for row in rows(&scratch.0, &["--task", "sums"]) {
        assert_eq!(row["prompt_ids"][0], 0, "{row}");
    }
}

#[test]
fn every_end_token_of_a_model_ends_completions_of_evaluations_samples_and_grpo() {
    let scratch = Scratch::new("prompt-ends");
    copy(&scratch, "qwen3_tied");
    let ends: Vec<u64> = [2, 0, 1].into_iter().chain(3..256).collect();
    scratch.file("m/generation_config.json", &json!({ "eos_token_id": ends }).to_string());
    assert_eq!(completions(&scratch.0), ["", ""]);
    scratch.file(
        "p.jsonl",
        &[json!({"prompt": "1+1="}), json!({"prompt": "2+2="})].map(|p| p.to_string()).join("\n"),
    );
    scratch.file(
        "reward.sh",
        "while IFS= read -r line; do id=${line#*:}; echo \"{\\\"id\\\":${id%%,*},\\\"reward\\\":1}\"; done\n",
    );
    let rows = rows(&scratch.0, &["--prompts", "p.jsonl", "--reward", "sh reward.sh"]);
    let ends_otherwise = |row: &Value| {
        row["finish_reason"] == "eos" && row["completion_ids"].as_array().unwrap().last().unwrap() != 2
    };
    assert!(rows.iter().any(ends_otherwise), "{rows:?}");
}
