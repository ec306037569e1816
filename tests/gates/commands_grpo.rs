//! The commands `grpo` and `replay` as processes: files, kills, signals, reward programs, exit codes.
use std::fs;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::cli::{Scratch, program, text, xtrain};
use crate::commands::parsed;

mod devices;
pub(crate) mod errors;
pub(crate) mod interruptions;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod stored;

/// The configuration of a small run.
const CONFIG: &str = "\
[model]
dim = 16
n_layers = 1
n_heads = 2
ffn_dim = 24
[train]
context = 32
batch = 2
steps = 6
eval_every = 0
sample_every = 0
save_every = 3
[data]
val_fraction = 0
[grpo]
steps = 4
prompts_per_step = 2
num_generations = 4
max_completion_length = 6
learning_rate = 5e-3
eval_every = 2
eval_limit = 3
eval_samples = 2
verify_every = 2
show_every = 2
save_every = 1
keep = 10
";

const STEPS: u64 = 4;

/// Completions of a step of [`CONFIG`].
const COMPLETIONS: usize = 8;

/// The start of a reward program: the reward depends on the line, but not on its id.
const READ: &str = "n=0; while IFS= read -r line; do n=$((n+1)); \
    id=${line#*:}; id=${id%%,*}; rest=${line#*,}; reward=$((${#rest} % 5))\n";
/// Its end.
const REPLY: &str = "echo \"{\\\"id\\\":$id,\\\"reward\\\":$reward}\"; done\n";

/// A directory with [`CONFIG`] as `c.toml` and a reward program as `reward.sh`, which runs `body` for each line.
fn scratch(name: &str, body: &str) -> Scratch {
    let scratch = Scratch::new(&format!("grpo-{name}"));
    scratch.file("c.toml", CONFIG);
    write_reward(&scratch, body);
    scratch
}

fn write_reward(scratch: &Scratch, body: &str) {
    scratch.file("reward.sh", &format!("{READ}{body}\n{REPLY}"));
}

const TASK: [&str; 6] = ["-c", "c.toml", "--task", "sums", "--threads", "1"];

const REWARD: [&str; 2] = ["--reward", "sh reward.sh"];

fn grpo<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["grpo"], args].concat()
}

/// Runs the task of [`CONFIG`] in the directory `run` with more flags; returns its standard error.
#[track_caller]
fn finish(scratch: &Scratch, run: &str, more: &[&str]) -> String {
    let output = xtrain(&scratch.0, &[&grpo(&TASK)[..], &["--run", run], more].concat());
    succeeded(&output)
}

#[track_caller]
fn resume(scratch: &Scratch, run: &str) -> String {
    succeeded(&xtrain(&scratch.0, &grpo(&["--resume", run, "--threads", "1"])))
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    errors
}

/// Starts a process whose standard error can be read.
fn start(scratch: &Scratch, args: &[&str]) -> Child {
    let mut command = program();
    command.current_dir(&scratch.0).args(grpo(args)).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The objects of a file of JSON lines.
#[track_caller]
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(parsed).collect()
}

/// The files of a run that must be bit-identical: metrics, rollouts, the last checkpoint and the base model.
fn bytes(run: &Path) -> Vec<(String, Vec<u8>)> {
    let last = format!("checkpoints/step_{STEPS:06}");
    let mut files = vec!["metrics.jsonl".to_string(), "base/metrics.jsonl".to_string()];
    files.push("base/checkpoints/step_000006/model.safetensors".to_string());
    for file in ["model.safetensors", "trainer/optimizer.safetensors", "trainer/control.bin", "manifest.json"]
    {
        files.push(format!("{last}/{file}"));
    }
    files.extend(names(&run.join("rollouts")).iter().map(|name| format!("rollouts/{name}")));
    let read = |name: String| {
        let bytes = fs::read(run.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, bytes)
    };
    files.into_iter().map(read).collect()
}

#[track_caller]
fn assert_equal(want: &[(String, Vec<u8>)], run: &Path, what: &str) {
    let got = bytes(run);
    if let Some(difference) = crate::difference::first_file(&got, want) {
        panic!("{what}: {difference}");
    }
}
