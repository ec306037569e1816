//! The README's commands, run as a user runs them.
use xtrain::tensor::testing::times;

use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::{done, tiny_run};

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
fn the_quickstart_completes_and_its_run_can_be_resumed_and_verified() {
    let scratch = Scratch::new("quickstart");
    let done = xtrain(&scratch.0, &[&["quickstart", "--threads", "2"], &SHORT[..]].concat());
    let out = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(out.contains("Held-out sums: ") && out.contains("Eight completions"), "{out}");
    assert!(out.contains("values compared with the training forward pass, 0 differ."), "{out}");
    let resumed = xtrain(&scratch.0, &["train", "--resume", "runs/quickstart", "--set", "train.steps=14"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert!(scratch.0.join("runs/quickstart/checkpoints/step_000014").is_dir());
    let verified = xtrain(&scratch.0, &["verify", "runs/quickstart", "--max-new", "5", "--kv", "growing"]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let before = std::fs::read(scratch.0.join("runs/quickstart/metrics.jsonl")).unwrap();
    let again = xtrain(&scratch.0, &["quickstart"]);
    let shown = text(&again.stdout);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("runs/quickstart is finished; showing its results again"));
    assert!(shown.contains("Held-out sums: ") && shown.contains("0 differ.\nFinished in "), "{shown}");
    assert_eq!(std::fs::read(scratch.0.join("runs/quickstart/metrics.jsonl")).unwrap(), before);
    assert!(xtrain(&scratch.0, &["quickstart", "--seed", "0", "--set", "train.steps=14"]).status.success());
    refused(&scratch.0, &["quickstart", "--seed", "1"], 2, &["`train.seed` = 1, found 0", "--run DIR"]);
    let last = scratch.0.join("runs/quickstart/checkpoints/step_000014");
    let mut bytes = std::fs::read(last.join("model.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(last.join("model.safetensors"), bytes).unwrap();
    let damaged = xtrain(&scratch.0, &["quickstart"]);
    assert_eq!((damaged.status.code(), text(&damaged.stdout).as_str()), (Some(65), ""));
    let errors = text(&damaged.stderr);
    assert!(
        errors.contains("checkpoints/step_000014: the checkpoint is damaged\nhint: to repeat"),
        "{errors}"
    );
    std::fs::remove_dir_all(last).unwrap();
    refused(
        &scratch.0,
        &["quickstart"],
        2,
        &["the run is not finished", "xtrain train --resume runs/quickstart"],
    );
    let other =
        xtrain(&scratch.0, &["train", "--resume", "runs/quickstart", "--set", "train.weight_decay=1"]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
}

/// The percentage of the held-out sums that a quickstart of `steps` steps answers correctly.
fn answered(seed: u64, steps: u64) -> f64 {
    let scratch = Scratch::new(&format!("sums-{seed}-{steps}"));
    let (seed, steps) = (seed.to_string(), format!("train.steps={steps}"));
    let off = ["train.sample_every=0", "train.eval_every=0", "train.save_every=0"];
    let sets = off.iter().copied().chain([&*steps]).flat_map(|key| ["--set", key]);
    let words: Vec<&str> =
        ["quickstart", "--threads", "2", "--seed", &seed].into_iter().chain(sets).collect();
    let done = xtrain(&scratch.0, &words);
    let out = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let share = out.split_once(" correct (").and_then(|(_, rest)| rest.split_once(" %)"));
    share.unwrap_or_else(|| panic!("{out}")).0.parse().unwrap()
}

/// The longer suite trains for as many steps as the quickstart: over a minute per seed. A shorter run does not reach
/// the same answers, because the model learns the sums suddenly and late (1.3 % after 300 steps, 3 % after 500 of the
/// 1,400). So the test command trains for 60 steps and only shows that the bar can be missed.
#[test]
fn a_trained_quickstart_answers_more_than_85_percent_of_the_held_out_sums_and_an_untrained_one_does_not() {
    const BAR: f64 = 85.0;
    let untrained = answered(0, 60);
    assert!(untrained < BAR, "{untrained} % after 60 steps");
    for seed in 0..times(0, 3) {
        let share = answered(seed, 1400);
        println!("quickstart, seed {seed}: {share} % of the held-out sums");
        assert!(share > BAR, "seed {seed}: {share} %");
    }
}

#[test]
pub(crate) fn a_run_of_another_command_is_refused() {
    let scratch = Scratch::new("quickstart-other");
    scratch.file("t.txt", &"some text to train on\n".repeat(20));
    done(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=1"]));
    let parts = ["r: expected a run of xtrain quickstart, found another run", "--run DIR"];
    refused(&scratch.0, &["quickstart", "--run", "r"], 2, &parts);
}

#[test]
fn a_diverging_run_exits_with_75_and_names_the_last_good_checkpoint() {
    let scratch = Scratch::new("diverge");
    let words = ["quickstart", "--set", "train.learning_rate=1e30", "--set", "train.min_learning_rate=1e30"];
    let done = xtrain(&scratch.0, &[&words, &SHORT[..]].concat());
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(75), "{err}");
    assert!(err.contains("is not finite") && err.contains("step_000000"), "{err}");
}
