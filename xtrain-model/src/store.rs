//! Models and trainers in directories: what a checkpoint holds of them.
mod described;
#[cfg(test)]
mod every_variant;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde_json::Value;
use xtrain_tensor::ops::Piece;
use xtrain_tensor::{
    Device, Dtype, Tensor,
    faults::{self, Fault},
};

use crate::checkpoint::{
    CheckpointDir, CheckpointError, Control, Cursor, LoadOptions, Loaded, NamedTensor, RealFs, Refused,
    Saved, Sink, Snapshot, TensorInfo, TensorView, TrainerPart, TrainerView, load_weights_into,
    newest_good_into, read_json, require_shapes,
};
use crate::config::Config;
use crate::error::Error;
use crate::export::ExportSource;
use crate::gguf::{self, Imported};
use crate::hf;
use crate::model::Model;
use crate::optim::{AdamW, OptimConfig};
use crate::param::{Form, Masters, Reading};
use crate::params::Params;
use crate::schedule::Schedule;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::trainer::Trainer;

use described::tokenizer_beside;
pub use described::{Described, config_of, describe, tokenizer_of};

/// The version of docs/numerics.md that a checkpoint's numbers follow.
pub const NUMERICS: &str = "1";

const STATES: [&str; 2] = ["m", "v"];
const GENERATION: &str = "generation_config.json";

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
pub struct LoadedModel {
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
pub struct RunState {
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
    pub standing: RunState,
    /// The ids that end a text.
    pub eos: Vec<u32>,
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
    standing: RunState,
) -> Result<Saved, StoreError> {
    let Trainer { model, optimizer, .. } = trainer;
    let eos = tokenizer.eos_ids();
    let named = model.params.iter().map(|p| Ok((p.name(), p.value()?.to_host()?)));
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
    let config = hf::to_json(model.config(), eos)?;
    let generation = serde_json::json!({ "eos_token_id": hf::eos_json(eos) });
    let generation = format!("{generation:#}");
    let mut files: Vec<(&str, &[u8])> = tokenizer.files();
    files.push((GENERATION, generation.as_bytes()));
    let dtype = model.compute().to_string();
    Ok(dir.save(&Snapshot {
        config: &config,
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

/// Opens the model in `path`: a run (its newest good checkpoint), a checkpoint, a Hugging Face directory, or
/// a GGUF file. It can be trained and written: its f32 values stay.
///
/// # Errors
/// [`StoreError`], naming file and tensor; a config of a family that is not served.
pub fn open(path: &Path, compute: Dtype, device: &Device) -> Result<LoadedModel, StoreError> {
    open_as(path, &Form { compute, device, masters: Masters::Keep })
}

/// [`open`] of a model that is only run: each matrix is packed for products in `compute` while it is read, and
/// nothing else of it is kept. The bits of a pass are the same; what would train or write it gives
/// [`Error::NoMasterWeights`].
///
/// # Errors
/// As [`open`].
pub fn open_for_inference(path: &Path, compute: Dtype, device: &Device) -> Result<LoadedModel, StoreError> {
    open_as(path, &Form { compute, device, masters: Masters::Drop })
}

fn open_as(path: &Path, form: &Form<'_>) -> Result<LoadedModel, StoreError> {
    let begin = |name: &str, shape: &[usize]| Kept::begin(form, name, shape);
    if path.is_file() {
        let Imported { config, tensors, tokenizer, eos } = gguf::read_into(path, &begin)?;
        let model = build(config, tensors, form.compute)?;
        return Ok(LoadedModel { model, tokenizer, eos, refused: Vec::new() });
    }
    let options =
        LoadOptions { shapes: Some(&shapes_fit), trainer: TrainerPart::Verify, ..LoadOptions::default() };
    let (config, tensors, dir, refused) = if path.join("checkpoints").is_dir() {
        let newest = newest_good_into(&RealFs, path, &options, &begin)?;
        let Loaded { config, tensors, path, .. } = newest.loaded;
        (config, tensors, path, newest.refused)
    } else {
        let weights = load_weights_into(&RealFs, path, &options, &begin)?;
        (weights.config, weights.tensors, path.to_path_buf(), Vec::new())
    };
    let tokenizer = tokenizer_beside(&dir)?;
    let model = build(hf::from_json(&config)?, tensors, form.compute)?;
    Ok(LoadedModel { model, tokenizer, eos: eos_of(&dir, &config)?, refused })
}

/// Saves a model without a trainer as step 0 of a directory of checkpoints, durably and with checksums.
///
/// # Errors
/// As [`CheckpointDir::save`]; a model that no family has.
pub fn save_model(dir: &CheckpointDir, subject: &ExportSource<'_>) -> Result<Saved, StoreError> {
    let ExportSource { model, tokenizer, eos } = *subject;
    let named = model.params.iter().map(|p| Ok((p.name(), p.value()?.to_host()?)));
    let named: Vec<(&str, Tensor)> = named.collect::<Result<_, Error>>()?;
    let generation = format!("{:#}", serde_json::json!({ "eos_token_id": hf::eos_json(eos) }));
    let mut files: Vec<(&str, &[u8])> = tokenizer.iter().flat_map(|t| t.files()).collect();
    files.push((GENERATION, generation.as_bytes()));
    Ok(dir.save(&Snapshot {
        config: &hf::to_json(model.config(), eos)?,
        numerics: NUMERICS,
        dtype: &model.compute().to_string(),
        step: 0,
        model: &named.iter().map(|(n, t)| view(n, t)).collect::<Result<Vec<_>, _>>()?,
        files: &files,
        trainer: None,
    })?)
}

/// The ids that end a text: those of generation_config.json, or else of config.json.
fn eos_of(dir: &Path, config: &Value) -> Result<Vec<u32>, StoreError> {
    let generation = dir.join(GENERATION);
    let ids = match read_json(&RealFs, &generation)? {
        Some(json) => ids_in(&generation, &json)?,
        None => Vec::new(),
    };
    Ok(if ids.is_empty() { ids_in(&dir.join("config.json"), config)? } else { ids })
}

/// The `eos_token_id` of the JSON in `file`.
fn ids_in(file: &Path, json: &Value) -> Result<Vec<u32>, CheckpointError> {
    hf::eos_ids(json).map_err(|error| CheckpointError::Json { file: file.into(), detail: error.to_string() })
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
    let form = Form { compute, device, masters: Masters::Keep };
    let begin = |name: &str, shape: &[usize]| Kept::begin(&form, name, shape);
    let newest = newest_good_into(&RealFs, run, &options, &begin)?;
    let Loaded { config, tensors, path, trainer, numerics, .. } = newest.loaded;
    let missing = |what: String| StoreError::NotATrainer { path: path.clone(), what };
    if numerics != NUMERICS {
        return Err(missing(format!(
            "its numbers follow version {numerics} of docs/numerics.md, these {NUMERICS}"
        )));
    }
    let state = trainer.ok_or_else(|| missing("it holds a model without a trainer".into()))?;
    let eos = eos_of(&path, &config)?;
    let model = build(hf::from_json(&config)?, tensors, compute)?;
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
            if !faults::on(Fault::ResumeForgetsTheOptimizer) {
                *tensor = Tensor::new(device, &held.shape, held.data).map_err(Error::from)?;
            }
        }
    }
    let Control { step, tokens_seen, data, beta1_power, beta2_power, best_loss, best_step, .. } =
        state.control;
    let mut trainer = Trainer::new(model, optim, schedule)?;
    if !faults::on(Fault::ResumeForgetsTheStep) {
        optimizer.powers = [beta1_power, beta2_power];
        trainer.resume_at(step, tokens_seen);
    }
    trainer.optimizer = optimizer;
    let seed = if faults::on(Fault::ResumeForgetsTheRandomState) { 0 } else { data.seed };
    let standing = RunState { seed, best: best_loss.map(|loss| (loss, best_step)) };
    Ok(Resumed { trainer, standing, eos, path, refused: newest.refused })
}

/// A parameter on its way out of a file. Why one cannot be held is said when all of the file was verified.
struct Kept {
    name: String,
    reading: Result<Reading, Error>,
}

impl Kept {
    fn begin(form: &Form<'_>, name: &str, shape: &[usize]) -> Kept {
        Kept { name: name.into(), reading: Reading::new(form, name, shape) }
    }
}

impl Sink for Kept {
    fn push(&mut self, piece: Piece<'_>) {
        if let Ok(reading) = &mut self.reading {
            reading.push(piece);
        }
    }
}

/// A model of loaded tensors.
fn build(cfg: Config, tensors: Vec<Kept>, compute: Dtype) -> Result<Model, Error> {
    let mut named: HashMap<String, _> = tensors.into_iter().map(|t| (t.name, t.reading)).collect();
    let params = Params::of(&cfg, compute, |name, shape| {
        named.remove(name).unwrap_or_else(|| {
            let (want, got) = (format!("a tensor {shape:?}"), "none".into());
            Err(Error::Parameter { name: name.into(), want, got })
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
