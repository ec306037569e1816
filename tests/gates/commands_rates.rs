//! The rates of the last line of progress.
use crate::cli::{Scratch, text, xtrain};
use crate::commands::{done, model, tiny_run};

/// The units per second in the last line of standard error, such as `rollout: 8/8 in 2.00 s, 4.00 item/s, 1.20 ktok/s`.
#[track_caller]
fn rate(errors: &str, unit: &str) -> f64 {
    let line = errors.lines().last().unwrap_or_default();
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let suffix = format!("{unit}/s");
    let at = words.iter().position(|word| word.ends_with(suffix.as_str()));
    let at = at.unwrap_or_else(|| panic!("no {suffix} in {line}"));
    let scale = match words[at].trim_end_matches(suffix.as_str()) {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        prefix => panic!("{prefix}: {line}"),
    };
    scale * words[at - 1].parse::<f64>().unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Runs a command that must succeed. Returns its standard error.
#[track_caller]
fn errors(scratch: &Scratch, args: &[&str]) -> String {
    let output = xtrain(&scratch.0, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    text(&output.stderr)
}

/// Both rates have the same start, and the one of the completions ends a little later. Prompt tokens do not count.
#[test]
fn the_rates_of_a_rollout_are_those_of_completions_and_of_their_tokens() {
    let (scratch, m) = (Scratch::new("rates-rollout"), model());
    let prompt: Vec<String> = (1..=40).map(|id| id.to_string()).collect();
    scratch.file("p.jsonl", &format!("{{\"prompt_ids\": [{}]}}\n", prompt.join(",")));
    let args = ["rollout", &m, "--prompts", "p.jsonl", "-n", "100", "--max-new", "40", "--ignore-eos"];
    let errors = errors(&scratch, &[&args[..], &["--threads", "1"]].concat());
    let per_completion = rate(&errors, "tok") / rate(&errors, "completion");
    assert!((39.0..60.0).contains(&per_completion), "{per_completion} tokens per completion: {errors}");
}

/// Both rates have the same time. The 60 steps before the resume do not count.
#[test]
fn the_rates_of_a_resumed_run_are_those_of_its_own_steps() {
    let scratch = Scratch::new("rates-train");
    scratch.file("t.txt", &"the cat sat on the mat and the dog sat too\n".repeat(20));
    done(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=60"]));
    let resume = ["train", "--resume", "r", "--set", "train.steps=80", "--set", "train.save_every=1"];
    let errors = errors(&scratch, &[&resume[..], &["--threads", "1"]].concat());
    let per_step = rate(&errors, "tok") / rate(&errors, "step");
    assert!((15.5..16.5).contains(&per_step), "{per_step} tokens per step of 2 x 8 tokens: {errors}");
}
