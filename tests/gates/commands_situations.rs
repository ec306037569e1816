//! Situations in which a command decides in another way than usual.
use std::fs::{self, File};
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::{Scratch, ok, program, refused, text};
use crate::commands::{done, model, parsed};
use crate::fixtures::{json, path};

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// A copy of the fixture `name` in `scratch`.
pub(crate) fn copied(scratch: &Scratch, name: &str) -> String {
    let (from, to) = (path(&format!("models/{name}")), scratch.0.join(name));
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to.display().to_string()
}

/// Writes `name` of a fixture with a field that has another value.
pub(crate) fn edit(dir: &str, name: &str, field: &str, value: Value) {
    let mut all = json(&format!("models/qwen3_tied/{name}"));
    all[field] = value;
    fs::write(Path::new(dir).join(name), all.to_string()).unwrap();
}

#[test]
pub(crate) fn an_empty_prompt_begins_with_the_bos_token_of_the_tokenizer() {
    let scratch = Scratch::new("situations-bos");
    let m = copied(&scratch, "qwen3_tied");
    edit(&m, "config.json", "bos_token_id", json!(5));
    edit(&m, "tokenizer_config.json", "bos_token", json!("<|im_start|>"));
    let generate = ["generate", &m, "--prompt", "", "--max-new", "1", "--json"];
    let got = parsed(&ok(&scratch.0, &generate));
    assert_eq!(ids(&got["prompt_ids"]), [1], "gate situations, seed 0: want <|im_start|>");
    fs::remove_file(Path::new(&m).join("tokenizer_config.json")).unwrap();
    let got = parsed(&ok(&scratch.0, &generate));
    assert_eq!(ids(&got["prompt_ids"]), [5], "that of config.json");
}

#[test]
#[cfg(unix)]
fn a_standard_input_that_cannot_be_read_is_no_empty_prompt() {
    let (scratch, m) = (Scratch::new("situations-stdin"), model());
    let mut command = program();
    command.args(["generate", &m, "--prompt", "-", "--max-new", "1"]).stdin(File::open(&scratch.0).unwrap());
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).starts_with("error: standard input: "), "{output:?}");
}

/// Writes the metrics of two steps, with `more` fields each.
fn write_run(scratch: &Scratch, name: &str, more: &[(&str, f64)]) {
    let line = |step: u32| {
        let mut line = json!({"step": step, "loss": 1.0 / f64::from(step), "learning_rate": 1e-3});
        more.iter().for_each(|(key, value)| line[key] = json!(value * f64::from(step)));
        format!("{line}\n")
    };
    scratch.file(&format!("{name}/metrics.jsonl"), &(line(1) + &line(2)));
    scratch.file(&format!("{name}/config.toml"), "[train]\nsteps = 2\n");
}

#[test]
fn a_report_of_a_run_without_samples_and_timings_has_no_place_for_them() {
    let scratch = Scratch::new("situations-report");
    write_run(&scratch, "bare", &[]);
    ok(&scratch.0, &["report", "bare", "--out", "bare.html"]);
    let page = fs::read_to_string(scratch.0.join("bare.html")).unwrap();
    assert!(!page.contains(">Samples<") && !page.contains("of all phases"), "{page}");
}

#[test]
fn a_run_of_reinforcement_learning_is_drawn_in_several_charts() {
    let scratch = Scratch::new("situations-plot");
    write_run(&scratch, "rl", &[("reward", 0.25), ("entropy", 0.5), ("completions/mean_length", 3.0)]);
    let shown = ok(&scratch.0, &["plot", "rl"]);
    let files: Vec<String> = fs::read_dir(scratch.0.join("rl"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|file| file.ends_with(".svg"))
        .collect();
    assert!(files.len() > 1, "{files:?}: {shown}");
    let all: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    for key in ["reward", "entropy", "completions/mean_length"] {
        assert!(all.contains(&format!(">{key} ")), "{key}: {files:?}");
    }
    ok(&scratch.0, &["plot", "rl", "--out", "rl.svg"]);
    let chart = fs::read_to_string(scratch.0.join("rl.svg")).unwrap();
    assert!(chart.contains(">reward ") && !chart.contains(">loss "), "{chart}");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_training_benchmark_on_a_gpu_counts_the_steps_after_the_warm_up() {
    let scratch = Scratch::new("situations-bench");
    let sizes = [
        "model.dim=16",
        "model.n_layers=1",
        "model.n_heads=2",
        "model.ffn_dim=16",
        "train.context=8",
        "train.batch=1",
    ];
    let counted = |steps: &str| {
        let mut command = vec!["bench", "train", "--device", "emulated", "--json", "--steps", steps];
        sizes.iter().for_each(|size| command.extend(["--set", size]));
        parsed(&ok(&scratch.0, &command))["per_step"]["launches"].as_f64().unwrap()
    };
    assert!(counted("1") > 0.0);
    assert_eq!(counted("1"), counted("2"), "launches of a step");
}

#[test]
fn a_model_without_a_tokenizer_replays_completions_without_stop_texts() {
    let scratch = Scratch::new("situations-replay");
    let m = path("models/mistral_window").display().to_string();
    scratch.file("p.jsonl", "{\"prompt_ids\": [3, 4, 5]}\n");
    done(&scratch.0, &["rollout", &m, "--prompts", "p.jsonl", "--max-new", "4", "--out", "r.jsonl"]);
    let shown = done(&scratch.0, &["replay", "r.jsonl", "--model", &m]);
    assert!(shown.starts_with("1 of 1 completions regenerated"), "{shown}");
    let stop = ["rollout", &m, "--prompts", "p.jsonl", "--stop", "x"];
    refused(&scratch.0, &stop, 66, &["no tokenizer.json", "--stop"]);
}
