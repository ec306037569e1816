//! `xtrain train` with files for validation.
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::{done, parsed, tiny_run};

const TRAIN: &str = "the cat sat on the mat and the dog sat too\n";
const VALIDATION: &str = "a cow ran to the barn\nand a goat ran after it\n";

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.file("t.txt", &TRAIN.repeat(20));
    scratch.file("v.txt", VALIDATION);
    scratch
}

/// The flags of a run of three steps that evaluates every step.
fn run<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let steps = ["train.steps=3", "train.eval_every=1"];
    [&tiny_run(name, "t.txt", &steps)[..], more].concat()
}

/// The values of `key` in the metrics of a run.
fn values(dir: &Path, run: &str, key: &str) -> Vec<Value> {
    let lines = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
    lines.lines().map(|line| parsed(line)[key].clone()).collect()
}

/// The loss that `xtrain eval` computes on a file.
fn loss(dir: &Path, run: &str, file: &str) -> Value {
    parsed(&done(dir, &["eval", run, "--data", file, "--json"]))["data"]["loss"].clone()
}

#[test]
pub(crate) fn the_validation_loss_is_that_of_the_file_and_all_data_is_trained() {
    let scratch = scratch("validation");
    let dir = &scratch.0;
    done(dir, &run("r", &["--val-data", "v.txt"]));
    done(dir, &run("all", &["--set", "data.val_fraction=0"]));
    done(dir, &["prepare", "v.txt", "--out", "v.tok"]);
    done(dir, &run("packed", &["--set", "data.val_files=v.tok"]));
    let losses = values(dir, "r", "val_loss");
    assert_eq!(losses[2], loss(dir, "r", "v.txt"), "val_loss is not the loss of v.txt");
    assert_eq!(values(dir, "packed", "val_loss"), losses);
    for run in ["r", "packed"] {
        assert_eq!(values(dir, run, "loss"), values(dir, "all", "loss"), "{run}");
    }
}

#[test]
fn several_files_are_the_validation_data() {
    let scratch = scratch("validation-two");
    let dir = &scratch.0;
    scratch.file("w.txt", "one two three four five six\n");
    done(dir, &run("one", &["--val-data", "v.txt"]));
    let shown = xtrain(dir, &run("two", &["--val-data", "v.txt", "w.txt"]));
    assert!(text(&shown.stderr).contains(", 76 validation tokens"), "{shown:?}");
    done(dir, &["prepare", "v.txt", "w.txt", "--out", "vw.tok"]);
    done(dir, &run("packed", &["--set", "data.val_files=vw.tok"]));
    let losses = values(dir, "two", "val_loss");
    assert_eq!(losses, values(dir, "packed", "val_loss"));
    assert_eq!(losses[2], loss(dir, "two", "vw.tok"));
    assert_ne!(losses, values(dir, "one", "val_loss"), "the second file changes nothing");
    let record = parsed(&fs::read_to_string(dir.join("two/data.json")).unwrap());
    assert_eq!(record["val_files"].as_array().map(Vec::len), Some(2), "{record}");
}

#[test]
fn a_run_is_evaluated_in_its_dtype() {
    let scratch = scratch("validation-dtype");
    let dir = &scratch.0;
    done(dir, &run("half", &["--val-data", "v.txt", "--set", "train.dtype=bf16"]));
    let want = &values(dir, "half", "val_loss")[2];
    for model in ["half", "half/checkpoints/step_000003"] {
        assert_eq!(loss(dir, model, "v.txt"), *want, "{model}");
    }
    let in_f32 = parsed(&done(dir, &["eval", "half", "--data", "v.txt", "--json", "--dtype", "f32"]));
    assert_ne!(in_f32["data"]["loss"], *want, "bf16 has the loss of f32");
}

#[test]
fn a_step_without_a_target_has_no_loss() {
    let scratch = scratch("no-target");
    let line = json!({"prompt": "a".repeat(20), "completion": "b"});
    scratch.file("p.jsonl", &format!("{line}\n").repeat(20));
    done(&scratch.0, &["prepare", "p.jsonl", "--out", "p.tok"]);
    let keys = ["train.steps=12", "train.batch=1", "data.val_fraction=0", "data.packing=stream"];
    let shown = xtrain(&scratch.0, &tiny_run("r", "p.tok", &keys));
    assert!(shown.status.success() && !text(&shown.stderr).contains("NaN"), "{shown:?}");
    let (losses, tokens) = (values(&scratch.0, "r", "loss"), values(&scratch.0, "r", "num_tokens"));
    let mut before = 0;
    for (loss, tokens) in losses.iter().zip(&tokens) {
        let tokens = tokens.as_u64().unwrap();
        assert_eq!(loss.is_null(), tokens == before, "{losses:?}");
        assert!(loss.is_null() || loss.as_f64() > Some(1.0), "{losses:?}");
        before = tokens;
    }
    assert!(before > 0 && losses.iter().any(Value::is_null), "{losses:?}");
    let keys = ["train.batch=1", "data.val_fraction=0", "data.packing=stream"];
    // a learning rate test has no run
    let flags = &tiny_run("", "p.tok", &keys)[3..];
    let found = xtrain(&scratch.0, &[&["train", "--lr-find=12"][..], flags].concat());
    assert!(text(&found.stderr).contains("12/12"), "{found:?}");
}

#[test]
fn a_run_that_never_evaluates_has_no_validation_loss() {
    let scratch = scratch("validation-never");
    done(&scratch.0, &run("r", &["--val-data", "v.txt", "--set", "train.eval_every=0"]));
    assert_eq!(values(&scratch.0, "r", "val_loss"), [Value::Null, Value::Null, Value::Null]);
}

#[test]
fn conversations_of_a_file_are_the_validation_data_of_a_fine_tuned_model() {
    let scratch = scratch("validation-sft");
    let dir = &scratch.0;
    let row = |prompt: &str, answer: &str| format!("{}\n", json!({"prompt": prompt, "completion": answer}));
    scratch.file("t.jsonl", &row("say", "ok").repeat(8));
    scratch.file("v.jsonl", &[row("ask", "no"), row("ask", "never")].concat());
    let keys = ["train.steps=2", "train.eval_every=1", "train.context=32", "train.keep_best=true"];
    let flags =
        [&tiny_run("r", "t.jsonl", &keys)[..], &["--objective", "sft", "--val-data", "v.jsonl"]].concat();
    done(dir, &flags);
    assert_eq!(values(dir, "r", "val_loss")[1], loss(dir, "r", "v.jsonl"));
    let with = |run: &'static str, file: &'static str, more: &[&'static str]| {
        let keys = [&keys[..], more].concat();
        [&tiny_run(run, "t.jsonl", &keys)[..], &["--objective", "sft", "--val-data", file]].concat()
    };
    refused(dir, &with("s", "v.txt", &[]), 65, &["v.txt", "found text"]);
    let long = format!("{{\"prompt\": \"{}\", \"completion\": \"a\"}}\n", "a".repeat(40));
    scratch.file("long.jsonl", &long);
    refused(dir, &with("s", "long.jsonl", &[]), 65, &["long.jsonl", "in the first 32 tokens", "found none"]);
    assert!(!dir.join("s").exists());
    let shown = xtrain(dir, &with("sampled", "v.jsonl", &["train.sample_every=2"]));
    assert!(text(&shown.stderr).contains("sample at step 2:\nask"), "{shown:?}");
}

#[test]
fn packed_training_data_and_conversations_for_validation_record_the_chat_template() {
    let scratch = scratch("validation-template");
    let dir = &scratch.0;
    let turns = |answer: &str| {
        let turns = [("user", "say"), ("assistant", answer)]
            .map(|(role, content)| json!({"role": role, "content": content}));
        format!("{}\n", json!({ "messages": turns }))
    };
    scratch.file("t.jsonl", &turns("ok").repeat(8));
    scratch.file("v.jsonl", &turns("no"));
    done(dir, &["prepare", "t.jsonl", "--out", "t.tok"]);
    let flags = ["--objective", "sft", "--val-data", "v.jsonl", "--set", "train.context=64"];
    done(dir, &[&tiny_run("r", "t.tok", &["train.steps=1"])[..], &flags].concat());
    let record = fs::read_to_string(dir.join("r/data.json")).unwrap();
    assert!(record.contains("\"chat_template\": \"sha256:") && record.contains("crc32c:"), "{record}");
}

#[test]
fn files_replace_the_fraction_of_an_earlier_layer() {
    let scratch = scratch("validation-keys");
    let dir = &scratch.0;
    scratch.file("c.toml", "[data]\nval_fraction = 0.25\n");
    done(dir, &run("r", &["-c", "c.toml", "--val-data", "v.txt"]));
    let config = fs::read_to_string(dir.join("r/config.toml")).unwrap();
    assert!(config.contains("# computed: val_fraction = 0.0\n") && config.contains("/v.txt\"]"), "{config}");
    done(dir, &run("from", &["-c", "c.toml", "-c", "r/config.toml"]));
    assert_eq!(values(dir, "from", "val_loss"), values(dir, "r", "val_loss"));
    let both = ["--val-data", "v.txt", "--set", "data.val_fraction=0.25"];
    refused(dir, &run("s", &both), 2, &["`data.val_fraction` = 0.25", "expected 0 with data.val_files"]);
    scratch.file("no.txt", "");
    scratch.file("blank.jsonl", "{\"text\": \"\"}\n");
    refused(dir, &run("s", &["--val-data", "none.txt"]), 66, &["none.txt"]);
    refused(dir, &run("s", &["--val-data", "no.txt"]), 65, &["no.txt"]);
    refused(
        dir,
        &run("s", &["--val-data", "blank.jsonl"]),
        65,
        &["blank.jsonl", "at least 2 tokens", "found 0"],
    );
    assert!(!dir.join("s").exists());
}

#[test]
fn a_resume_accepts_only_the_validation_data_that_the_run_started_with() {
    let scratch = scratch("validation-resume");
    let dir = &scratch.0;
    done(dir, &run("r", &["--val-data", "v.txt", "--set", "train.decay=1", "--set", "train.warmup=0"]));
    let record = fs::read_to_string(dir.join("r/data.json")).unwrap();
    assert!(record.contains("\"val_files\"") && record.contains("/v.txt\""), "{record}");
    let resume = ["train", "--resume", "r", "--set", "train.steps=4"];
    scratch.file("v.txt", &VALIDATION.replace("cow", "ewe"));
    refused(dir, &resume, 65, &["v.txt", "expected sha256:"]);
    fs::remove_file(dir.join("v.txt")).unwrap();
    refused(dir, &resume, 66, &["/v.txt", "--val-data FILE"]);
    scratch.file("moved.txt", VALIDATION);
    let set = [&resume[..], &["--set", "data.val_files=moved.txt"]].concat();
    refused(dir, &set, 2, &["cannot change data.val_files"]);
    let two = [&resume[..], &["--val-data", "moved.txt", "moved.txt"]].concat();
    refused(dir, &two, 65, &["data.val_files", "moved.txt, "]);
    done(dir, &[&resume[..], &["--val-data", "moved.txt"]].concat());
    assert_eq!(values(dir, "r", "val_loss")[3], loss(dir, "r", "moved.txt"));

    // a run that was moved with its data
    let other = Scratch::new("validation-moved");
    fs::rename(dir.join("r"), other.0.join("r")).unwrap();
    fs::rename(dir.join("moved.txt"), other.0.join("r/moved.txt")).unwrap();
    fs::rename(dir.join("t.txt"), other.0.join("r/t.txt")).unwrap();
    done(&other.0, &["train", "--resume", "r", "--set", "train.steps=5"]);
    assert_eq!(values(&other.0, "r", "val_loss")[4], loss(&other.0, "r", "r/moved.txt"));
}

#[test]
fn a_missing_file_is_found_before_a_run_that_writes_its_own_training_data() {
    let scratch = scratch("validation-missing");
    for command in [&["quickstart"][..], &["grpo", "--task", "sums"]] {
        let flags = ["--run", "r", "--set", "data.val_files=none.txt"];
        refused(&scratch.0, &[command, &flags].concat(), 66, &["none.txt: cannot open"]);
        assert!(!scratch.0.join("r").exists(), "{command:?}");
    }
}

#[test]
fn a_resume_does_not_add_validation_files() {
    let scratch = scratch("validation-added");
    let dir = &scratch.0;
    done(dir, &run("r", &[]));
    let resume = ["train", "--resume", "r", "--set", "train.steps=4", "--val-data", "v.txt"];
    refused(dir, &resume, 2, &["--val-data: r has no data.val_files", "xtrain eval r --data FILE"]);
}
