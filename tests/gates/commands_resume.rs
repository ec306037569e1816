//! Resumed runs as processes: their configuration, their data at other places, damaged logs.
use std::fs;
use std::path::Path;

use crate::cli::{Scratch, flip_last_bit, refused, text, xtrain};
use crate::commands::{done, parsed, tiny_run};
use crate::fixtures::path;

const LINE: &str = "the cat sat on the mat and the dog sat too\n";

/// A directory with a text and a run of two steps.
fn two_steps(name: &str, more: &[&str]) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.file("t.txt", &LINE.repeat(20));
    done(&scratch.0, &tiny_run("r", "t.txt", &[&["train.steps=2"], more].concat()));
    scratch
}

/// Resumes the run `r` of the directory with more flags; returns its standard error.
#[track_caller]
fn resumed(dir: &Path, more: &[&str]) -> String {
    let output = xtrain(dir, &[&["train", "--resume", "r"], more].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{more:?}: {errors}");
    errors
}

fn replace(file: &Path, from: &str, to: &str) {
    let old = fs::read_to_string(file).unwrap();
    assert!(old.contains(from), "{from:?} is not in {old}");
    fs::write(file, old.replacen(from, to, 1)).unwrap();
}

const STEPS: [&str; 2] = ["--set", "train.steps=4"];

/// Changes a learning rate in config.toml; a resume must name it. Returns the number of resumes.
pub(crate) fn over() -> Result<usize, String> {
    let scratch = two_steps("config", &[]);
    replace(&scratch.0.join("r/config.toml"), "\nlearning_rate = 0.001", "\nlearning_rate = 0.003");
    let output = xtrain(&scratch.0, &[&["train", "--resume", "r"], &STEPS[..]].concat());
    let errors = text(&output.stderr);
    let parts =
        ["r/config.toml: `train.learning_rate` = 0.003: expected 0.001", "--set train.learning_rate=0.003"];
    if output.status.code() == Some(65) && parts.iter().all(|part| errors.contains(part)) {
        return Ok(1);
    }
    Err(format!("gate resumed configuration, seed 0: a changed learning rate is not named: {errors}"))
}

#[test]
fn a_changed_configuration_is_named_and_accepted_through_set_only() {
    over().unwrap_or_else(|error| panic!("{error}"));
    let scratch = two_steps("changed", &[]);
    let (dir, config) = (&scratch.0, scratch.0.join("r/config.toml"));
    replace(&config, "\nlearning_rate = 0.001", "\nlearning_rate = 0.003");
    replace(&config, "n_layers = 1", "n_layers = 2");
    let parts = ["`model.n_layers` = 2: expected 1", "`train.learning_rate` = 0.003", "step_000002/run.toml"];
    refused(dir, &["train", "--resume", "r"], 65, &parts);
    replace(&config, "n_layers = 2", "n_layers = 1");
    // Keys on which no result depends can be edited.
    replace(&config, "keep = 2", "keep = 3");
    let shown = resumed(dir, &["--set", "train.learning_rate=0.003", "--set", "train.steps=4"]);
    for line in ["train.learning_rate: 0.001 -> 0.003", "train.steps: 2 -> 4", "resuming r at step 2 of 4"] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
    for step in [2, 4] {
        let record =
            fs::read_to_string(dir.join(format!("r/checkpoints/step_00000{step}/run.toml"))).unwrap();
        assert!(record.contains("\nlearning_rate = 0.003\n") && record.contains("\nsteps = 4\n"), "{record}");
        assert!(!record.contains("t.txt") && !record.contains("keep"), "{record}");
    }
    let metrics = fs::read_to_string(dir.join("r/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 4);
    assert!(resumed(dir, &[]).is_empty(), "a complete run");
    fs::write(&config, "[train\n").unwrap();
    refused(dir, &["train", "--resume", "r"], 2, &["r/config.toml:1: ", "step_000004/run.toml"]);
}

/// The configuration and the record of the data name every file, and have more than 1 MiB.
#[test]
fn a_run_on_many_files_resumes() {
    let scratch = Scratch::new("many");
    let name = format!("{}/t.txt", "d".repeat(240));
    scratch.file(&name, LINE);
    scratch.file("c.toml", &format!("data.files = [{}]\n", vec![format!("\"{name}\""); 5_000].join(",")));
    let keys = tiny_run("r", &name, &["train.steps=2"]);
    let from = keys.iter().position(|word| *word == "--data").unwrap();
    let keys: Vec<&str> = [&keys[..from], &keys[from + 2..], &["-c", "c.toml"]].concat();
    done(&scratch.0, &keys);
    for file in ["config.toml", "data.json"] {
        assert!(fs::metadata(scratch.0.join("r").join(file)).unwrap().len() > 1 << 20, "{file}");
    }
    resumed(&scratch.0, &STEPS);
    done(&scratch.0, &["generate", "r", "--prompt", "a", "--max-new", "2"]);
}

#[test]
fn a_configuration_of_an_earlier_version_resumes() {
    let scratch = two_steps("earlier", &[]);
    let config = scratch.0.join("r/config.toml");
    let every_key = fs::read_to_string(&config).unwrap().replace("# computed: ", "");
    fs::write(&config, every_key.replace(&format!("{}/", scratch.0.display()), "")).unwrap();
    resumed(&scratch.0, &STEPS);
}

#[test]
fn a_resume_does_not_depend_on_the_working_directory() {
    let scratch = two_steps("elsewhere", &[]);
    let dir = scratch.0.join("other/place");
    fs::create_dir_all(&dir).unwrap();
    let run = scratch.0.join("r").display().to_string();
    done(&dir, &["train", "--resume", &run, "--set", "train.steps=3"]);
    let config = fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    assert!(config.contains(&format!("files = [\"{}\"]", scratch.0.join("t.txt").display())), "{config}");
}

#[test]
fn a_resume_accepts_the_same_data_under_another_name() {
    let scratch = two_steps("moved", &[]);
    fs::rename(scratch.0.join("t.txt"), scratch.0.join("moved.txt")).unwrap();
    let resume = ["train", "--resume", "r", "--set", "train.steps=3"];
    refused(&scratch.0, &resume, 66, &["/t.txt", "xtrain train --resume r --data FILE"]);
    scratch.file("other.txt", &LINE.repeat(21));
    let other = [&resume[..], &["--data", "other.txt"]].concat();
    refused(&scratch.0, &other, 65, &["other.txt", "expected sha256:"]);
    refused(
        &scratch.0,
        &[&resume[..], &["--set", "data.files=moved.txt"]].concat(),
        2,
        &["cannot change data.files"],
    );
    done(&scratch.0, &[&resume[..], &["--data", "moved.txt"]].concat());
    resumed(&scratch.0, &STEPS);
}

#[test]
fn a_resume_without_the_tokenizer_file_uses_that_of_the_checkpoint() {
    let scratch = Scratch::new("tokenizer");
    scratch.file("t.txt", &LINE.repeat(20));
    fs::copy(path("models/qwen3_tied/tokenizer.json"), scratch.0.join("tok.json")).unwrap();
    done(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=2", "data.tokenizer=tok.json"]));
    fs::remove_file(scratch.0.join("tok.json")).unwrap();
    let shown = resumed(&scratch.0, &STEPS);
    assert!(shown.contains("tok.json not found; using the tokenizer of the checkpoint"), "{shown}");
}

#[test]
fn a_resume_with_the_vocabulary_of_the_tokenizer_and_another_normalizer_is_refused() {
    let scratch = Scratch::new("normalizer");
    let (dir, record) = (&scratch.0, scratch.0.join("r/data.json"));
    scratch.file("t.txt", &LINE.repeat(20));
    done(dir, &["tokenizer", "train", "t.txt", "--vocab", "270", "--out", "tok.json"]);
    done(dir, &tiny_run("r", "t.txt", &["train.steps=2", "data.tokenizer=tok.json"]));
    resumed(dir, &["--set", "train.steps=3"]);
    replace(&dir.join("tok.json"), "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}");
    let resume = [&["train", "--resume", "r"], &STEPS[..]].concat();
    refused(dir, &resume, 65, &["the tokenizer.json of ", "tok.json: differs", "expected sha256:"]);
    // a run of an earlier version has no rules
    let mut earlier = parsed(&fs::read_to_string(&record).unwrap());
    assert!(earlier.as_object_mut().unwrap().remove("tokenization").is_some());
    fs::write(&record, earlier.to_string()).unwrap();
    resumed(dir, &STEPS);
    assert!(fs::read_to_string(&record).unwrap().contains("\"tokenization\""));
}

#[test]
fn a_fine_tuned_run_resumes_without_its_tokenizer_file_and_keeps_its_template() {
    let scratch = Scratch::new("tokenizer-sft");
    let (dir, run) = (&scratch.0, scratch.0.join("r"));
    scratch.file("c.jsonl", &"{\"prompt\": \"say 1\", \"completion\": \"1\"}\n".repeat(20));
    done(dir, &["tokenizer", "train", "c.jsonl", "--vocab", "300", "--out", "tok.json"]);
    let keys = ["train.steps=2", "train.context=64", "data.tokenizer=tok.json", "train.task=sft"];
    done(dir, &tiny_run("r", "c.jsonl", &keys));
    let record = || fs::read_to_string(run.join("data.json")).unwrap();
    let template = |step: u64| {
        let config = run.join(format!("checkpoints/step_00000{step}/tokenizer_config.json"));
        fs::read_to_string(config).unwrap().contains("chat_template")
    };
    let before = record();
    assert!(before.contains("chat_template") && template(2));
    fs::rename(dir.join("tok.json"), dir.join("gone.json")).unwrap();
    resumed(dir, &["--set", "train.steps=3"]);
    fs::rename(dir.join("gone.json"), dir.join("tok.json")).unwrap();
    resumed(dir, &["--set", "train.steps=4"]);
    assert_eq!(record(), before);
    for step in [3, 4] {
        assert!(template(step), "step {step}");
    }
}

#[test]
fn a_resume_that_was_killed_between_checkpoint_and_config_continues_with_the_change() {
    let scratch = two_steps("pending", &[]);
    let (dir, config) = (&scratch.0, scratch.0.join("r/config.toml"));
    let old = fs::read_to_string(&config).unwrap();
    let pending = scratch.0.join("r/config.toml.new");
    resumed(dir, &STEPS);
    assert!(!pending.exists());
    // The state after such a kill: the checkpoint has recorded the file of the next resume.
    let new = fs::read_to_string(&config).unwrap();
    resumed(dir, &["--set", "train.steps=6"]);
    fs::rename(&config, &pending).unwrap();
    fs::write(&config, &new).unwrap();
    let shown = resumed(dir, &["--dry-run"]);
    assert!(shown.contains("interrupted; r/config.toml.new replaces config.toml"), "{shown}");
    assert!(pending.exists(), "a dry run changes no file");
    let shown = resumed(dir, &["--set", "train.steps=7"]);
    assert!(shown.contains("train.steps: 6 -> 7"), "{shown}");
    assert!(!pending.exists());
    assert!(fs::read_to_string(&config).unwrap().contains("\nsteps = 7\n"));
    // A file that the checkpoint recorded stays, whatever is in a pending one.
    fs::write(&pending, fs::read_to_string(&config).unwrap().replace("keep = 2", "keep = 7")).unwrap();
    let shown = resumed(dir, &["--dry-run"]);
    assert!(!shown.contains("interrupted"), "{shown}");
    // A pending file that no checkpoint recorded is ignored, and one next to an edited file does not hide the edit.
    fs::write(&pending, &old).unwrap();
    resumed(dir, &["--set", "train.steps=8"]);
    assert!(!pending.exists());
    fs::write(&pending, &old).unwrap();
    replace(&config, "\nlearning_rate = 0.001", "\nlearning_rate = 0.003");
    refused(dir, &["train", "--resume", "r"], 65, &["`train.learning_rate` = 0.003: expected 0.001"]);
}

#[test]
fn a_damaged_log_does_not_block_a_resume() {
    let scratch = two_steps("logs", &[]);
    scratch.file("r/samples.jsonl", "{\"step\":1,\"samples\":[]}\n{\"step\":2,\"samples\":[]}\n");
    let logs = ["metrics.jsonl", "timings.jsonl", "samples.jsonl"];
    for log in logs {
        replace(&scratch.0.join("r").join(log), "{\"step\":1", "{\"stap\":1");
    }
    let more = ["--set", "train.sample_every=4", "--set", "sample.max_new=2"];
    let shown = resumed(&scratch.0, &[&STEPS[..], &more].concat());
    for log in logs {
        let note = format!("warning: r/{log}: 1 damaged line moved to r/{log}.damaged");
        assert!(shown.contains(&note), "{note}: {shown}");
        let kept = fs::read_to_string(scratch.0.join("r").join(log)).unwrap();
        assert_eq!(kept.lines().count(), if log == "samples.jsonl" { 2 } else { 3 }, "{kept}");
    }
}

#[test]
fn a_diverged_run_names_a_way_out_and_a_resume_can_take_it() {
    let scratch = Scratch::new("wayout");
    scratch.file("t.txt", &LINE.repeat(20));
    let keys = ["train.steps=9", "train.learning_rate=1e30", "train.warmup=0", "train.save_every=1"];
    let output = xtrain(&scratch.0, &tiny_run("r", "t.txt", &keys));
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{errors}");
    let hint = "xtrain train --resume r --set train.learning_rate=";
    assert!(errors.contains("bit for bit") && errors.contains(hint), "{errors}");
    let command: Vec<&str> = errors.rsplit_once("xtrain ").unwrap().1.split_whitespace().collect();
    let followed = text(&xtrain(&scratch.0, &command).stderr);
    assert!(followed.contains("train.learning_rate: "), "{followed}");
    // The rate of the first steps has made the weights useless, but finite. A learning rate test without a loss is no
    // error.
    let useless = ["train", "--init", "r/checkpoints/step_000001", "--data", "t.txt", "--lr-find=10"];
    let shown =
        done(&scratch.0, &[&useless[..], &["--set", "train.context=8", "--set", "train.batch=2"]].concat());
    assert!(shown.contains("The loss does not fall at any learning rate"), "{shown}");
    for old in fs::read_dir(scratch.0.join("r/checkpoints")).unwrap().flatten() {
        if old.file_name() != "step_000000" {
            fs::remove_dir_all(old.path()).unwrap();
        }
    }
    let shown = resumed(&scratch.0, &["--set", "train.learning_rate=1e-3"]);
    assert!(shown.contains("train.min_learning_rate: "), "{shown}");
}

#[test]
fn a_run_without_a_checkpoint_starts_when_it_is_resumed() {
    let scratch = two_steps("unstarted", &[]);
    let run = scratch.0.join("r");
    let want = fs::read(run.join("checkpoints/step_000002/manifest.json")).unwrap();
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    fs::remove_file(run.join("data.json")).unwrap();
    let shown = resumed(&scratch.0, &[]);
    assert!(shown.contains("starting r: it has no checkpoint yet"), "{shown}");
    assert!(fs::read(run.join("checkpoints/step_000002/manifest.json")).unwrap() == want);
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count(), 2);
}

#[test]
fn an_empty_directory_can_be_the_directory_of_a_new_run() {
    let scratch = Scratch::new("emptyrun");
    scratch.file("t.txt", &LINE.repeat(20));
    fs::create_dir(scratch.0.join("r")).unwrap();
    done(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=1"]));
    refused(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=1"]), 2, &["r: the run already exists"]);
}

#[test]
fn a_resume_of_something_else_names_the_command_that_works() {
    let scratch = two_steps("else", &[]);
    let (dir, m) = (&scratch.0, path("models/qwen3_tied").display().to_string());
    done(dir, &["import", &m, "imported"]);
    done(dir, &["export", &m, "m.gguf"]);
    fs::create_dir(dir.join("empty")).unwrap();
    let resume = "xtrain train --resume r";
    for (name, found, hint) in [
        ("r/checkpoints/step_000002", "one of its checkpoints", resume),
        ("r/checkpoints", "a directory inside of it", resume),
        ("imported", "an imported model", "xtrain train --init imported --data FILE"),
        ("imported/checkpoints/step_000000", "a checkpoint", "--init imported/checkpoints/step_000000"),
        (&m, "a Hugging Face model", "xtrain train --init "),
        ("m.gguf", "a file", "xtrain train --init m.gguf --data FILE"),
        ("empty", "another directory", "xtrain train"),
    ] {
        let expected = format!("{name}: expected a run with config.toml, found {found}");
        refused(dir, &["train", "--resume", name], 66, &[&expected, hint]);
    }
    refused(
        dir,
        &["grpo", "--resume", "imported"],
        66,
        &["hint: to train from its weights: xtrain grpo --init"],
    );
    let parts = ["r is a run of xtrain train", "xtrain train --resume r", "xtrain grpo --init r"];
    refused(dir, &["grpo", "--resume", "r"], 2, &parts);
}

#[test]
fn another_number_of_shards_is_refused_with_what_may_change() {
    let scratch = two_steps("shards", &["train.shards=2"]);
    let parts = ["--resume cannot change train.shards", "to a divisor of 2"];
    refused(&scratch.0, &["train", "--resume", "r", "--set", "train.shards=1"], 2, &parts);
}

#[test]
fn no_two_samples_of_a_run_have_the_same_random_numbers() {
    let keys = ["sample.count=3", "sample.temperature=1", "sample.max_new=24", "train.context=32"];
    // In f32, this learning rate changes no weight.
    let more = ["train.sample_every=1", "train.learning_rate=1e-60", "train.min_learning_rate=1e-60"];
    let scratch = two_steps("samples", &[&keys[..], &more].concat());
    let lines = fs::read_to_string(scratch.0.join("r/samples.jsonl")).unwrap();
    let samples = |line: &str| crate::commands::parsed(line)["samples"].as_array().expect("a list").clone();
    let texts: Vec<String> = lines.lines().flat_map(samples).map(|text| text.to_string()).collect();
    let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert_eq!((texts.len(), distinct.len()), (6, 6), "{texts:?}");
}

#[test]
pub(crate) fn a_log_that_ends_before_its_checkpoint_is_reported() {
    let scratch = two_steps("gap", &[]);
    let log = scratch.0.join("r/metrics.jsonl");
    let whole = fs::read_to_string(&log).unwrap();
    fs::write(&log, &whole[..whole.len() - 5]).unwrap();
    let shown = resumed(&scratch.0, &STEPS);
    let warning = "warning: r/metrics.jsonl has lines up to step 1, the checkpoint is of step 2";
    assert!(shown.contains(warning), "{shown}");
    fs::remove_file(&log).unwrap();
    let shown = resumed(&scratch.0, &["--set", "train.steps=5"]);
    assert!(shown.contains("warning: r/metrics.jsonl has no line, the checkpoint is of step 4"), "{shown}");
    let complete = two_steps("no-gap", &[]);
    let shown = resumed(&complete.0, &STEPS);
    assert!(!shown.contains("the checkpoint is of"), "{shown}");
}

#[test]
fn a_run_without_its_configuration_is_told_from_an_imported_model() {
    let scratch = two_steps("noconfig", &[]);
    let run = scratch.0.join("r");
    fs::remove_file(run.join("config.toml")).unwrap();
    let parts = [
        "expected a run with config.toml, found one without it",
        "restore config.toml",
        "--init r --data FILE",
    ];
    refused(&scratch.0, &["train", "--resume", "r"], 66, &parts);
}

#[test]
fn a_forward_pass_that_diverges_is_a_diverged_run() {
    let scratch = Scratch::new("forward");
    scratch.file("t.txt", &LINE.repeat(20));
    let keys = [
        "train.steps=20",
        "train.learning_rate=1e10",
        "train.warmup=0",
        "train.clip=0",
        "train.save_every=1",
        "model.qk_norm=false",
    ];
    let output = xtrain(&scratch.0, &tiny_run("r", "t.txt", &keys));
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{errors}");
    assert!(errors.contains("error: step ") && errors.contains("of the logits is not finite"), "{errors}");
    assert!(errors.contains("--set train.learning_rate=5"), "{errors}");
    // the weights of the first step are finite, and their logits are not: a learning rate test without a loss
    let diverged = ["train", "--init", "r/checkpoints/step_000001", "--data", "t.txt", "--lr-find=10"];
    let sizes = ["--set", "train.context=8", "--set", "train.batch=2"];
    let shown = done(&scratch.0, &[&diverged[..], &sizes].concat());
    assert!(shown.contains("The loss does not fall at any learning rate"), "{shown}");
}

#[test]
pub(crate) fn a_damaged_checkpoint_is_not_one_of_those_that_are_kept() {
    let scratch = two_steps("damaged-kept", &["train.save_every=1", "train.keep=2"]);
    let checkpoints = scratch.0.join("r/checkpoints");
    flip_last_bit(&checkpoints.join("step_000002/model.safetensors"));
    let errors = resumed(&scratch.0, &["--steps", "3", "--set", "train.save_every=3"]);
    let refused = errors.lines().find(|line| line.contains("step_000002 refused: ")).unwrap_or(&errors);
    assert!(refused.ends_with("; it is not used and can be deleted"), "{errors}");
    let mut names: Vec<_> =
        fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["step_000001", "step_000002", "step_000003"]);
}
