//! Saving a trainer or a model as a checkpoint.
use xtrain_tensor::Tensor;

use super::files::{GENERATION, NUMERICS, OPTIMIZER, STATES};
use crate::checkpoint::{
    CheckpointContents, CheckpointDir, Control, Cursor, SavedCheckpoint, TensorView, TrainerView,
};
use crate::error::Error;
use crate::export_source::ExportSource;
use crate::hf;
use crate::json::sorted;
use crate::param::Param;
use crate::store_error::StoreError;
use crate::tokenizer::Tokenizer;
use crate::trainer::Trainer;

/// The state of a training run in addition to its trainer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RunState {
    /// The seed of the run.
    pub seed: u64,
    /// The lowest validation loss and its step. `None`: not evaluated yet.
    pub best: Option<(f64, u64)>,
}

/// Saves a trainer durably as `step_N`, with its tokenizer (`None`: it has none) and further files of the run, by name
/// and content. See [`CheckpointDir::save`].
///
/// # Errors
/// As [`CheckpointDir::save`]; a trainer that has joined processes and not left them; a tokenizer of which an end-of-text
/// token is outside the vocabulary of the model.
pub fn save<'a>(
    dir: &CheckpointDir,
    trainer: &Trainer,
    tokenizer: impl Into<Option<&'a Tokenizer>>,
    run_state: RunState,
    run_files: &[(&str, &[u8])],
) -> Result<SavedCheckpoint, StoreError> {
    if trainer.is_joined() {
        let want = "a trainer that has left its processes".into();
        return Err(Error::Processes { want, got: "one that has joined them".into() }.into());
    }
    let Trainer { model, optimizer, .. } = trainer;
    let mut states: Vec<(String, Tensor)> = Vec::new();
    for (state, tensors) in STATES.iter().zip([&optimizer.m, &optimizer.v]) {
        for (param, t) in model.params.iter().zip(tensors) {
            states.push((format!("{state}.{}", param.name()), t.to_host().map_err(Error::from)?));
        }
    }
    let (step, seed) = (trainer.step_number(), run_state.seed);
    let control = Control {
        step,
        tokens_seen: trainer.target_tokens(),
        data: Cursor { seed, position: step },
        random: Cursor { seed, position: step },
        beta1_power: optimizer.powers[0],
        beta2_power: optimizer.powers[1],
        optimizer: OPTIMIZER.into(),
        optimizer_states: STATES.map(String::from).to_vec(),
        best_loss: run_state.best.map(|(loss, _)| loss),
        best_step: run_state.best.map_or(0, |(_, step)| step),
    };
    let tokenizer = tokenizer.into();
    let (eos, vocab) = (tokenizer.map_or(&[][..], Tokenizer::eos_ids), model.config().vocab);
    if let Some(found) = eos.iter().find(|id| **id as usize >= vocab) {
        let want = "a tokenizer whose end-of-text tokens are in the vocabulary of the model";
        let got = format!("token {found} and a vocabulary of {vocab}");
        return Err(Error::from(xtrain_tensor::Error::Argument { op: "save", want, got }).into());
    }
    let source = ExportSource { model, tokenizer, eos };
    let trainer = TrainerView { control: &control, optimizer: &views(&states)? };
    save_source(dir, &source, step, Some(trainer), run_files)
}

/// Saves a model without a trainer, durably and with checksums, as `step` of a directory of checkpoints.
///
/// # Errors
/// As [`CheckpointDir::save`]; a model that no supported family can represent.
pub fn save_model(
    dir: &CheckpointDir,
    source: &ExportSource<'_>,
    step: u64,
) -> Result<SavedCheckpoint, StoreError> {
    save_source(dir, source, step, None, &[])
}

fn save_source(
    dir: &CheckpointDir,
    source: &ExportSource<'_>,
    step: u64,
    trainer: Option<TrainerView<'_>>,
    run_files: &[(&str, &[u8])],
) -> Result<SavedCheckpoint, StoreError> {
    let ExportSource { model, tokenizer, eos } = *source;
    let mut config = hf::to_json(model.config(), eos)?;
    model.kept_fields.add_to(&mut config);
    let config = sorted(config);
    let generation = format!("{:#}", sorted(model.kept_fields.generation(hf::eos_json(eos))));
    let mut files: Vec<(&str, &[u8])> = tokenizer.iter().flat_map(|t| t.files()).collect();
    files.push((GENERATION, generation.as_bytes()));
    files.extend(run_files);
    Ok(dir.save(&CheckpointContents {
        config: &config,
        numerics: NUMERICS,
        dtype: &model.compute().to_string(),
        step,
        model: &views(&host_tensors(model.params.iter())?)?,
        files: &files,
        trainer,
    })?)
}

/// The names and master weights of `params`, copied to the host if necessary.
pub(crate) fn host_tensors<'a>(
    params: impl Iterator<Item = &'a Param>,
) -> Result<Vec<(&'a str, Tensor)>, Error> {
    params.map(|p| Ok((p.name(), p.value()?.to_host()?))).collect()
}

/// Views of named tensors on the host.
pub(crate) fn views<N: AsRef<str>>(named: &[(N, Tensor)]) -> Result<Vec<TensorView<'_>>, Error> {
    named
        .iter()
        .map(|(n, t)| Ok(TensorView { name: n.as_ref(), shape: t.shape(), data: t.data()? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xtrain_tensor::{Device, Dtype};

    use super::*;
    use crate::checkpoint::RealFs;
    use crate::config::Config;
    use crate::model::Model;
    use crate::optim::OptimConfig;
    use crate::schedule::Schedule;

    /// The result of saving a trainer of a model with `vocab` tokens.
    fn saved(vocab: usize, tokenizer: Option<&Tokenizer>) -> Result<bool, String> {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), dir.path(), 2).unwrap();
        let model = Model::init(&Config { vocab, ..Config::tiny() }, Dtype::F32, &Device::cpu(), 0).unwrap();
        let trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
        let saved = save(&checkpoints, &trainer, tokenizer, RunState::default(), &[]);
        saved.map(|saved| saved.path.join("tokenizer.json").exists()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_end_of_text_tokens_are_in_the_vocabulary() {
        let bytes = Tokenizer::byte();
        assert_eq!(saved(257, Some(&bytes)), Ok(true));
        assert_eq!(saved(264, Some(&bytes)), Ok(true));
        assert_eq!(saved(16, None), Ok(false));
        let error = saved(256, Some(&bytes)).unwrap_err();
        assert!(error.ends_with("found token 256 and a vocabulary of 256"), "{error}");
    }
}
