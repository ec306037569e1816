//! Training runs as processes: resuming, seeds, held-out data.
use std::fs;
use std::path::Path;

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::{done, tiny_run};

/// The flags of a very short run that saves every step.
fn tiny<'a>(run: &'a str, data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    tiny_run(run, data, &[&["train.save_every=1"], more].concat())
}

fn resume<'a>(run: &'a str, steps: &'a str) -> [&'a str; 5] {
    ["train", "--resume", run, "--set", steps]
}

/// Runs a command that must fail with `code`; its standard error contains `parts`.
#[track_caller]
fn fails(dir: &Path, args: &[&str], code: i32, parts: &[&str]) {
    let output = xtrain(dir, args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{args:?} lacks {part:?}: {errors}");
    }
}

const LINE: &str = "the cat sat on the mat and the dog sat too\n";

#[test]
pub(crate) fn a_resume_accepts_only_the_data_that_the_run_started_with() {
    let scratch = Scratch::new("data");
    let dir = &scratch.0;
    let whole = LINE.repeat(20);
    scratch.file("t.txt", &whole);
    done(dir, &tiny("r", "t.txt", &["train.steps=2"]));
    let record = fs::read_to_string(dir.join("r/data.json")).unwrap();
    assert!(record.contains("/t.txt\"") && record.contains("sha256:"), "{record}");

    scratch.file("t.txt", &whole.replacen("cat", "cow", 1));
    let digest = record.split("sha256:").nth(1).unwrap().split('"').next().unwrap();
    refused(dir, &resume("r", "train.steps=4"), 65, &["t.txt", digest, "found sha256:", "new run"]);
    assert!(!dir.join("r/checkpoints/step_000003").exists());
    scratch.file("t.txt", &whole);
    done(dir, &resume("r", "train.steps=4"));
    assert!(dir.join("r/checkpoints/step_000004").is_dir());

    fs::remove_file(dir.join("r/data.json")).unwrap();
    refused(dir, &resume("r", "train.steps=5"), 66, &["r/data.json"]);
    scratch.file("r/data.json", "{\"files\": 3}\n");
    refused(dir, &resume("r", "train.steps=5"), 65, &["r/data.json:1: "]);
}

#[test]
fn a_token_file_is_recognised_and_damage_is_found_before_the_first_step() {
    let scratch = Scratch::new("packed");
    let dir = &scratch.0;
    scratch.file("a.txt", &LINE.repeat(20));
    scratch.file("b.txt", &LINE.replace("cat", "cow").repeat(20));
    done(dir, &["prepare", "a.txt", "--out", "t.tok"]);
    done(dir, &tiny("r", "t.tok", &["train.steps=2"]));
    done(dir, &["prepare", "b.txt", "--out", "t.tok", "--force"]);
    refused(dir, &resume("r", "train.steps=4"), 65, &["t.tok", "expected crc32c:", "found crc32c:"]);

    let mut bytes = fs::read(dir.join("t.tok")).unwrap();
    bytes[100] ^= 1;
    fs::write(dir.join("t.tok"), bytes).unwrap();
    refused(dir, &tiny("s", "t.tok", &["train.steps=2"]), 65, &["t.tok", "checksum of the tokens"]);
    assert!(!dir.join("s").exists());
}

/// 860 bytes have 107 windows of 8 tokens, so a tenth of an epoch is 10.7 windows: 6 steps of 2.
#[test]
pub(crate) fn epochs_are_the_steps_that_use_as_many_windows() {
    let scratch = Scratch::new("epochs");
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    let keys = ["data.val_fraction=0", "train.schedule=wsd"];
    let weights = |run: &str, step: u64| {
        let name = format!("{run}/checkpoints/step_{step:06}/model.safetensors");
        fs::read(dir.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    done(dir, &tiny("steps", "t.txt", &[&keys[..], &["train.steps=6"]].concat()));
    let epochs = |run, epochs| [tiny(run, "t.txt", &keys), vec!["--epochs", epochs]].concat();
    done(dir, &epochs("epochs", "0.1"));
    assert!(weights("epochs", 6) == weights("steps", 6), "the schedule is that of 6 steps");
    let config = |run: &str| fs::read_to_string(dir.join(run).join("config.toml")).unwrap();
    assert_eq!(config("epochs"), config("steps"));
    done(dir, &resume("steps", "train.steps=11"));
    done(dir, &["train", "--resume", "epochs", "--epochs", "0.2"]);
    assert!(weights("epochs", 11) == weights("steps", 11), "11 steps of 2 are a fifth of 107 windows");
    assert_eq!(config("epochs"), config("steps"));

    let shown = xtrain(dir, &[&epochs("dry", "2")[..], &["--dry-run"]].concat());
    assert!(text(&shown.stdout).contains("\nsteps = 107\n"), "{shown:?}");
    let shown = ok(dir, &["train", "--resume", "epochs", "--epochs", "2.01", "--dry-run"]);
    assert!(shown.contains("\nsteps = 108\n"), "{shown}");
    assert!(!dir.join("dry").exists());
    let both = [&epochs("both", "2")[..], &["--set", "train.steps=9"]].concat();
    refused(dir, &both, 2, &["--epochs and --set train.steps=9: expected one value of `train.steps`"]);
    let long = [&epochs("long", "0.1")[..], &["--set", "train.warmup=7"]].concat();
    refused(
        dir,
        &long,
        2,
        &["`train.warmup` = 7: expected at most 6 (train.steps)", "--epochs 0.1 is 6 steps"],
    );
    scratch.file("w.toml", "[train]\nwarmup = 7\n");
    let in_file = [&epochs("long", "0.1")[..], &["-c", "w.toml"]].concat();
    refused(dir, &in_file, 2, &["w.toml:2: `train.warmup` = 7: expected at most 6 (train.steps)"]);
    // other keys are compared with the new number of steps
    let warm = ["train", "--resume", "epochs", "--epochs", "1", "--set", "train.warmup=20", "--dry-run"];
    assert!(ok(dir, &warm).contains("\nwarmup = 20\n"));
    refused(
        dir,
        &["train", "--resume", "epochs", "--epochs", "0.1"],
        2,
        &["expected at least 11 steps", "found 6"],
    );
    let resumed = ["train", "--resume", "epochs", "--epochs", "1", "--set", "train.steps=9"];
    refused(dir, &resumed, 2, &["--epochs and --set train.steps=9: expected one value of `train.steps`"]);
    refused(dir, &epochs("more", "1e9"), 2, &["--epochs 1000000000.0: expected at most 2147483648 steps"]);
}

#[test]
fn resuming_a_complete_run_prints_how_to_continue() {
    let scratch = Scratch::new("complete");
    scratch.file("t.txt", &LINE.repeat(20));
    done(&scratch.0, &tiny("r", "t.txt", &["train.steps=3"]));
    let stderr = ok(&scratch.0, &["train", "--resume", "r"]);
    assert!(
        stderr.starts_with("r is complete at step 3; to continue, increase the number of steps: "),
        "{stderr}"
    );
    assert_eq!(ok(&scratch.0, &["train", "--resume", "r"]), stderr);
    let changed = xtrain(&scratch.0, &["train", "--resume", "r", "--set", "train.learning_rate=0.5"]);
    let note = "note: not stored, because no step is left: train.";
    assert!(text(&changed.stderr).starts_with(note) && text(&changed.stdout) == stderr, "{changed:?}");
    let words: Vec<&str> = stderr.split_once("xtrain ").unwrap().1.split_whitespace().collect();
    done(&scratch.0, &words);
    assert!(scratch.0.join("r/checkpoints/step_000006").is_dir(), "{stderr}");
    let kept = fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    assert!(kept.contains("steps = 6\n"), "the next resume must read the new length: {kept}");
    assert!(!scratch.0.join("r/config.tmp").exists());
}

/// A run that was stopped before its last step ends where it is with the number of steps that it has done.
#[test]
pub(crate) fn a_resume_ends_a_run_at_the_step_that_it_has_reached() {
    let scratch = Scratch::new("ended");
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    done(dir, &tiny("r", "t.txt", &["train.steps=5"]));
    fs::remove_dir_all(dir.join("r/checkpoints/step_000005")).unwrap();
    refused(dir, &["train", "--resume", "r", "--steps", "3"], 2, &["expected at least 4 steps", "found 3"]);
    done(dir, &["train", "--resume", "r", "--steps", "4"]);
    let config = fs::read_to_string(dir.join("r/config.toml")).unwrap();
    assert!(config.contains("\nsteps = 4\n"), "the number of steps is stored: {config}");
    let shown = ok(dir, &["train", "--resume", "r"]);
    assert!(shown.starts_with("r is complete at step 4; "), "{shown}");
    let metrics = fs::read_to_string(dir.join("r/metrics.jsonl")).unwrap();
    assert!(metrics.lines().last().unwrap().starts_with("{\"step\":4,"), "{metrics}");
}

#[test]
fn a_resumed_run_that_diverges_names_the_checkpoint_that_it_resumed_from() {
    let scratch = Scratch::new("diverged");
    scratch.file("t.txt", &LINE.repeat(20));
    let keys = ["train.steps=9", "train.learning_rate=1e30", "train.min_learning_rate=1e30"];
    let last = "the last checkpoint is r/checkpoints/step_00000";
    fails(&scratch.0, &tiny("r", "t.txt", &keys), 75, &["is not finite", last]);
    // the smaller rate, and the minimum, which would be above it
    let hint = "--resume r --set train.learning_rate=5e29 --set train.min_learning_rate=5e29";
    fails(&scratch.0, &["train", "--resume", "r"], 75, &["resuming r", "is not finite", last, hint]);
}

#[test]
fn a_held_out_share_without_a_target_token_is_refused() {
    let scratch = Scratch::new("heldout");
    scratch.file("t.txt", &LINE.repeat(20));
    let with = |share| tiny("r", "t.txt", &["train.steps=1", share]);
    refused(&scratch.0, &with("data.val_fraction=1e-9"), 2, &["`data.val_fraction`", "1 of 861 tokens"]);
    assert!(!scratch.0.join("r").exists());
    let shown = xtrain(&scratch.0, &with("data.val_fraction=0.005"));
    assert!(text(&shown.stderr).contains("shorter than train.context"), "{shown:?}");
    assert!(text(&shown.stderr).contains("validation loss"), "{shown:?}");
}

#[test]
fn every_command_accepts_any_64_bit_seed() {
    let scratch = Scratch::new("seeds");
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    let largest = u64::MAX.to_string();
    let set = format!("train.seed={largest}");
    let flag = ok(dir, &["train", "--dry-run", "--seed", &largest]);
    assert!(flag.contains(&format!("seed = \"{largest}\"")), "{flag}");
    assert_eq!(ok(dir, &["train", "--dry-run", "--set", &set]), flag);
    scratch.file("a.toml", &flag);
    assert_eq!(ok(dir, &["train", "--dry-run", "-c", "a.toml"]), flag);
    done(dir, &[&tiny("r", "t.txt", &["train.steps=1"])[..], &["--seed", &largest]].concat());
    done(dir, &resume("r", "train.steps=2"));
    for command in [
        &["generate", "r", "--prompt", "a", "--max-new", "2"][..],
        &["verify", "r", "--max-new", "2"],
        &["bench", "train", "--steps", "1", "--set", "model.preset=tiny-1m", "--set", "train.batch=1"],
    ] {
        done(dir, &[command, &["--seed", &largest]].concat());
    }
    for bad in ["-1", "18446744073709551616", "x"] {
        refused(dir, &["train", "--dry-run", &format!("--seed={bad}")], 2, &["--seed"]);
        refused(dir, &["train", "--dry-run", "--set", &format!("train.seed={bad}")], 2, &["2^64 - 1"]);
    }
}

#[test]
fn the_short_flags_of_train_are_settings_and_must_not_contradict_them() {
    let scratch = Scratch::new("short-flags");
    let dir = &scratch.0;
    let shown = |args: &[&str]| ok(dir, &[&["train", "--dry-run"], args].concat());
    let want = shown(&[
        "--set",
        "train.steps=1000",
        "--set",
        "train.learning_rate=2e-3",
        "--set",
        "train.batch=8",
        "--set",
        "data.tokenizer=bytes",
        "--set",
        "train.task=sft",
    ]);
    assert!(want.contains("steps = 1000") && want.contains("batch = 8"), "{want}");
    let short =
        ["--steps", "1e3", "--lr", "2e-3", "--batch", "8", "--tokenizer", "bytes", "--objective", "sft"];
    assert_eq!(shown(&short), want);
    assert_eq!(shown(&[&short[..8], &["--task", "sft", "--set", "train.steps=1000"]].concat()), want);
    let long = ["--steps=1000", "--learning-rate=0.002", "--batch-size=8", "--objective=sft"];
    assert_eq!(shown(&long), want);
    let both = ["train", "--dry-run", "--steps", "5", "--set", "train.steps=6"];
    refused(dir, &both, 2, &["--steps and --set train.steps=6", "`train.steps`"]);
    refused(dir, &["train", "--dry-run", "--set", "train.seed=1", "--seed", "2"], 2, &["--seed and --set"]);
    scratch.file("t.txt", &"the cat sat on the mat\n".repeat(40));
    crate::commands::done(dir, &[&tiny("r", "t.txt", &[])[..], &["--steps", "2"]].concat());
    fails(dir, &["train", "--resume", "r", "--batch", "4"], 2, &["--resume cannot change train.batch"]);
    crate::commands::done(dir, &["train", "--resume", "r", "--steps", "3", "--lr", "1e-4"]);
    let config = fs::read_to_string(dir.join("r/config.toml")).unwrap();
    assert!(config.contains("\nsteps = 3\n") && config.contains("\nlearning_rate = 0.0001\n"), "{config}");
}

/// The rate of a step times its time is the number of its target tokens, also after a resume.
#[test]
fn the_rates_of_a_run_are_the_tokens_of_its_steps() {
    let scratch = Scratch::new("rates");
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    done(dir, &tiny("r", "t.txt", &["train.steps=3"]));
    done(dir, &resume("r", "train.steps=5"));
    let log = |name: &str, keys: [&str; 2]| -> Vec<[f64; 2]> {
        let text = fs::read_to_string(dir.join("r").join(name)).unwrap();
        let line = |line: &str| {
            let fields: serde_json::Value = serde_json::from_str(line).unwrap();
            Some([fields[keys[0]].as_f64()?, fields[keys[1]].as_f64()?])
        };
        text.lines().filter_map(line).collect()
    };
    let tokens = log("metrics.jsonl", ["step", "num_tokens"]);
    let rates = log("timings.jsonl", ["step_time", "tokens_per_second"]);
    assert_eq!((tokens.len(), rates.len()), (5, 5));
    let mut before = 0.0;
    for ([step, tokens], [time, rate]) in tokens.into_iter().zip(rates) {
        let (found, want) = (time * rate, tokens - before);
        assert!((found - want).abs() < 1e-6 * want, "step {step}: {found} tokens, expected {want}");
        before = tokens;
    }
}
