//! The keys of the configuration that a resume may change.
use crate::cli::{Scratch, ok, refused};
use crate::commands::{model, tiny_run};

/// Keys of a run of `xtrain train` and other values than those of the run.
const TRAIN: &[(&str, &str)] = &[
    ("train.steps", "9"),
    ("train.learning_rate", "0.002"),
    ("train.initial_learning_rate", "0.00001"),
    ("train.min_learning_rate", "0.00001"),
    ("train.schedule", "\"wsd\""),
    ("train.warmup", "1"),
    ("train.decay", "1"),
    ("train.micro_batch", "1"),
    ("train.gradient_checkpointing", "true"),
    ("train.keep", "5"),
    ("train.keep_best", "true"),
    ("train.save_every", "7"),
    ("train.eval_every", "4"),
    ("train.eval_tokens", "8"),
    ("train.patience", "3"),
    ("train.sample_every", "2"),
    ("train.stats_every", "3"),
    ("sample.prompt", "\"the\""),
    ("sample.count", "2"),
    ("sample.max_new", "3"),
    ("sample.temperature", "0.5"),
    ("sample.top_k", "3"),
    ("sample.top_p", "0.5"),
    ("sample.min_p", "0.1"),
];

/// Keys of a run of `xtrain grpo` and other values than those of the run.
const GRPO: &[(&str, &str)] = &[
    ("grpo.steps", "300"),
    ("grpo.learning_rate", "0.002"),
    ("grpo.min_learning_rate", "0.00001"),
    ("grpo.schedule", "\"constant\""),
    ("grpo.warmup", "1"),
    ("grpo.prompts", "\"q.jsonl\""),
    ("grpo.eval_prompts", "\"q.jsonl\""),
    ("grpo.reward", "[\"cat -u\"]"),
    ("grpo.reward_dir", "\"/\""),
    ("grpo.reward_processes", "3"),
    ("grpo.reward_timeout", "7.0"),
    ("grpo.micro_batch", "1"),
    ("grpo.preallocate", "false"),
    ("grpo.verify_every", "5"),
    ("grpo.show_every", "5"),
    ("grpo.save_every", "5"),
    ("grpo.keep", "5"),
];

/// Checks that a resume of the run `r` may change each key of `table` and no other. `other`: a change that is refused.
#[track_caller]
fn assert_only_these_change(scratch: &Scratch, command: &str, table: &[(&'static str, &str)], other: &str) {
    let resume = [command, "--resume", "r", "--dry-run"];
    let before = ok(&scratch.0, &resume);
    for (key, value) in table {
        let set = format!("{key}={value}");
        let after = ok(&scratch.0, &[&resume[..], &["--set", &set]].concat());
        let line = format!("{} = {value}", key.rsplit('.').next().unwrap_or_default());
        let has_line = |shown: &str| shown.lines().any(|found| found == line);
        assert!(!has_line(&before) && has_line(&after), "{set}: {after}");
    }
    let name = |(key, _): &(&'static str, &str)| if key.starts_with("sample.") { "[sample]" } else { *key };
    let mut names: Vec<&str> = table.iter().map(name).collect();
    names.dedup();
    let only = format!("only {} can change", names.join(", "));
    let message = format!("--resume cannot change {}", other.split('=').next().unwrap_or_default());
    refused(&scratch.0, &[&resume[..], &["--set", other]].concat(), 2, &[&message, &only]);
}

#[test]
fn a_resume_of_train_may_change_the_keys_that_its_error_lists() {
    let scratch = Scratch::new("keys-train");
    scratch.file("t.txt", "the cat sat on the mat\n");
    let run = tiny_run("r", "t.txt", &["train.steps=4", "train.eval_every=2"]);
    // a run without a checkpoint
    scratch.file("r/config.toml", &ok(&scratch.0, &[&run[..], &["--dry-run"]].concat()));
    assert_only_these_change(&scratch, "train", TRAIN, "train.weight_decay=0.2");
}

#[test]
fn a_resume_of_grpo_may_change_the_keys_that_its_error_lists() {
    let (scratch, m) = (Scratch::new("keys-grpo"), model());
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
    let run = ["grpo", "--init", &m, "--prompts", "p.jsonl", "--reward", "cat", "--dry-run"];
    scratch.file("r/config.toml", &ok(&scratch.0, &run));
    assert_only_these_change(&scratch, "grpo", GRPO, "grpo.temperature=0.5");
    let other = "grpo.reward=[\"cat\", \"cat -u\"]";
    let number = ["--resume cannot change grpo.reward in the number of its commands"];
    refused(&scratch.0, &["grpo", "--resume", "r", "--dry-run", "--set", other], 2, &number);
}
