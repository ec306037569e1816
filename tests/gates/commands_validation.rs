//! `xtrain train` with files for validation.
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::{Scratch, refused};
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
fn conversations_of_a_file_are_the_validation_data_of_a_fine_tuned_model() {
    let scratch = scratch("validation-sft");
    let dir = &scratch.0;
    let row = |answer: &str| format!("{{\"prompt\": \"say\", \"completion\": \"{answer}\"}}\n");
    scratch.file("t.jsonl", &row("ok").repeat(8));
    scratch.file("v.jsonl", &[row("no"), row("never")].concat());
    let keys = ["train.steps=2", "train.eval_every=1", "train.context=32", "train.keep_best=true"];
    let flags =
        [&tiny_run("r", "t.jsonl", &keys)[..], &["--objective", "sft", "--val-data", "v.jsonl"]].concat();
    done(dir, &flags);
    assert_eq!(values(dir, "r", "val_loss")[1], loss(dir, "r", "v.jsonl"));
    let text =
        [&tiny_run("s", "t.jsonl", &keys)[..], &["--objective", "sft", "--val-data", "v.txt"]].concat();
    refused(dir, &text, 65, &["v.txt", "found text"]);
}

#[test]
fn the_flag_replaces_the_fraction_of_a_file_and_contradicts_that_of_set() {
    let scratch = scratch("validation-keys");
    let dir = &scratch.0;
    scratch.file("c.toml", "[data]\nval_fraction = 0.25\n");
    done(dir, &run("r", &["-c", "c.toml", "--val-data", "v.txt"]));
    let config = fs::read_to_string(dir.join("r/config.toml")).unwrap();
    assert!(config.contains("val_fraction = 0.0\n") && config.contains("/v.txt\"]"), "{config}");
    let both = ["--val-data", "v.txt", "--set", "data.val_fraction=0.25"];
    refused(dir, &run("s", &both), 2, &["`data.val_fraction` = 0.25", "expected 0 with data.val_files"]);
    scratch.file("one.txt", "a");
    scratch.file("no.txt", "");
    refused(dir, &run("s", &["--val-data", "none.txt"]), 66, &["none.txt"]);
    refused(dir, &run("s", &["--val-data", "no.txt"]), 65, &["no.txt"]);
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
}
