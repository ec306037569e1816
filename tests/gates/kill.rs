//! A run that is killed at any instant resumes bit-identically.
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use xtrain::tensor::rng::{Purpose, uniform_u64};
use xtrain::tensor::testing::times;

use crate::cli::{Scratch, program};

/// Starts a small run of `steps` steps in its own process.
pub(crate) fn train(dir: &Path, steps: u64, words: &[&str]) -> Child {
    let sizes = format!(
        "model.dim=16 model.n_layers=1 model.n_heads=2 model.n_kv_heads=1 model.head_dim=8 \
         model.ffn_dim=24 train.context=12 train.batch=3 train.steps={steps} train.warmup=4 \
         train.sample_every=0 train.eval_every=10 train.eval_tokens=40"
    );
    let sets = sizes.split_whitespace().flat_map(|key| ["--set", key]);
    let mut command = program();
    command.current_dir(dir).arg("train").args(sets).args(words).args(["--threads", "1"]);
    #[cfg(unix)]
    crate::cli::in_terminal(&mut command);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Writes a text to train on.
pub(crate) fn write_text(dir: &Path) {
    let text: String = (0..400).map(|i| format!("line {} of {}\n", i * 7 % 31, i % 13)).collect();
    fs::write(dir.join("text.txt"), text).unwrap();
}

/// The files of a run that must be bit-identical after `steps` steps: weights, moments, control record, metrics.
pub(crate) fn bytes(run: &Path, steps: u64) -> Vec<(&'static str, Vec<u8>)> {
    let last = run.join(format!("checkpoints/step_{steps:06}"));
    let files =
        ["model.safetensors", "trainer/optimizer.safetensors", "trainer/control.bin", "manifest.json"];
    let mut all: Vec<_> = files.map(|f| (f, fs::read(last.join(f)).unwrap())).into();
    all.push(("metrics.jsonl", fs::read(run.join("metrics.jsonl")).unwrap()));
    all
}

/// The names under `checkpoints`.
pub(crate) fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The unfinished save of a process. Unfinished saves of earlier processes may also exist.
pub(crate) fn unfinished_save(process: u32, run: &Path) -> Option<String> {
    let own = format!(".tmp-{process}");
    checkpoints(run).into_iter().find(|name| name.ends_with(&own))
}

/// Waits until a process is inside its save number `n`, or has ended.
fn await_saves(child: &mut Child, run: &Path, n: u64) {
    let (mut seen, mut last) = (0, None);
    while child.try_wait().unwrap().is_none() {
        let now = unfinished_save(child.id(), run);
        if now.is_some() && now != last {
            seen += 1;
            last = now;
        }
        if seen == n {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_run_killed_at_random_instants_ends_with_the_bytes_of_an_uninterrupted_run() {
    const STEPS: u64 = 40;
    let (min_kills, min_inside) = (times(20, 200), times(5, 50));
    let scratch = Scratch::new("kill");
    write_text(&scratch.0);
    let begin = ["--data", "text.txt", "--set", "train.save_every=1", "--run"];
    let start = |run: &'static str| train(&scratch.0, STEPS, &[&begin[..], &[run]].concat());
    assert!(start("whole").wait().unwrap().success());
    let want = bytes(&scratch.0.join("whole"), STEPS);

    let run = scratch.0.join("killed");
    let start_or_resume = || {
        if run.join("config.toml").is_file() {
            return train(&scratch.0, STEPS, &["--resume", "killed", "--set", "train.save_every=1"]);
        }
        let _ = fs::remove_dir_all(&run);
        start("killed")
    };
    let (mut kills, mut inside_a_save, mut rounds) = (0, 0, 0);
    while kills < min_kills || inside_a_save < min_inside {
        rounds += 1;
        assert!(rounds <= 20 * min_kills, "{kills} kills, {inside_a_save} inside a save");
        let mut child = start_or_resume();
        // alternating: at any instant, and inside one of the first saves
        let drawn = uniform_u64(11, rounds, 0, Purpose::Prompts);
        if rounds % 2 == 0 {
            std::thread::sleep(Duration::from_millis(2 + drawn % 60));
        } else {
            await_saves(&mut child, &run, 1 + drawn % 3);
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "round {rounds} exited with {status}");
            // finished before it was killed: start again
            fs::remove_dir_all(&run).unwrap();
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        inside_a_save += u64::from(unfinished_save(child.id(), &run).is_some());
    }
    assert!(start_or_resume().wait().unwrap().success());
    println!("kill: {kills} kills, {inside_a_save} of them inside a save");
    if let Some(difference) = crate::difference::first_file(&bytes(&run, STEPS), &want) {
        panic!("after {kills} kills, seed 11: {difference}");
    }
}
