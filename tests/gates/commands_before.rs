//! What is wrong with a run is found before its first step, and leaves no run directory.
use std::fs;

use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::{done, parsed, tiny_run};
use crate::fixtures::path;

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.file("t.txt", &"the cat sat on the mat and the dog sat too\n".repeat(20));
    scratch
}

#[test]
fn settings_that_cannot_work_are_found_before_the_first_step() {
    let scratch = scratch("before");
    let long = format!("sample.prompt={}", "x".repeat(300));
    for (sets, parts) in [
        (&["model.vocab=100"][..], &["`model.vocab` = 100", "at least 257", "tokenizer bytes"][..]),
        (&["train.sample_every=1", "sample.prompt="], &["`sample.prompt`", "at least 1 token", "found none"]),
        (&["train.sample_every=1", &long], &["`sample.prompt`", "at most 7 tokens", "found 300"]),
        (
            &["train.keep_best=true", "train.eval_every=9", "train.steps=3"],
            &["`train.eval_every` = 9", "1 to 3 (train.steps)"],
        ),
        (&["train.keep_best=true", "train.eval_every=0"], &["`train.eval_every` = 0", "train.keep_best"]),
        (
            &["train.patience=1", "train.eval_every=9", "train.steps=3"],
            &["`train.eval_every` = 9", "train.patience"],
        ),
        (&["train.patience=1", "train.eval_every=0"], &["`train.patience` = 1", "train.eval_every"]),
        (
            &["train.eval_tokens=8", "data.val_fraction=0"],
            &["`train.eval_tokens` = 8", "0 without data.val_fraction"],
        ),
        (&["train.patience=1", "data.val_fraction=0"], &["`data.val_fraction` = 0", "train.patience"]),
    ] {
        refused(&scratch.0, &tiny_run("r", "t.txt", sets), 2, parts);
        assert!(!scratch.0.join("r").exists(), "{sets:?}");
    }
    scratch.file("v.jsonl", "{\"prompt\": \"what is it?\", \"completion\": \"it is\"}\n");
    let run = tiny_run("r", "t.txt", &["train.eval_tokens=3"]);
    refused(
        &scratch.0,
        &[&run[..], &["--val-data", "v.jsonl"]].concat(),
        65,
        &["v.jsonl", "a target token in the first 3 tokens (train.eval_tokens)"],
    );
    assert!(!scratch.0.join("r").exists());
    let run = tiny_run("v", "t.txt", &["train.steps=1"]);
    done(&scratch.0, &[&run[..], &["--val-data", "v.jsonl"]].concat());
    let resume = ["train", "--resume", "v", "--set", "train.steps=2", "--set", "train.eval_tokens=3"];
    refused(&scratch.0, &resume, 65, &["v.jsonl", "in the first 3 tokens (train.eval_tokens)"]);
    let word = format!("data.tokenizer={}", word_tokenizer(&scratch).display());
    let sets = [&word, "train.sample_every=1", "sample.prompt=b"];
    refused(
        &scratch.0,
        &tiny_run("r", "t.txt", &sets),
        2,
        &["`sample.prompt`", "expected text of the tokenizer"],
    );
    assert!(!scratch.0.join("r").exists());
    done(&scratch.0, &tiny_run("r", "t.txt", &["model.vocab=257", "train.steps=1"]));
    let config = fs::read(scratch.0.join("r/config.toml")).unwrap();
    let resume =
        ["train", "--resume", "r", "--set", "train.steps=2", "--set", "train.sample_every=1", "--set"];
    refused(
        &scratch.0,
        &[&resume[..], &["sample.prompt="]].concat(),
        2,
        &["`sample.prompt`", "at least 1 token"],
    );
    assert_eq!(fs::read(scratch.0.join("r/config.toml")).unwrap(), config);
    done(&scratch.0, &[&resume[..], &["sample.prompt=a"]].concat());
}

/// A tokenizer that can encode the word `a` only.
fn word_tokenizer(scratch: &Scratch) -> std::path::PathBuf {
    scratch.file(
        "word/tokenizer.json",
        r#"{"version": "1.0", "added_tokens": [{"id": 1, "content": "<|endoftext|>", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}], "decoder":
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}"#,
    )
}

#[test]
fn settings_without_effect_are_reported() {
    let scratch = scratch("no-effect");
    let schedule = ["train.schedule=wsd", "train.warmup=2", "train.decay=3"];
    let sets = ["train.steps=4", "train.eval_every=2", "train.patience=2", "model.vocab=600"];
    let sets = [&sets[..], &schedule].concat();
    let output = xtrain(&scratch.0, &tiny_run("r", "t.txt", &sets));
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for part in [
        "warning: `train.patience` = 2 has no effect: expected at least 3 evaluations before the last step, found 1",
        "warning: the decay is cut to 2 steps: `train.decay` = 3, but `train.warmup` = 2 leaves 2 of `train.steps` = 4",
        "warning: `model.vocab` = 600: bytes has 257 tokens; the other 343 rows are not trained",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    let sets = ["--set", "train.steps=8", "--set", "train.warmup=7", "--set", "train.decay=5"];
    let output = xtrain(&scratch.0, &[&["train", "--resume", "r", "--threads", "1"][..], &sets].concat());
    let errors = text(&output.stderr);
    assert!(errors.contains("warning: the decay is cut to 1 step: `train.decay` = 5"), "{errors}");
}

#[test]
fn a_packed_token_file_names_the_tokenizer_of_its_run() {
    let scratch = scratch("packed");
    let dir = &scratch.0;
    fs::create_dir(dir.join("tok")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(path("tokenizers/qwen_bpe").join(name), dir.join("tok").join(name)).unwrap();
    }
    done(dir, &["prepare", "t.txt", "--tokenizer", "tok", "--out", "x.tok"]);
    done(dir, &["prepare", "t.txt", "--out", "b.tok"]);
    for (run, data, tokenizer) in [("x", "x.tok", "/tok\""), ("b", "b.tok", "\"bytes\"")] {
        done(dir, &tiny_run(run, data, &["train.steps=1"]));
        let config = fs::read_to_string(dir.join(run).join("config.toml")).unwrap();
        let line = config.lines().find(|line| line.starts_with("tokenizer = ")).unwrap();
        assert!(line.ends_with(tokenizer), "{line}");
        let ids = parsed(&done(dir, &["tokenize", "--tokenizer", run, "--json", "the cat"]))["ids"].clone();
        let own = if run == "b" { "bytes" } else { "tok" };
        assert_eq!(ids, parsed(&done(dir, &["tokenize", "--tokenizer", own, "--json", "the cat"]))["ids"]);
    }
    let different = ["x.tok: packed with a different tokenizer (", "/tok)", "digest"];
    refused(dir, &tiny_run("o", "x.tok", &["data.tokenizer=bytes"]), 65, &different);
    refused(dir, &["eval", "b", "--data", "x.tok"], 65, &different);
    fs::rename(dir.join("tok"), dir.join("moved")).unwrap();
    let gone = ["x.tok: packed with the tokenizer ", "/tok, which does not exist", "data.tokenizer=FILE"];
    refused(dir, &tiny_run("o", "x.tok", &[]), 66, &gone);
    assert!(!dir.join("o").exists());
    done(dir, &tiny_run("o", "x.tok", &["train.steps=1", "data.tokenizer=moved"]));
}
