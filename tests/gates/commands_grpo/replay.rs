//! `xtrain replay`.
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
#[cfg(feature = "faults")]
use xtrain::tensor::faults::{self, Fault};
use xtrain::tensor::testing::times;

use super::{REWARD, STEPS, finish, lines, scratch, write_reward};
use crate::cli::{Scratch, program, refused, text, xtrain};
use crate::commands::done;

/// Replaces a field of line `at` of a file, by the function `change`, and writes the lines to `to`.
fn changed(from: &Path, to: &Path, at: usize, field: &str, change: impl Fn(&mut Value)) {
    let mut all = lines(from);
    change(&mut all[at][field]);
    let text: String = all.iter().map(|line| format!("{line}\n")).collect();
    fs::write(to, text).unwrap();
}

#[test]
fn replay_regenerates_every_completion_and_names_the_line_that_differs() {
    let scratch = scratch("replay", "");
    finish(
        &scratch,
        "r",
        &[&REWARD[..], &["--set", "grpo.top_p=0.9", "--set", "grpo.temperature=1.3"]].concat(),
    );
    let file = |step: u64| format!("r/rollouts/step_{step:06}.jsonl");
    for step in 1..=STEPS {
        let shown = done(&scratch.0, &["replay", &file(step)]);
        assert!(shown.starts_with("8 of 8 completions regenerated, "), "{shown}");
        assert!(shown.ends_with(" tokens, 0 differ.\n"), "{shown}");
    }
    for more in [&["--threads", "2", "--kv", "off"][..], &["--page-size", "3", "--prefill-chunk", "2"]] {
        done(&scratch.0, &[&["replay", &file(3)], more].concat());
    }
    for path in ["step_000003.jsonl", "./step_000003.jsonl", "../rollouts/step_000003.jsonl"] {
        done(&scratch.0.join("r/rollouts"), &["replay", path]);
    }
    let differs = |path: &str, model: &str, parts: &[&str]| {
        let output = xtrain(&scratch.0, &["replay", path, "--model", model]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(text(&output.stdout).contains(" 1 differ."), "{output:?}");
        parts.iter().for_each(|part| assert!(errors.contains(part), "{part:?}: {errors}"));
    };
    let (original, copy, model) =
        (scratch.0.join(file(2)), scratch.0.join("x.jsonl"), "r/checkpoints/step_000001");
    let next = |value: &mut Value, at: usize| {
        let x = value[at].as_f64().unwrap() as f32;
        value[at] = f64::from(f32::from_bits(x.to_bits() + 1)).into();
    };
    changed(&original, &copy, 4, "processed_logprobs", |value| next(value, 0));
    differs("x.jsonl", model, &["x.jsonl:5: token 0: expected the log-probability "]);
    changed(&original, &copy, 7, "completion_ids", |value| {
        value[0] = (value[0].as_u64().unwrap() ^ 1).into()
    });
    differs("x.jsonl", model, &["x.jsonl:8: token 0: expected "]);
    changed(&original, &copy, 0, "finish_reason", |value| *value = "stop".into());
    differs("x.jsonl", model, &["x.jsonl:1: finish reason: expected stop, found "]);

    // other weights
    let wrong = ["replay", &file(2), "--model", "r/checkpoints/step_000003"];
    refused(&scratch.0, &wrong, 65, &["step_000002.jsonl:1: expected the weights sha256:", "--model"]);
    // a file that does not name its model, a checkpoint that was deleted, and invalid lines
    changed(&original, &copy, 0, "step", |value| *value = 0.into());
    refused(&scratch.0, &["replay", "x.jsonl"], 2, &["--model"]);
    fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000002")).unwrap();
    refused(&scratch.0, &["replay", &file(3)], 66, &["step_000002: checkpoint not found", "grpo.keep"]);
    fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000000")).unwrap();
    let initial = ["step_000000: checkpoint not found", "the initial model generated them: --model r/base"];
    refused(&scratch.0, &["replay", &file(1)], 66, &initial);
    done(&scratch.0, &["replay", &file(1), "--model", "r/base"]);
    let first = fs::read_to_string(&original).unwrap().lines().next().unwrap().to_string();
    scratch.file("y.jsonl", &format!("{first}\n\n{{\"prompt_id\": 1}}\n"));
    refused(&scratch.0, &["replay", "y.jsonl", "--model", model], 65, &["y.jsonl:3: expected a completion"]);
    for (from, to, part) in [
        (
            "\"prompt_ids\":[",
            "\"prompt_ids\":[999,",
            "prompt position 0: expected a token id below 257, found 999",
        ),
        ("\"temperature\":1.3", "\"temperature\":-1", "temperature: expected "),
        ("\"top_p\":0.9", "\"top_p\":7.0", "top_p: expected a number in (0, 1], found 7"),
        ("\"min_p\":0.0", "\"min_p\":-3.0", "min_p: expected a number in [0, 1], found -3"),
        ("\"max_new\":6", "\"max_new\":0", "expected at least 1 new token, found 0"),
    ] {
        assert!(first.contains(from), "{from}: {first}");
        scratch.file("y.jsonl", &format!("{first}\n{}\n", first.replace(from, to)));
        refused(&scratch.0, &["replay", "y.jsonl", "--model", model], 65, &["y.jsonl:2: ", part]);
    }
    scratch.file("y.jsonl", "\n");
    refused(&scratch.0, &["replay", "y.jsonl", "--model", model], 65, &["y.jsonl: no completions"]);
    refused(&scratch.0, &["replay", "z.jsonl", "--model", model], 66, &["z.jsonl"]);

    // completions of `xtrain rollout`
    scratch.file("p.jsonl", "{\"prompt\": \"12+34=\"}\n{\"prompt_ids\": [49, 50, 51]}\n");
    let args = ["rollout", "r", "--prompts", "p.jsonl", "-n", "3", "--max-new", "7", "--out", "c.jsonl"];
    done(&scratch.0, &[&args[..], &["--top-k", "40", "--seed", "5"]].concat());
    let shown = done(&scratch.0, &["replay", "c.jsonl", "--model", "r"]);
    assert!(shown.starts_with("6 of 6 completions"), "{shown}");
    changed(&scratch.0.join("c.jsonl"), &copy, 3, "processed_logprobs", |value| next(value, 1));
    differs("x.jsonl", "r", &["x.jsonl:4: token 1: expected the log-probability "]);
    refused(&scratch.0, &["replay", "c.jsonl"], 2, &["--model"]);

    // completions of `xtrain rollout` that name their weights
    let args =
        ["rollout", "r", "--prompts", "p.jsonl", "--max-new", "4", "--out", "d.jsonl", "--policy-digest"];
    done(&scratch.0, &args);
    assert!(done(&scratch.0, &["replay", "d.jsonl", "--model", "r"]).starts_with("2 of 2 completions"));
    let other = ["replay", "d.jsonl", "--model", "r/checkpoints/step_000003"];
    refused(&scratch.0, &other, 65, &["d.jsonl:1: expected the weights sha256:"]);
}

/// The processed log-probabilities of a greedy completion are 0, whatever the model computed.
#[test]
pub(crate) fn a_difference_is_the_exit_code_without_a_reader_of_the_output() {
    let scratch = scratch("replay-no-reader", "");
    finish(&scratch, "r", &[&REWARD[..], &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]].concat());
    let (original, copy) = (scratch.0.join("r/rollouts/step_000001.jsonl"), scratch.0.join("x.jsonl"));
    changed(&original, &copy, 0, "finish_reason", |value| *value = "stop".into());
    for (file, code) in [(&copy, 1), (&original, 0)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        command.current_dir(&scratch.0).stdout(writer).arg("replay").arg(file);
        let status = command.args(["--model", "r/checkpoints/step_000000"]).status().unwrap();
        assert_eq!(status.code(), Some(code), "without a reader: {}", file.display());
    }
}

#[test]
pub(crate) fn a_greedy_completion_is_compared_by_its_raw_log_probabilities() {
    let scratch = scratch("replay-greedy", "");
    scratch.file("p.jsonl", "{\"prompt_ids\": [1, 2, 3]}\n");
    let model = crate::commands::model();
    let args = ["rollout", &model, "--prompts", "p.jsonl", "--max-new", "4", "--temperature", "0"];
    done(&scratch.0, &[&args[..], &["--ignore-eos", "--out", "g.jsonl"]].concat());
    assert_eq!(
        lines(&scratch.0.join("g.jsonl"))[0]["processed_logprobs"],
        serde_json::json!([0.0, 0.0, 0.0, 0.0])
    );
    let replay = |file: &str| xtrain(&scratch.0, &["replay", file, "--model", &model]);
    assert_eq!(replay("g.jsonl").status.code(), Some(0));
    changed(&scratch.0.join("g.jsonl"), &scratch.0.join("x.jsonl"), 0, "logprobs", |value| {
        value[1] = (-9.0).into()
    });
    let output = replay("x.jsonl");
    assert_eq!(output.status.code(), Some(1), "a changed log-probability was not found");
    let errors = text(&output.stderr);
    assert!(errors.contains("x.jsonl:1: token 1: expected the log-probability -9, found "), "{errors}");
}

/// A run `r` whose reward program continues every completion that it can.
fn run_with_turns(name: &str) -> Scratch {
    let scratch = scratch(name, "");
    let append = "case $line in *'\"can_append\":true'*) echo \"{\\\"id\\\":$id,\\\"append\\\":\\\"7+\\\"}\"; continue;; esac";
    write_reward(&scratch, append);
    let keys =
        ["max_turns=3", "num_generations=16", "max_completion_length=24", "top_p=0.95", "verify_every=1"];
    let keys = keys.map(|key| format!("grpo.{key}"));
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key.as_str()]).collect();
    finish(&scratch, "r", &[&REWARD[..], &sets].concat());
    scratch
}

/// Replays a file in which a continued completion differs in its first turn, and a later completion differs too.
pub(crate) fn over() -> Result<usize, String> {
    let scratch = run_with_turns("turns-differ");
    let files = (1..=STEPS).map(|step| (step, scratch.0.join(format!("r/rollouts/step_{step:06}.jsonl"))));
    let continued = |(step, file): (u64, PathBuf)| {
        let at = lines(&file).iter().position(|line| line["mask"].is_array())?;
        (at < 31).then_some((step, file, at))
    };
    let (step, original, at) = files.into_iter().find_map(continued).expect("a continued completion");
    let copy = scratch.0.join("x.jsonl");
    for (from, line) in [(&original, at), (&copy, 31)] {
        changed(from, &copy, line, "processed_logprobs", |value| value[0] = (-99.5).into());
    }
    #[cfg(feature = "faults")]
    let fault =
        if faults::on(Fault::ReplayKeepsTurns) { &["--fault", "replay-keeps-turns"][..] } else { &[] };
    #[cfg(not(feature = "faults"))]
    let fault: &[&str] = &[];
    let model = format!("r/checkpoints/step_{:06}", step - 1);
    let output = xtrain(&scratch.0, &[&["replay", "x.jsonl", "--model", &model], fault].concat());
    let shown = text(&output.stdout);
    match output.status.code() == Some(1) && shown.contains(", 2 differ.") {
        true => Ok(32),
        false => Err(format!("gate replay, seed 0: expected 2 completions that differ, found {shown}")),
    }
}

#[test]
fn completions_after_one_that_differs_are_compared() {
    over().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn replay_regenerates_completions_that_a_reward_program_continued() {
    let scratch = run_with_turns("turns");
    let (mut continued, mut example) = (0, None);
    for step in 1..=STEPS {
        let file = format!("r/rollouts/step_{step:06}.jsonl");
        for more in [&[][..], &["--page-size", "3", "--prefill-chunk", "2"]] {
            let shown = done(&scratch.0, &[&["replay", &file], more].concat());
            assert!(shown.starts_with("32 of 32 completions regenerated, "), "{shown}");
        }
        for (at, line) in lines(&scratch.0.join(&file)).iter().enumerate() {
            let mask: Vec<Value> = line["mask"].as_array().cloned().unwrap_or_default();
            if let Some(start) = mask.iter().position(|value| *value == 0) {
                continued += 1;
                let ids = &line["completion_ids"].as_array().unwrap()[start - 1..start + 2];
                assert_eq!(ids, [256, u32::from(b'7'), u32::from(b'+')], "{line}");
                assert!(line["completion"].as_str().unwrap().contains("<|endoftext|>7+"), "{line}");
                example.get_or_insert((step, at, start));
            }
        }
    }
    assert!(continued > 3, "{continued} continued completions");
    let (step, at, start) = example.unwrap();
    let model = &format!("r/checkpoints/step_{:06}", step - 1);
    let original = scratch.0.join(format!("r/rollouts/step_{step:06}.jsonl"));
    let copy = scratch.0.join("x.jsonl");
    // another appended token gives other log-probabilities
    changed(&original, &copy, at, "completion_ids", |value| value[start] = u32::from(b'8').into());
    let output = xtrain(&scratch.0, &["replay", "x.jsonl", "--model", model]);
    let place = format!("x.jsonl:{}: token {}: expected", at + 1, start + 2);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains(&place), "{output:?}");
    for (change, part) in [
        ((|mask| mask[0] = 0.into()) as fn(&mut Value), "mask: expected a sampled token (1) at the start"),
        (|mask| mask[0] = 2.into(), "mask: expected 0 or 1, found 2"),
        (|mask| mask.as_array_mut().unwrap().push(1.into()), "mask: expected "),
    ] {
        changed(&original, &copy, at, "mask", change);
        let place = format!("x.jsonl:{}: {part}", at + 1);
        refused(&scratch.0, &["replay", "x.jsonl", "--model", model], 65, &[place.as_str()]);
    }
}

/// The longer suite regenerates 1,000 completions.
#[test]
fn replay_regenerates_every_completion_of_a_run() {
    let scratch = scratch("replay-all", "");
    let steps = times(2, 8);
    let keys = [&format!("steps={steps}"), "prompts_per_step=5", "num_generations=25", "eval_every=0"];
    let keys = keys.map(|key| format!("grpo.{key}"));
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key.as_str()]).collect();
    finish(&scratch, "r", &sets);
    for step in 1..=steps {
        let shown = done(&scratch.0, &["replay", &format!("r/rollouts/step_{step:06}.jsonl")]);
        assert!(shown.starts_with("125 of 125 completions regenerated, "), "{shown}");
        assert!(shown.ends_with(" tokens, 0 differ.\n"), "{shown}");
    }
    println!("replay: {} of {} completions regenerated", 125 * steps, 125 * steps);
}
