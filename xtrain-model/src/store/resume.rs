//! Resuming a training run.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Device, Dtype, Tensor};

use super::files::{ModelDir, NUMERICS, OPTIMIZER, ParamLoader, STATES, build, load_options};
use super::save::RunState;
use crate::checkpoint::{Control, Cursor, LoadedCheckpoint, NamedTensor, RealFs, Refused, newest_good};
use crate::error::Error;
use crate::hf;
use crate::optim::{AdamW, OptimConfig};
use crate::param::{MasterWeights, ParamOptions};
use crate::schedule::Schedule;
use crate::store_error::StoreError;
use crate::trainer::Trainer;

/// A training run restored from its newest loadable checkpoint.
#[derive(Debug)]
pub struct Resumed {
    /// The model and its optimizer.
    pub trainer: Trainer,
    /// The state of the run.
    pub run_state: RunState,
    /// The end-of-text ids.
    pub eos: Vec<u32>,
    /// The checkpoint directory.
    pub path: PathBuf,
    /// Newer checkpoints that are damaged. The caller reports them.
    pub refused: Vec<Refused>,
}

/// Rejects a control record of another optimizer, and one whose streams are at another position than its step: a resume
/// continues all of them at the step.
fn require_own(control: &Control) -> Result<(), String> {
    let Control { step, data, random, optimizer, .. } = control;
    if optimizer != OPTIMIZER {
        return Err(format!("control record: optimizer: expected {OPTIMIZER}, found {optimizer:?}"));
    }
    let want = Cursor { seed: data.seed, position: *step };
    for (field, found) in [("data", data), ("random", random)] {
        if *found != want {
            return Err(format!("control record: {field}: expected {want:?}, found {found:?}"));
        }
    }
    Ok(())
}

/// Restores the trainer and the run state of a run's newest loadable checkpoint.
///
/// A checkpoint does not contain the data: the caller provides the same data as before.
///
/// # Errors
/// As [`super::open`]; [`StoreError::NotATrainer`] for a checkpoint without optimizer state.
pub fn resume(
    run: &Path,
    compute: Dtype,
    device: &Device,
    optim: OptimConfig,
    schedule: Schedule,
) -> Result<Resumed, StoreError> {
    let params = ParamOptions { compute, device, master_weights: MasterWeights::Keep };
    let begin = |name: &str, shape: &[usize]| ParamLoader::begin(&params, name, shape);
    let newest = newest_good(&RealFs, run, &load_options(), &begin)?;
    let LoadedCheckpoint { config, tensors, path, trainer, numerics, .. } = newest.loaded;
    let not_resumable = |what: String| StoreError::NotATrainer { path: path.clone(), what };
    if numerics != NUMERICS {
        return Err(not_resumable(format!(
            "it follows version {numerics} of docs/numerics.md, this program version {NUMERICS}"
        )));
    }
    let state =
        trainer.ok_or_else(|| not_resumable("the checkpoint holds a model without a trainer".into()))?;
    require_own(&state.control).map_err(not_resumable)?;
    let files = ModelDir::open(&path)?;
    let (eos, kept_fields) = (files.eos(&config)?, files.kept_fields(&config)?);
    let mut model = build(hf::from_json(&config)?, tensors, compute)?;
    model.kept_fields = kept_fields;
    let mut optimizer = AdamW::new(optim, &model.params)?;
    let mut named: HashMap<String, NamedTensor> =
        state.optimizer.into_iter().map(|t| (t.name.clone(), t)).collect();
    let names: Vec<String> = model.params.iter().map(|p| p.name().to_string()).collect();
    for (state, tensors) in STATES.iter().zip([&mut optimizer.m, &mut optimizer.v]) {
        for (name, tensor) in names.iter().zip(tensors) {
            let name = format!("{state}.{name}");
            let saved =
                named.remove(&name).ok_or_else(|| not_resumable(format!("tensor {name} is missing")))?;
            if saved.shape != tensor.shape() {
                let (want, got) = (tensor.shape(), saved.shape);
                return Err(not_resumable(format!("tensor {name}: expected shape {want:?}, found {got:?}")));
            }
            if !faults::on(Fault::ResumeLosesOptimizerState) {
                *tensor = Tensor::new(device, &saved.shape, saved.data).map_err(Error::from)?;
            }
        }
    }
    let Control { step, tokens_seen, data, beta1_power, beta2_power, best_loss, best_step, .. } =
        state.control;
    let mut trainer = Trainer::new(model, optim, schedule)?;
    if !faults::on(Fault::ResumeLosesStep) {
        optimizer.powers = [beta1_power, beta2_power];
        trainer.resume_at(step, tokens_seen);
    }
    trainer.optimizer = optimizer;
    let seed = if faults::on(Fault::ResumeLosesRngState) { 0 } else { data.seed };
    let best = best_loss.filter(|_| !faults::on(Fault::ResumeForgetsBestLoss));
    let run_state = RunState { seed, best: best.map(|loss| (loss, best_step)) };
    Ok(Resumed { trainer, run_state, eos, path, refused: newest.refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_record_has_the_optimizer_and_the_positions_of_a_resume() {
        let at = Cursor { seed: 3, position: 7 };
        let own = Control { step: 7, data: at, random: at, optimizer: "adamw".into(), ..Control::default() };
        assert_eq!(require_own(&own), Ok(()));
        let want = "expected Cursor { seed: 3, position: 7 }, found Cursor";
        for (changed, says) in [
            (Control { optimizer: "sgd".into(), ..own.clone() }, "optimizer: expected adamw, found \"sgd\""),
            (Control { data: Cursor { position: 6, ..at }, ..own.clone() }, &format!("data: {want}")),
            (Control { random: Cursor { position: 6, ..at }, ..own.clone() }, &format!("random: {want}")),
            (Control { random: Cursor { seed: 4, ..at }, ..own.clone() }, &format!("random: {want}")),
        ] {
            let error = require_own(&changed).unwrap_err();
            assert!(error.starts_with(&format!("control record: {says}")), "{error}");
        }
    }
}
