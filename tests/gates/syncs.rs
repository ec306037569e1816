//! The gates for durability on the real file system: the system calls of saves and of a run.
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use xtrain::cli::run_command;
use xtrain::config::{Layer, RunConfig};
use xtrain::model::checkpoint::{
    CheckpointContents, CheckpointDir, CheckpointError, Control, RealFs, SimulatedFs, TensorView, TrainerView,
};
use xtrain::run::RunDir;

use crate::cli::Scratch;
use crate::resume::{Case, uninterrupted};
use crate::system_calls::{lines, not_durable, recorded, without_repeated_writes};
use crate::training::Difference;

/// The seed that failure messages name: nothing is random.
const SEED: u64 = 0;

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Calls `save` with a checkpoint that has a trainer and a file.
fn with_contents<R>(step: u64, save: impl FnOnce(&CheckpointContents<'_>) -> R) -> R {
    let data = [step as f32, -0.0, 1e-40];
    let norm = TensorView { name: "model.norm.weight", shape: &[3], data: &data };
    let m = TensorView { name: "m.model.norm.weight", shape: &[3], data: &data };
    let optimizer_states = vec!["m".into()];
    let control = Control { step, optimizer: "adamw".into(), optimizer_states, ..Control::default() };
    save(&CheckpointContents {
        config: &json!({ "hidden_size": 3 }),
        numerics: "1",
        dtype: "f32",
        step,
        model: &[norm],
        files: &[("tokenizer.json", b"{}")],
        trainer: Some(TrainerView { control: &control, optimizer: &[m] }),
    })
}

/// Three saves, of which the last removes the first; one that replaces the last; and another process that opens the
/// directory.
fn save(open: &dyn Fn() -> Result<CheckpointDir, CheckpointError>) -> Result<(), String> {
    let checkpoints = open().map_err(failed)?;
    for step in [1, 2, 3, 3] {
        let saved = with_contents(step, |contents| checkpoints.save(contents)).map_err(failed)?;
        assert!(saved.not_pruned.is_none(), "{saved:?}");
    }
    drop(checkpoints);
    open().map(drop).map_err(failed)
}

/// The real file system receives the calls that the simulated one receives, whose power cuts the gates test. Returns
/// their number.
pub(crate) fn saves() -> Result<usize, String> {
    let simulated = SimulatedFs::default();
    simulated.start_operations();
    save(&|| CheckpointDir::open(Arc::new(simulated.clone()), Path::new("run"), 2))?;
    let want = without_repeated_writes(simulated.operations().into_iter());

    let dir = Scratch::new("syncs");
    let run = dir.0.join("run");
    let (done, calls) = recorded(|| save(&|| CheckpointDir::open(Arc::new(RealFs), &run, 2)));
    done?;
    let got = lines(&calls, &dir.0);
    let syncs = |lines: &[String]| lines.iter().filter(|line| line.starts_with("fsync")).count();
    let differs = (0..got.len().max(want.len())).find(|&at| got.get(at) != want.get(at));
    match differs {
        None => Ok(got.len()),
        Some(at) => Err(format!(
            "gate syncs of saves, seed {SEED}: call {at}: got {:?}, want {:?}; {} calls of fsync, want {}",
            got.get(at),
            want.get(at),
            syncs(&got),
            syncs(&want)
        )),
    }
}

/// A run in a new directory of runs, with a file of rollouts: when it ends, all of its files and their names are
/// durable. Returns the number of system calls.
pub(crate) fn run() -> Result<usize, String> {
    let dir = Scratch::new("syncs-of-a-run");
    let keys = ["model.dim=8", "model.n_layers=1", "train.context=9", "train.batch=1", "train.steps=2"];
    let config = RunConfig::load(&keys.map(|key| Layer::Set(key.into()))).map_err(failed)?;
    let case = Case { number: 0, config, stops: Vec::new(), threads: 1 };
    let path = dir.0.join("some/runs/name");
    let work = || -> Result<(), String> {
        let _ = uninterrupted(&case, &path).map_err(|Difference(text)| text)?;
        let run = RunDir::open(&path).map_err(failed)?;
        run.write_rollouts(1, b"{}\n").map_err(failed)
    };
    let (done, calls) = recorded(work);
    done?;
    let lost = not_durable(&calls, &dir.0);
    if lost.is_empty() {
        Ok(calls.len())
    } else {
        Err(format!("gate syncs of a run, seed {SEED}: a power failure may lose {}", lost.join(", ")))
    }
}

/// An output file of a command: when the command ends, the file and its name are durable. Returns the number of system
/// calls.
pub(crate) fn output() -> Result<usize, String> {
    let dir = Scratch::new("syncs-of-an-output");
    let out = dir.0.join("out.json");
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/shakespeare.toml");
    let args = ["xtrain", "tokenizer", "train", text, "--vocab", "300", "--out"].map(OsString::from);
    let (code, calls) = recorded(|| run_command(args.into_iter().chain([out.clone().into()])));
    if code != ExitCode::SUCCESS {
        return Err(format!("gate syncs of an output, seed {SEED}: {code:?}"));
    }
    match &not_durable(&calls, &dir.0)[..] {
        [] => Ok(calls.len()),
        lost => {
            Err(format!("gate syncs of an output, seed {SEED}: a power failure may lose {}", lost.join(", ")))
        }
    }
}

#[test]
fn saves_make_the_system_calls_that_the_simulated_file_system_expects() {
    let n = saves().unwrap_or_else(|e| panic!("{e}"));
    println!("syncs of saves: {n} system calls, as expected");
    assert!(n > 60, "{n}");
}

#[test]
fn a_run_that_ended_is_durable() {
    let n = run().unwrap_or_else(|e| panic!("{e}"));
    println!("syncs of a run: {n} system calls");
}

#[test]
fn an_output_file_of_a_command_is_durable() {
    let n = output().unwrap_or_else(|e| panic!("{e}"));
    println!("syncs of an output: {n} system calls");
}

#[test]
fn a_log_is_durable_after_its_sync_and_not_before() {
    let dir = Scratch::new("log");
    let mut log = xtrain::run::JsonLines::after(&dir.0.join("metrics.jsonl"), 0).unwrap();
    let (before, calls) = recorded(|| log.write(&json!({ "step": 1 })));
    before.unwrap();
    assert!(not_durable(&calls, &dir.0).contains(&"the bytes of metrics.jsonl".to_string()));
    let (synced, calls) = recorded(|| log.sync());
    synced.unwrap();
    assert!(!not_durable(&calls, &dir.0).contains(&"the bytes of metrics.jsonl".to_string()));
}
