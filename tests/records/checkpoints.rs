//! The checkpoints that a run keeps: the directories below `checkpoints` after each save, removal and restart.
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use xtrain::model::checkpoint::{CheckpointContents, CheckpointDir, RealFs, TensorView, newest_described};

use crate::Record;

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    for keep in [2, 3] {
        let _ = fs::remove_dir_all(&run);
        out.section(format!("saves that keep {keep}: the step, and what is there"));
        saves(&mut out, &run, keep);
    }
    let _ = fs::remove_dir_all(&run);
    out.section("removals");
    removals(&mut out, &run);
    out.section("restarts with the remains of interrupted saves");
    restarts(&mut out, &run);
    out.section("saves that are refused");
    refusals(&mut out, &run);
    out
}

fn open(run: &Path, keep: usize) -> CheckpointDir {
    CheckpointDir::open(Arc::new(RealFs), run, keep).unwrap()
}

/// The names below `checkpoints`, and the newest checkpoint with a valid config.json: its name, its config and how
/// many newer ones were refused.
fn names(run: &Path) -> String {
    let mut names: Vec<String> = fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.replace(&std::process::id().to_string(), "PID"))
        .collect();
    names.sort();
    let newest = match newest_described(&RealFs, run) {
        Ok(found) => {
            let name = found.path.file_name().unwrap().to_string_lossy().into_owned();
            format!("{name} {} {}", found.config, found.refused.len())
        }
        Err(error) => error.to_string().replace(&run.display().to_string(), "RUN"),
    };
    format!("{} | {newest}", names.join(" "))
}

fn contents<'a>(
    step: u64,
    tensors: &'a [TensorView<'a>],
    config: &'a serde_json::Value,
) -> CheckpointContents<'a> {
    CheckpointContents {
        config,
        numerics: "1",
        dtype: "f32",
        step,
        model: tensors,
        files: &[],
        trainer: None,
    }
}

/// Saves a checkpoint. Returns the name of its directory.
fn save(checkpoints: &CheckpointDir, step: u64) -> String {
    let config = json!({"step": step});
    let tensors = [TensorView { name: "w", shape: &[1], data: &[step as f32] }];
    let saved = checkpoints.save(&contents(step, &tensors, &config)).unwrap();
    assert!(saved.not_pruned.is_none());
    saved.path.file_name().unwrap().to_str().unwrap().into()
}

fn saves(out: &mut Record, run: &Path, keep: usize) {
    let checkpoints = open(run, keep);
    fs::create_dir_all(run.join("checkpoints/mine")).unwrap();
    fs::create_dir_all(run.join("checkpoints/step_7")).unwrap();
    for step in [0, 4, 8, 12, 8, 6, 20, 1_000_000, 999_999, 20] {
        let saved = save(&checkpoints, step);
        out.line(format!("{saved}: {}", names(run)));
    }
}

fn removals(out: &mut Record, run: &Path) {
    let checkpoints = open(run, 9);
    let all = |out: &mut Record, what: &str| {
        for step in [3, 1, 7, 5] {
            save(&checkpoints, step);
        }
        out.line(format!("{what}: from {}", names(run)));
    };
    for step in [Some(5), Some(4), None] {
        all(out, &format!("all but {step:?}"));
        checkpoints.retain_step(step).unwrap();
        out.line(format!("    {}", names(run)));
    }
    all(out, "all but the smallest and the largest");
    for _ in 0..2 {
        checkpoints.retain_oldest_and_newest().unwrap();
        out.line(format!("    {}", names(run)));
    }
    checkpoints.retain_step(Some(1)).unwrap();
    checkpoints.retain_oldest_and_newest().unwrap();
    out.line(format!("    of one: {}", names(run)));
    let second = CheckpointDir::open(Arc::new(RealFs), run, 2).err().unwrap();
    out.line(second.to_string().replace(&run.display().to_string(), "RUN"));
    for keep in [0, 1] {
        out.line(CheckpointDir::open(Arc::new(RealFs), run, keep).err().unwrap().to_string());
    }
}

fn restarts(out: &mut Record, run: &Path) {
    let dir = run.join("checkpoints");
    let checkpoints = open(run, 9);
    for step in [2, 4, 6] {
        save(&checkpoints, step);
    }
    drop(checkpoints);
    let name = |name: &str| dir.join(name);
    fs::create_dir_all(name("step_000008.tmp-1/trainer")).unwrap();
    fs::rename(name("step_000004"), name("step_000004.old-17")).unwrap();
    fs::create_dir_all(name("step_000006.old-17")).unwrap();
    for left in ["step_000009.tmp-x", "step_000009.new-1", "step_9.tmp-1", "step_000009.tmp", "other.tmp-1"] {
        fs::create_dir_all(name(left)).unwrap();
    }
    out.line(format!("before: {}", names(run)));
    drop(open(run, 9));
    out.line(format!("after: {}", names(run)));
    fs::remove_file(name("step_000006/config.json")).unwrap();
    out.line(format!("without the config of 6: {}", names(run)));
}

fn refusals(out: &mut Record, run: &Path) {
    let checkpoints = open(run, 2);
    let config = json!({});
    let of = |name, shape, data| TensorView { name, shape, data };
    let long = "n".repeat(513);
    let tensors: [&[TensorView<'_>]; 8] = [
        &[of("", &[1], &[0.0])],
        &[of("__metadata__", &[1], &[0.0])],
        &[of("a", &[1], &[0.0]), of("a", &[1], &[0.0])],
        &[of(&long, &[1], &[0.0])],
        &[of("a", &[2], &[0.0])],
        &[of("a", &[0], &[])],
        &[of("a", &[1; 9], &[0.0])],
        &[of("a", &[2], &[0.0, f32::INFINITY])],
    ];
    for tensors in tensors {
        out.line(checkpoints.save(&contents(30, tensors, &config)).unwrap_err().to_string());
    }
    for files in [
        ["config.json", "a"],
        ["a", "a"],
        ["a/b", "c"],
        ["..", "c"],
        ["trainer", "c"],
        ["manifest.json", "c"],
    ] {
        let files = files.map(|name| (name, &b"x"[..]));
        let contents = CheckpointContents { files: &files, ..contents(30, &[], &config) };
        out.line(checkpoints.save(&contents).unwrap_err().to_string());
    }
    out.line(names(run));
}
