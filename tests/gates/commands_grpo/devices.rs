//! `--device emulated`: the files of the CPU.
use std::fs;
use std::path::Path;

use super::{finish, grpo, names, scratch, succeeded};
use crate::cli::{Scratch, xtrain};

/// Metrics, rollouts, weights and moments after two steps.
fn files(run: &Path) -> Vec<(String, Vec<u8>)> {
    let rollouts = names(&run.join("rollouts")).into_iter().map(|name| format!("rollouts/{name}"));
    let saved =
        ["model", "trainer/optimizer"].map(|name| format!("checkpoints/step_000002/{name}.safetensors"));
    let all = rollouts.chain(saved).chain(["metrics.jsonl".to_string()]);
    all.map(|name| (name.clone(), fs::read(run.join(&name)).unwrap())).collect()
}

/// Two steps from the weights of the run `base`.
fn two_steps(scratch: &Scratch, device: &str) -> Vec<(String, Vec<u8>)> {
    let keys = ["grpo.steps=2", "grpo.prompts_per_step=2", "grpo.num_generations=3", "grpo.eval_every=0"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let args = ["-c", "c.toml", "--task", "sums", "--init", "base", "--run", device, "--device", device];
    succeeded(&xtrain(&scratch.0, &[&grpo(&args)[..], &sets].concat()));
    files(&scratch.0.join(device))
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn two_steps_on_the_emulator_write_the_files_of_the_cpu() {
    let scratch = scratch("emulated", "");
    finish(
        &scratch,
        "base",
        &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0", "--set", "model.dim=32"],
    );
    let (want, got) = (two_steps(&scratch, "cpu"), two_steps(&scratch, "emulated"));
    assert_eq!(want.len(), 5);
    if let Some(difference) = crate::difference::first_file(&got, &want) {
        panic!("on the emulator: {difference}");
    }
}
