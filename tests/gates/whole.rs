//! The commands of the README, run as a user runs them.
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of this test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("xtrain-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn xtrain(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_xtrain")).current_dir(&self.0).args(words).output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SHORT: [&str; 10] = [
    "--set",
    "train.steps=12",
    "--set",
    "train.warmup=2",
    "--set",
    "model.dim=32",
    "--set",
    "model.head_dim=8",
    "--set",
    "train.eval_tokens=200",
];

#[test]
fn the_quickstart_does_the_whole_job_and_its_run_can_be_resumed_and_verified() {
    let scratch = Scratch::new("quickstart");
    let done = scratch.xtrain(&[&["quickstart", "--threads", "2"], &SHORT[..]].concat());
    let out = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(out.contains("Sums that were never trained on") && out.contains("Eight completions"), "{out}");
    assert!(out.contains("values compared with the training forward, 0 differ."), "{out}");
    let resumed = scratch.xtrain(&["train", "--resume", "runs/quickstart", "--set", "train.steps=14"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert!(scratch.0.join("runs/quickstart/checkpoints/step_000014").is_dir());
    let verified = scratch.xtrain(&["verify", "runs/quickstart", "--max-new", "5", "--kv", "growing"]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let again = scratch.xtrain(&["quickstart"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("xtrain train --resume runs/quickstart"), "{}", text(&again.stderr));
    let other = scratch.xtrain(&["train", "--resume", "runs/quickstart", "--set", "train.learning_rate=1"]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
}

#[test]
fn a_training_that_diverges_ends_with_75_and_names_the_last_good_checkpoint() {
    let scratch = Scratch::new("diverge");
    let words = ["quickstart", "--set", "train.learning_rate=1e30", "--set", "train.min_learning_rate=1e30"];
    let done = scratch.xtrain(&[&words, &SHORT[..]].concat());
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(75), "{err}");
    assert!(err.contains("is not finite") && err.contains("step_000000"), "{err}");
}
