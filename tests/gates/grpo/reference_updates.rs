//! A reference model that is updated: its weights after an update, and a run that is resumed after one.
use std::path::Path;

use xtrain::model::store;
use xtrain::tensor::{Device, Dtype};

use super::{Compared, Scratch, Setup, compare, config, files, run};

const STEPS: u64 = 6;
const EVERY: u64 = 2;
const ALPHA: f64 = 0.3;

const KEYS: [&str; 6] = [
    "grpo.beta=0.1",
    "grpo.steps=6",
    "grpo.ref_model_sync_steps=2",
    "grpo.ref_model_mixup_alpha=0.3",
    "grpo.eval_every=0",
    "grpo.keep=10",
];

/// All weights of the checkpoint of `step`.
fn weights(run: &Path, step: u64) -> Vec<f32> {
    let path = run.join(format!("checkpoints/step_{step:06}"));
    let model = store::open(&path, Dtype::F32, &Device::cpu()).unwrap().model;
    model.params.iter().flat_map(|param| param.value().unwrap().to_vec::<f32>().unwrap()).collect()
}

/// Checks every reference model of a run against the one before it. Returns the number of weights.
fn check_updates(run: &Path) -> Result<usize, String> {
    let (keep, add) = ((1.0 - ALPHA) as f32, ALPHA as f32);
    let (mut compared, mut before) = (0, weights(&run.join("reference"), 0));
    for step in 1..=STEPS {
        let (after, current) = (weights(&run.join("reference"), step), weights(run, step));
        let want = |at: usize| match step % EVERY {
            0 => before[at] * keep + current[at] * add,
            _ => before[at],
        };
        if let Some(at) = (0..after.len()).find(|&at| after[at].to_bits() != want(at).to_bits()) {
            let (found, want) = (after[at], want(at));
            return Err(format!(
                "gate grpo, seed 0: reference model of step {step}: weight {at} is {found}, expected {want}"
            ));
        }
        compared += after.len();
        before = after;
    }
    Ok(compared)
}

/// The whole gate. Returns the number of compared weights and bytes.
pub(crate) fn over() -> Result<usize, String> {
    let config = config(&KEYS);
    let start = |name: &str, stops: &[u64]| -> Result<(Scratch, Compared), String> {
        let dir = Scratch::new(name);
        let setup = Setup { stops: stops.to_vec(), ..Setup::threads(2) };
        let compared = run(&config, &setup, &dir.0);
        Ok((dir, compared.map_err(|error| format!("gate grpo, seed 0: {error}"))?))
    };
    let (whole, compared) = start("reference", &[])?;
    assert_eq!(compared.steps, STEPS);
    let weights = check_updates(&whole.0)?;
    let (stopped, _) = start("reference-stops", &[EVERY, 2 * EVERY + 1])?;
    Ok(weights + compare("resumed after an update", &files(&whole.0), &files(&stopped.0))?)
}

#[test]
fn a_reference_model_is_updated_by_its_formula_and_a_resume_keeps_it() {
    let compared = over().unwrap_or_else(|difference| panic!("{difference}"));
    println!("reference model: {compared} weights and bytes compared, 0 differ");
}
