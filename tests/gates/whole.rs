//! The commands of the README, run as a user runs them.
use crate::cli::{Scratch, text, xtrain};

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
    let done = xtrain(&scratch.0, &[&["quickstart", "--threads", "2"], &SHORT[..]].concat());
    let out = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(out.contains("Sums that were never trained on") && out.contains("Eight completions"), "{out}");
    assert!(out.contains("values compared with the training forward, 0 differ."), "{out}");
    let resumed = xtrain(&scratch.0, &["train", "--resume", "runs/quickstart", "--set", "train.steps=14"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert!(scratch.0.join("runs/quickstart/checkpoints/step_000014").is_dir());
    let verified = xtrain(&scratch.0, &["verify", "runs/quickstart", "--max-new", "5", "--kv", "growing"]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let again = xtrain(&scratch.0, &["quickstart"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("xtrain train --resume runs/quickstart"), "{}", text(&again.stderr));
    let other =
        xtrain(&scratch.0, &["train", "--resume", "runs/quickstart", "--set", "train.learning_rate=1"]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
}

#[test]
fn a_training_that_diverges_ends_with_75_and_names_the_last_good_checkpoint() {
    let scratch = Scratch::new("diverge");
    let words = ["quickstart", "--set", "train.learning_rate=1e30", "--set", "train.min_learning_rate=1e30"];
    let done = xtrain(&scratch.0, &[&words, &SHORT[..]].concat());
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(75), "{err}");
    assert!(err.contains("is not finite") && err.contains("step_000000"), "{err}");
}
