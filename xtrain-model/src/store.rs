//! Models and trainers in directories: what a checkpoint holds of them.
use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde_json::Value;
use xtrain_tensor::{Device, Dtype, Tensor, faults};

use crate::checkpoint::{
    CheckpointDir, CheckpointError, Control, Cursor, LoadOptions, Loaded, NamedTensor, RealFs, Refused,
    Saved, Snapshot, TensorInfo, TensorView, TrainerView, load_weights, newest_good, require_shapes,
};
use crate::config::Config;
use crate::error::Error;
use crate::hf;
use crate::model::Model;
use crate::optim::{AdamW, OptimConfig};
use crate::params::Params;
use crate::schedule::Schedule;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::trainer::Trainer;

/// The version of docs/numerics.md that a checkpoint's numbers follow.
pub const NUMERICS: &str = "1";

const STATES: [&str; 2] = ["m", "v"];

/// Why a model could not be saved or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// A file of the checkpoint.
    Checkpoint(CheckpointError),
    /// The model's config or tensors.
    Model(Error),
    /// The tokenizer.
    Tokenizer(TokenizerError),
    /// A checkpoint without what a resume needs.
    NotATrainer {
        /// The checkpoint.
        path: std::path::PathBuf,
        /// What is missing.
        what: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Checkpoint(e) => e.fmt(f),
            StoreError::Model(e) => e.fmt(f),
            StoreError::Tokenizer(e) => e.fmt(f),
            StoreError::NotATrainer { path, what } => {
                write!(f, "{}: cannot be resumed: {what}", path.display())
            }
        }
    }
}

impl std::error::Error for StoreError {}

impl From<CheckpointError> for StoreError {
    fn from(e: CheckpointError) -> StoreError {
        StoreError::Checkpoint(e)
    }
}

impl From<Error> for StoreError {
    fn from(e: Error) -> StoreError {
        StoreError::Model(e)
    }
}

impl From<TokenizerError> for StoreError {
    fn from(e: TokenizerError) -> StoreError {
        StoreError::Tokenizer(e)
    }
}

/// A model, and the tokenizer that stands beside it.
#[derive(Debug)]
pub struct Opened {
    /// The model.
    pub model: Model,
    /// Its tokenizer, where the directory has one.
    pub tokenizer: Option<Tokenizer>,
    /// The ids that end a text.
    pub eos: Vec<u32>,
    /// Newer checkpoints of a run that were damaged. The caller prints them.
    pub refused: Vec<Refused>,
}

/// What a run says of itself beside its trainer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Standing {
    /// The run's seed.
    pub seed: u64,
    /// The lowest validation loss, and its step.
    pub best: Option<(f64, u64)>,
}

/// A run taken up where its newest good checkpoint left it.
#[derive(Debug)]
pub struct Resumed {
    /// The model and its optimizer.
    pub trainer: Trainer,
    /// What the run said of itself.
    pub standing: Standing,
    /// The checkpoint.
    pub path: std::path::PathBuf,
    /// Newer checkpoints that were damaged. The caller prints them.
    pub refused: Vec<Refused>,
}

/// Saves a trainer as `step_N`, durably; see [`CheckpointDir::save`].
///
/// # Errors
/// As [`CheckpointDir::save`].
pub fn save(
    dir: &CheckpointDir,
    trainer: &Trainer,
    tokenizer: &Tokenizer,
    standing: Standing,
) -> Result<Saved, StoreError> {
    let Trainer { model, optimizer, .. } = trainer;
    if model.windows().iter().any(Option::is_some) {
        let (field, got) = ("sliding_window", format!("{:?}", model.windows()));
        return Err(Error::Config { field, want: "none in a model that is saved", got }.into());
    }
    let eos = tokenizer.eos_ids();
    let named = model.params.iter().map(|p| Ok((p.name(), p.value().to_host()?)));
    let named: Vec<(&str, Tensor)> = named.collect::<Result<_, Error>>()?;
    let mut states: Vec<(String, Tensor)> = Vec::new();
    for (state, tensors) in STATES.iter().zip([&optimizer.m, &optimizer.v]) {
        for ((name, _), t) in named.iter().zip(tensors) {
            states.push((format!("{state}.{name}"), t.to_host().map_err(Error::from)?));
        }
    }
    let (step, seed) = (trainer.step_number(), standing.seed);
    let control = Control {
        step,
        tokens_seen: trainer.tokens(),
        data: Cursor { seed, position: step },
        random: Cursor { seed, position: step },
        beta1_power: optimizer.powers[0],
        beta2_power: optimizer.powers[1],
        optimizer: "adamw".into(),
        optimizer_states: STATES.map(String::from).to_vec(),
        best_loss: standing.best.map(|b| b.0),
        best_step: standing.best.map_or(0, |b| b.1),
    };
    let generation = serde_json::json!({ "eos_token_id": hf::to_json(model.config(), eos)["eos_token_id"] });
    let generation = format!("{generation:#}");
    let mut files: Vec<(&str, &[u8])> = tokenizer.files().to_vec();
    files.push(("generation_config.json", generation.as_bytes()));
    let dtype = model.compute().to_string();
    Ok(dir.save(&Snapshot {
        config: &hf::to_json(model.config(), eos),
        numerics: NUMERICS,
        dtype: &dtype,
        step,
        model: &named.iter().map(|(n, t)| view(n, t)).collect::<Result<Vec<_>, _>>()?,
        files: &files,
        trainer: Some(TrainerView {
            control: &control,
            optimizer: &states.iter().map(|(n, t)| view(n, t)).collect::<Result<Vec<_>, _>>()?,
        }),
    })?)
}

fn view<'a>(name: &'a str, t: &'a Tensor) -> Result<TensorView<'a>, Error> {
    Ok(TensorView { name, shape: t.shape(), data: t.data()? })
}

/// Opens the model in `path`: a run (its newest good checkpoint), a checkpoint, or a Hugging Face
/// directory.
///
/// # Errors
/// [`StoreError`], naming file and tensor; a config of a family that is not served.
pub fn open(path: &Path, compute: Dtype, device: &Device) -> Result<Opened, StoreError> {
    let options = LoadOptions { shapes: Some(&shapes_fit), ..LoadOptions::default() };
    let (config, tensors, dir, refused) = if path.join("checkpoints").is_dir() {
        let newest = newest_good(&RealFs, path, &options)?;
        let Loaded { config, tensors, path, .. } = newest.loaded;
        (config, tensors, path, newest.refused)
    } else {
        let weights = load_weights(&RealFs, path, &options)?;
        (weights.config, weights.tensors, path.to_path_buf(), Vec::new())
    };
    let tokenizer = match dir.join("tokenizer.json").is_file() {
        true => Some(Tokenizer::load(&dir)?),
        false => None,
    };
    let model = build(&config, tensors, compute, device)?;
    Ok(Opened { model, tokenizer, eos: hf::eos_ids(&config), refused })
}

/// The trainer of a run's newest good checkpoint, and what the run said of itself.
///
/// The data is not part of a checkpoint: who resumes has to bring the data of before.
///
/// # Errors
/// As [`open`]; [`StoreError::NotATrainer`] for a checkpoint without optimizer state.
pub fn resume(
    run: &Path,
    (compute, device): (Dtype, &Device),
    (optim, schedule): (OptimConfig, Schedule),
) -> Result<Resumed, StoreError> {
    let options = LoadOptions { shapes: Some(&shapes_fit), ..LoadOptions::default() };
    let newest = newest_good(&RealFs, run, &options)?;
    let Loaded { config, tensors, path, trainer, numerics, .. } = newest.loaded;
    let missing = |what: String| StoreError::NotATrainer { path: path.clone(), what };
    if numerics != NUMERICS {
        return Err(missing(format!(
            "its numbers follow version {numerics} of docs/numerics.md, these {NUMERICS}"
        )));
    }
    let state = trainer.ok_or_else(|| missing("it holds a model without a trainer".into()))?;
    let model = build(&config, tensors, compute, device)?;
    let mut optimizer = AdamW::new(optim, &model.params)?;
    let mut named: HashMap<String, NamedTensor> =
        state.optimizer.into_iter().map(|t| (t.name.clone(), t)).collect();
    let names: Vec<String> = model.params.iter().map(|p| p.name().to_string()).collect();
    for (state, tensors) in STATES.iter().zip([&mut optimizer.m, &mut optimizer.v]) {
        for (name, tensor) in names.iter().zip(tensors) {
            let name = format!("{state}.{name}");
            let held = named.remove(&name).ok_or_else(|| missing(format!("no tensor {name}")))?;
            if held.shape != tensor.shape() {
                return Err(missing(format!("{name} is {:?}, want {:?}", held.shape, tensor.shape())));
            }
            if !faults::on("resume-forgets-the-optimizer") {
                *tensor = Tensor::new(device, &held.shape, held.data).map_err(Error::from)?;
            }
        }
    }
    let Control { step, tokens_seen, data, beta1_power, beta2_power, best_loss, best_step, .. } =
        state.control;
    let mut trainer = Trainer::new(model, optim, schedule)?;
    if !faults::on("resume-forgets-the-step") {
        optimizer.powers = [beta1_power, beta2_power];
        trainer.resume_at(step, tokens_seen);
    }
    trainer.optimizer = optimizer;
    let seed = if faults::on("resume-forgets-the-random-state") { 0 } else { data.seed };
    let standing = Standing { seed, best: best_loss.map(|loss| (loss, best_step)) };
    Ok(Resumed { trainer, standing, path, refused: newest.refused })
}

/// A model of loaded tensors.
fn build(config: &Value, tensors: Vec<NamedTensor>, compute: Dtype, device: &Device) -> Result<Model, Error> {
    let cfg = hf::from_json(config)?;
    let mut named: HashMap<String, Vec<f32>> = tensors.into_iter().map(|t| (t.name, t.data)).collect();
    let params = Params::load(&cfg, compute, device, |name, shape| {
        named.remove(name).ok_or_else(|| Error::Parameter {
            name: name.into(),
            want: format!("a tensor {shape:?}"),
            got: "none".into(),
        })
    })?;
    Model::new(cfg, params)
}

/// Compares a config with the tensors of a file, before any of them is allocated.
fn shapes_fit(file: &Path, config: &Value, got: &[TensorInfo]) -> Result<(), CheckpointError> {
    let refuse = |error: Error| CheckpointError::Json {
        file: file.with_file_name("config.json"),
        detail: error.to_string(),
    };
    let cfg: Config = hf::from_json(config).map_err(refuse)?;
    require_shapes(file, &Params::shapes(&cfg).map_err(refuse)?, got)
}

/// Loads a checkpoint's tokenizer alone.
///
/// # Errors
/// As [`Tokenizer::load`].
pub fn tokenizer_of(run: &Path) -> Result<Tokenizer, StoreError> {
    let newest = newest_good(&RealFs, run, &LoadOptions::default())?;
    Ok(Tokenizer::load(&newest.loaded.path)?)
}
