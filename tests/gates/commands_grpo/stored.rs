//! What `config.toml` of a run stores: everything that a resume needs, whatever happens to the files that were named.
use std::fs;

use xtrain::config::{Layer, RunConfig};

use super::{READ, REPLY, REWARD, finish, grpo, lines, resume, scratch, succeeded};
use crate::cli::{Scratch, flip_last_bit, ok, refused, xtrain};

fn stored(scratch: &Scratch, run: &str) -> RunConfig {
    RunConfig::load(&[Layer::File(scratch.0.join(run).join("config.toml"))]).unwrap()
}

const ONE_STEP: [&str; 4] = ["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"];

#[test]
fn the_sizes_of_the_initial_model_replace_those_of_the_file() {
    let scratch = scratch("stored-sizes", "");
    finish(&scratch, "base", &ONE_STEP);
    let other = fs::read_to_string(scratch.0.join("c.toml")).unwrap();
    let sizes = "dim = 24\nn_layers = 3\nn_heads = 3\nffn_dim = 40\n[train]\ncontext = 999";
    let other =
        other.replace("dim = 16\nn_layers = 1\nn_heads = 2\nffn_dim = 24\n[train]\ncontext = 32", sizes);
    scratch.file("other.toml", &other);
    let task = ["-c", "other.toml", "--task", "sums", "--threads", "1", "--init", "base", "--run", "r"];
    succeeded(&xtrain(&scratch.0, &[&grpo(&task)[..], &ONE_STEP].concat()));
    let (base, found) = (stored(&scratch, "base"), stored(&scratch, "r"));
    let sizes = |config: &RunConfig| {
        let model = &config.model;
        [model.dim, model.n_layers, model.n_heads, model.n_kv_heads, model.ffn_dim, model.vocab]
    };
    assert_eq!(sizes(&found), [16, 1, 2, 2, 24, 257]);
    assert_eq!(sizes(&base)[..5], [16, 1, 2, 2, 24]);
    assert_eq!((base.train.context, found.train.context, found.model.max_positions), (32, 32, 32));
    // the run has its own copy of the sizes
    fs::remove_dir_all(scratch.0.join("base")).unwrap();
    let shown = ok(&scratch.0, &["grpo", "--resume", "r", "--dry-run"]);
    assert!(shown.contains("\ndim = 16\n"), "{shown}");
}

#[test]
pub(crate) fn the_initial_model_has_its_biases_in_a_dry_run_and_is_not_needed_to_resume() {
    let scratch = Scratch::new("stored-biases");
    let from = crate::fixtures::path("models/qwen2_bias");
    fs::create_dir(scratch.0.join("m")).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), scratch.0.join("m").join(file.file_name())).unwrap();
    }
    scratch.file("t.txt", &"To be, or not to be. ".repeat(40));
    let train = [
        "train",
        "--init",
        "m",
        "--data",
        "t.txt",
        "--run",
        "r",
        "--threads",
        "1",
        "--set",
        "train.context=16",
    ];
    let train =
        [&train[..], &["--steps", "1", "--set", "data.val_fraction=0", "--set", "data.tokenizer=bytes"]]
            .concat();
    let inspected: serde_json::Value =
        serde_json::from_str(&ok(&scratch.0, &["inspect", "m", "--json"])).unwrap();
    let count = inspected["parameters"].as_f64().unwrap();
    let shown = ok(&scratch.0, &[&train[..], &["--dry-run"]].concat());
    let line = format!("# parameters: {:.1} k ", count / 1e3);
    assert!(shown.starts_with(&line), "expected {line:?}, found {shown}");
    succeeded(&xtrain(&scratch.0, &train));
    fs::remove_dir_all(scratch.0.join("m")).unwrap();
    ok(&scratch.0, &["train", "--resume", "r", "--steps", "2", "--dry-run"]);
    succeeded(&xtrain(&scratch.0, &["train", "--resume", "r", "--steps", "2", "--threads", "1"]));
}

#[test]
pub(crate) fn an_older_checkpoint_of_the_initial_model_is_reported() {
    let scratch = scratch("stored-older", "");
    finish(&scratch, "base", &ONE_STEP);
    flip_last_bit(&scratch.0.join("base/checkpoints/step_000001/model.safetensors"));
    let init = [&["--init", "base"][..], &ONE_STEP].concat();
    let errors = finish(&scratch, "r", &init);
    let is_older = |line: &str| {
        line.starts_with("warning: using the older checkpoint ")
            && line.ends_with("base/checkpoints/step_000000")
    };
    assert!(errors.contains("step_000001") && errors.lines().any(is_older), "an older checkpoint: {errors}");
    scratch.file("t.txt", &"text to train on\n".repeat(20));
    let train = ["train", "--init", "base", "--data", "t.txt", "--steps", "1", "--run", "t", "--set"];
    let errors = succeeded(&xtrain(&scratch.0, &[&train[..], &["train.context=8"]].concat()));
    assert!(errors.contains("step_000001") && errors.lines().any(is_older), "{errors}");
}

/// The run was stopped after its reference model was saved and before its first checkpoint, and the initial model has
/// been trained since.
#[test]
pub(crate) fn a_run_that_starts_again_has_the_reference_model_of_its_weights() {
    let scratch = scratch("stored-reference", "");
    let keys = ["grpo.steps=1", "grpo.eval_every=0", "grpo.beta=0.1", "grpo.learning_rate=0.05"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    finish(&scratch, "base", &[&REWARD[..], &sets].concat());
    let init = [&["--init", "base"][..], &REWARD, &sets].concat();
    finish(&scratch, "r", &init);
    let kl = || lines(&scratch.0.join("r/metrics.jsonl")).iter().find_map(|line| line["kl"].as_f64());
    assert_eq!(kl(), Some(0.0));
    fs::remove_dir_all(scratch.0.join("r/checkpoints")).unwrap();
    fs::remove_file(scratch.0.join("r/metrics.jsonl")).unwrap();
    fs::remove_dir_all(scratch.0.join("base/checkpoints/step_000001")).unwrap();
    resume(&scratch, "r");
    assert_eq!(kl(), Some(0.0), "the divergence from the reference model before the first update");
}

#[test]
fn the_text_of_a_schema_is_stored_and_its_file_is_not_read_again() {
    let scratch = scratch("stored-schema", "");
    let schema = scratch.0.join("schema.json");
    fs::write(&schema, "{ \"enum\": [1, 22] }").unwrap();
    let file = format!("grpo.json_schema={}", schema.display());
    finish(&scratch, "r", &["--set", "grpo.steps=2", "--set", "grpo.eval_every=0", "--set", &file]);
    let text = r#"{"enum":[1,22]}"#;
    assert_eq!(stored(&scratch, "r").grpo.unwrap().json_schema, text);
    fs::remove_file(schema).unwrap();
    fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000002")).unwrap();
    fs::remove_file(scratch.0.join("r/rollouts/step_000002.jsonl")).unwrap();
    resume(&scratch, "r");
    assert_eq!(stored(&scratch, "r").grpo.unwrap().json_schema, text);
    let lines = lines(&scratch.0.join("r/rollouts/step_000002.jsonl"));
    assert!(lines.iter().all(|line| line["json_schema"] == serde_json::json!({"enum": [1, 22]})));
}

/// The working directory of the resume has another program of the same name.
#[test]
pub(crate) fn reward_programs_run_where_the_run_was_started() {
    let scratch = scratch("stored-dir", "");
    let steps = ["--set", "grpo.steps=2", "--set", "grpo.eval_every=0"];
    finish(&scratch, "r", &[&steps[..], &REWARD].concat());
    let rollouts = scratch.0.join("r/rollouts/step_000002.jsonl");
    let want = fs::read_to_string(&rollouts).unwrap();
    let again = |dir: &str, more: &[&str]| {
        fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000002")).unwrap();
        fs::remove_file(&rollouts).unwrap();
        let resume = grpo(&["--resume", "../r", "--threads", "1"]);
        succeeded(&xtrain(&scratch.0.join(dir), &[&resume[..], more].concat()));
        fs::read_to_string(&rollouts).unwrap()
    };
    scratch.file("other/reward.sh", &format!("{READ}reward=100\n{REPLY}"));
    assert_eq!(again("other", &[]), want, "r/rollouts after a resume in another directory");
    // a program that is set again is one of the directory in which it was set
    let start = format!("grpo.reward_dir={}", scratch.0.display());
    assert_eq!(
        again("other", &["--reward", "sh reward.sh", "--set", &start]),
        want,
        "a directory that is set"
    );
    let changed = again("other", &["--reward", "sh reward.sh"]);
    assert!(changed.contains("\"reward\":100.0"), "{changed}");
    let dir = stored(&scratch, "r").grpo.unwrap().reward_dir;
    assert_eq!(fs::canonicalize(dir).unwrap(), fs::canonicalize(scratch.0.join("other")).unwrap());
    fs::remove_dir_all(scratch.0.join("other")).unwrap();
    fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000002")).unwrap();
    refused(&scratch.0, &["grpo", "--resume", "r"], 66, &["grpo.reward_dir", "other", "directory not found"]);
}

#[test]
fn a_damaged_checkpoint_is_not_one_of_those_that_are_kept() {
    let scratch = scratch("damaged-kept", "");
    let sets = |keys: &[&'static str]| keys.iter().flat_map(|key| ["--set", *key]).collect::<Vec<_>>();
    let keys = sets(&["grpo.steps=4", "grpo.eval_every=0", "grpo.keep=3", "grpo.save_every=1"]);
    let started = finish(&scratch, "r", &[&["--reward", "sh reward.sh | cat"][..], &keys].concat());
    let warning = "warning: reward command \"sh reward.sh | cat\": no shell runs, so | is an argument";
    assert_eq!(started.matches(warning).count(), 1, "{started}");
    let checkpoints = scratch.0.join("r/checkpoints");
    fs::remove_dir_all(checkpoints.join("step_000004")).unwrap();
    flip_last_bit(&checkpoints.join("step_000003/model.safetensors"));
    let resume = grpo(&["--resume", "r", "--threads", "1"]);
    let keys = sets(&["grpo.keep=2", "grpo.save_every=4"]);
    let errors = succeeded(&xtrain(&scratch.0, &[&resume[..], &keys].concat()));
    assert!(errors.contains("step_000003 refused: "), "{errors}");
    let mut names: Vec<_> =
        fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["step_000002", "step_000003", "step_000004"]);
}
