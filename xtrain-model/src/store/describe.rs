//! The config and the tokenizer of a model, without its weights.
use std::path::{Path, PathBuf};

use xtrain_tensor::faults::{self, Fault};

use super::files::{GENERATION, ModelDir, eos_in, load_options};
use crate::checkpoint::{
    self, CheckpointError, DescribedCheckpoint, RealFs, Refused, newest_described, read_json,
};
use crate::config::Config;
use crate::quant::Quant;
use crate::store_error::{StoreError, found};
use crate::tokenizer::{FILE as TOKENIZER, Tokenizer, TokenizerError};
use crate::{gguf, hf};

/// A model without its weights.
#[derive(Debug)]
pub struct Described {
    /// The config.
    pub config: Config,
    /// The type of each parameter tensor of a GGUF file, in walk order. Empty: the model is no GGUF file.
    pub types: Vec<Quant>,
    /// The tokenizer. `None`: the directory or file contains none that is supported.
    pub tokenizer: Option<Tokenizer>,
    /// Why the tokenizer is not supported.
    pub unsupported_tokenizer: Option<TokenizerError>,
    /// The end-of-text ids.
    pub eos: Vec<u32>,
    /// The file or directory. For a run: the checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints of a run with a damaged manifest or config.json. The caller reports them.
    pub refused: Vec<Refused>,
}

/// Describes what [`super::open`] opens without reading the weights. Headers of weight files are checked against
/// config.json. For a run, only the manifest of the newest checkpoint is read, and config.json is checked against it.
///
/// # Errors
/// As [`super::open`], except for errors in the tensors.
pub fn describe(path: &Path) -> Result<Described, StoreError> {
    if path.is_file() {
        let described = gguf::describe(path)?;
        let gguf::Imported { config, tensors: types, tokenizer, unsupported_tokenizer, eos, .. } = described;
        let (path, refused) = (path.to_path_buf(), Vec::new());
        return Ok(Described { config, types, tokenizer, unsupported_tokenizer, eos, path, refused });
    }
    let found = directory(path)?;
    let dir = found.path.clone();
    let described = describe_dir(found);
    // A training run may have removed the checkpoint; a newer one takes its place.
    if dir.is_dir() { described } else { describe_dir(directory(path)?) }
}

fn describe_dir(checkpoint: DescribedCheckpoint) -> Result<Described, StoreError> {
    let DescribedCheckpoint { path, config, refused } = checkpoint;
    let files = ModelDir::open(&path)?;
    let (tokenizer, unsupported_tokenizer) = found(files.tokenizer())?;
    let (eos, config) = (files.eos(&config)?, hf::from_json(&config)?);
    let types = Vec::new();
    Ok(Described { config, types, tokenizer, unsupported_tokenizer, eos, path, refused })
}

/// The config alone. See [`describe`].
///
/// # Errors
/// As [`describe`].
pub fn config_of(path: &Path) -> Result<Config, StoreError> {
    if path.is_file() { gguf::config_of(path) } else { Ok(hf::from_json(&directory(path)?.config)?) }
}

/// The directory of the weights and its config.json. For a run: the newest checkpoint.
fn directory(path: &Path) -> Result<DescribedCheckpoint, CheckpointError> {
    if path.join("checkpoints").is_dir() {
        return newest_described(&RealFs, path);
    }
    let config = checkpoint::describe(&RealFs, path, &load_options())?;
    Ok(DescribedCheckpoint { path: path.to_path_buf(), config, refused: Vec::new() })
}

/// The tokenizer of a model that [`super::open`] opens, of a `tokenizer.json`, or of a directory that contains one.
///
/// # Errors
/// As [`super::open`]; as [`Tokenizer::load`] for a path without a tokenizer.
pub fn tokenizer_of(path: &Path) -> Result<Tokenizer, StoreError> {
    if path.join("checkpoints").is_dir() {
        return tokenizer_with_eos(&newest_described(&RealFs, path)?.path);
    }
    if path.is_file() && gguf::recognises(path) {
        return gguf::tokenizer_of(path);
    }
    tokenizer_with_eos(path)
}

/// The tokenizer of a directory or file, with the end-of-text ids of the model in the directory.
fn tokenizer_with_eos(path: &Path) -> Result<Tokenizer, StoreError> {
    if path.is_file() && path.file_name().is_none_or(|name| name != TOKENIZER) {
        return Ok(Tokenizer::load(path)?);
    }
    let dir = if path.is_file() { path.parent().unwrap_or(Path::new("")) } else { path };
    let files = ModelDir::open(dir)?;
    // a directory without a tokenizer: the error of `load`
    let tokenizer = files.tokenizer()?.map_or_else(|| Tokenizer::load(path), Ok)?;
    let generation = match files.generation() {
        Ok(generation) => generation,
        // next to a tokenizer.json may be any file of this name
        Err(_) if path.is_file() => return Ok(tokenizer),
        Err(error) => return Err(error.into()),
    };
    let mut eos = eos_in(&dir.join(GENERATION), &generation)?;
    if eos.is_empty() && !faults::on(Fault::EndTokensOfConfigIgnored) {
        // an invalid config.json is reported when the model is opened
        let config = read_json(&RealFs, &dir.join("config.json")).ok().flatten();
        eos = config.and_then(|config| hf::eos_ids(&config).ok()).unwrap_or_default();
    }
    Ok(tokenizer.with_eos_ids(&eos))
}
