//! A run that is killed at any instant goes on to the bytes that it would have had.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use xtrain::tensor::rng::{Purpose, uniform_u64};

use crate::cli::Scratch;

const STEPS: u64 = 40;

fn train(dir: &Path, words: &[&str]) -> Child {
    let sizes = "model.dim=16 model.n_layers=1 model.n_heads=2 model.n_kv_heads=1 model.head_dim=8 \
        model.ffn_dim=24 train.context=12 train.batch=3 train.steps=40 train.warmup=4 train.save_every=1 \
        train.eval_every=10 train.sample_every=0 train.eval_tokens=40";
    let sets = sizes.split_whitespace().flat_map(|key| ["--set", key]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtrain"));
    command.current_dir(dir).arg("train").args(sets).args(words).args(["--threads", "1"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Every byte that a run is a function of: weights, moments, record, metrics.
fn bytes(run: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let last = run.join(format!("checkpoints/step_{STEPS:06}"));
    let files =
        ["model.safetensors", "trainer/optimizer.safetensors", "trainer/control.bin", "manifest.json"];
    let mut all: Vec<_> = files.map(|f| (f, fs::read(last.join(f)).unwrap())).into();
    all.push(("metrics.jsonl", fs::read(run.join("metrics.jsonl")).unwrap()));
    all
}

#[test]
fn a_run_killed_at_random_instants_ends_with_the_bytes_of_one_that_was_not() {
    let scratch = Scratch::new("kill");
    let text: String = (0..400).map(|i| format!("line {} of {}\n", i * 7 % 31, i % 13)).collect();
    fs::write(scratch.0.join("text.txt"), text).unwrap();
    let start = |run: &'static str| ["--data", "text.txt", "--run", run];
    assert!(train(&scratch.0, &start("whole")).wait().unwrap().success());
    let want = bytes(&scratch.0.join("whole"));

    let run = scratch.0.join("killed");
    let (mut kills, mut inside_a_save, mut rounds) = (0, 0, 0);
    while kills < 20 || inside_a_save < 5 {
        rounds += 1;
        assert!(rounds <= 400, "{kills} kills, {inside_a_save} inside a save");
        let saved = run.join("checkpoints").is_dir()
            && fs::read_dir(run.join("checkpoints")).unwrap().any(|e| {
                let name = e.unwrap().file_name().into_string().unwrap();
                name.starts_with("step_") && !name.contains('.')
            });
        let mut child = if saved {
            train(&scratch.0, &["--resume", "killed"])
        } else {
            let _ = fs::remove_dir_all(&run);
            train(&scratch.0, &start("killed"))
        };
        let wait = 2 + uniform_u64(11, rounds, 0, Purpose::Speculative) % 60;
        std::thread::sleep(Duration::from_millis(wait));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "round {rounds} ended by itself with {status}");
            // done before it could be killed: begin again
            let _ = fs::remove_dir_all(&run);
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let torn = fs::read_dir(run.join("checkpoints")).is_ok_and(|entries| {
            entries.flatten().any(|e| e.file_name().to_string_lossy().contains(".tmp-"))
        });
        inside_a_save += usize::from(torn);
    }
    let resume = if run.join(format!("checkpoints/step_{STEPS:06}")).is_dir() || run.is_dir() {
        train(&scratch.0, &["--resume", "killed"]).wait().unwrap()
    } else {
        train(&scratch.0, &start("killed")).wait().unwrap()
    };
    assert!(resume.success(), "{resume}");
    println!("killed {kills} times, {inside_a_save} of them inside a save");
    for ((name, got), (_, want)) in bytes(&run).into_iter().zip(want) {
        assert!(got == want, "{name} differs after {kills} kills");
    }
}
