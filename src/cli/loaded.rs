//! The model that a command runs, from a path.
use std::path::{Path, PathBuf};

use super::common::Common;
use super::{CliError, Exit};
use crate::config::{Layer, RunConfig};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, store};
use crate::run::RunDir;
use crate::tensor::{Device, Dtype};
use crate::training;

/// A model, what stands beside it, and the configuration of its run.
#[derive(Debug)]
pub struct Loaded {
    /// Where it was found.
    pub path: PathBuf,
    /// The model.
    pub model: Model,
    /// Its tokenizer, where the directory has one.
    pub tokenizer: Option<Tokenizer>,
    /// The ids that end a text.
    pub eos: Vec<u32>,
    /// What its run was asked to do, where it is a run's.
    pub config: Option<RunConfig>,
}

/// Opens a run (its newest good checkpoint), a checkpoint, a Hugging Face directory or a GGUF file; a bare
/// name is also looked for under runs/. Newer checkpoints that are damaged are warnings on standard error.
/// The model can be run, and neither trained nor written: no f32 value of its matrices is kept.
///
/// # Errors
/// The device, the directory or a file in it.
pub fn open(path: &Path, common: &Common) -> Result<Loaded, CliError> {
    open_by(path, common, store::open_for_inference)
}

/// [`open`] of a model that is trained, written, or what others are held to.
///
/// # Errors
/// As [`open`].
pub(super) fn open_whole(path: &Path, common: &Common) -> Result<Loaded, CliError> {
    open_by(path, common, store::open)
}

/// What [`open`] opens, without its weights, and the type in which they would be held.
///
/// # Errors
/// As [`open`], but for what is in the weights.
pub(super) fn describe(path: &Path, common: &Common) -> Result<(store::Described, Dtype), CliError> {
    let path = find(path)?;
    let mut described = store::describe(&path)?;
    if described.eos.is_empty() {
        described.eos.extend(described.tokenizer.iter().flat_map(|t| t.eos_ids().iter().copied()));
    }
    Ok((described, compute_of(config_of(&path)?.as_ref(), common)))
}

/// The type that was asked for, that of the run, or f32.
fn compute_of(config: Option<&RunConfig>, common: &Common) -> Dtype {
    let dtype = common.dtype.or(config.map(|c| c.train.dtype));
    dtype.map_or(Dtype::F32, training::compute)
}

/// What opens a model in a type on a device.
type Opener = fn(&Path, Dtype, &Device) -> Result<store::LoadedModel, store::StoreError>;

fn open_by(path: &Path, common: &Common, opener: Opener) -> Result<Loaded, CliError> {
    let device = common.open()?;
    let path = find(path)?;
    let config = config_of(&path)?;
    let opened = opener(&path, compute_of(config.as_ref(), common), &device)?;
    opened.refused.iter().for_each(|refused| eprintln!("warning: {refused}"));
    let store::LoadedModel { model, tokenizer, mut eos, .. } = opened;
    if eos.is_empty() {
        eos.extend(tokenizer.iter().flat_map(|t| t.eos_ids().iter().copied()));
    }
    Ok(Loaded { path, model, tokenizer, eos, config })
}

/// The file or directory of a model.
///
/// # Errors
/// There is none.
pub(super) fn find(path: &Path) -> Result<PathBuf, CliError> {
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    match RunDir::open(path) {
        Ok(run) => Ok(run.path().to_path_buf()),
        Err(_) => Err(CliError::new(Exit::Missing, format_args!("{}: no such model", path.display())).hint(
            "want a run, one of its checkpoints, a directory with config.json and weights, or a GGUF file",
        )),
    }
}

/// The configuration of a run, or of the run that a checkpoint belongs to.
fn config_of(path: &Path) -> Result<Option<RunConfig>, CliError> {
    let above = path.parent().filter(|dir| dir.file_name().is_some_and(|name| name == "checkpoints"));
    let runs = [Some(path), above.and_then(Path::parent)];
    let file = runs.into_iter().flatten().map(|run| run.join("config.toml")).find(|file| file.is_file());
    file.map(|file| Ok(RunConfig::load(&[Layer::File(file)])?)).transpose()
}

impl Loaded {
    /// The tokenizer, which `needed_for` needs.
    ///
    /// # Errors
    /// The model has none; `instead` says what else can be done.
    pub fn tokenizer_for(&self, needed_for: &str, instead: &str) -> Result<&Tokenizer, CliError> {
        self.tokenizer.as_ref().ok_or_else(|| {
            let message = format!("{}: no tokenizer.json, which {needed_for} needs", self.path.display());
            CliError::new(Exit::Missing, message).hint(instead)
        })
    }
}
