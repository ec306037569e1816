//! What is known of a model before any of its weights is read.
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{GENERATION, StoreError, eos_of, ids_in, shapes_fit};
use crate::checkpoint::{self, CheckpointError, LoadOptions, RealFs, newest_described, read_json};
use crate::config::Config;
use crate::tokenizer::Tokenizer;
use crate::{gguf, hf};

/// A model without its weights, and what stands beside them.
#[derive(Debug)]
pub struct Described {
    /// Its shape.
    pub config: Config,
    /// Its tokenizer, where there is one.
    pub tokenizer: Option<Tokenizer>,
    /// The ids that end a text.
    pub eos: Vec<u32>,
}

/// What [`super::open`] opens, without the weights, which are not read. Of files the headers are held against
/// config.json; of a run's newest checkpoint the manifest alone is looked at, and config.json against that.
///
/// # Errors
/// As [`super::open`], but for what is in the tensors.
pub fn describe(path: &Path) -> Result<Described, StoreError> {
    if path.is_file() {
        let gguf::Imported { config, tokenizer, eos, .. } = gguf::describe(path)?;
        return Ok(Described { config, tokenizer, eos });
    }
    let (dir, json) = directory(path)?;
    let (tokenizer, eos) = (tokenizer_beside(&dir)?, eos_of(&dir, &json)?);
    Ok(Described { config: hf::from_json(&json)?, tokenizer, eos })
}

/// The shape alone of what [`describe`] describes.
///
/// # Errors
/// As [`describe`].
pub fn config_of(path: &Path) -> Result<Config, StoreError> {
    match path.is_file() {
        true => gguf::config_of(path),
        false => Ok(hf::from_json(&directory(path)?.1)?),
    }
}

/// The directory of the weights, which for a run is its newest checkpoint's, and its config.json.
fn directory(path: &Path) -> Result<(PathBuf, Value), CheckpointError> {
    if path.join("checkpoints").is_dir() {
        return newest_described(&RealFs, path);
    }
    let options = LoadOptions { shapes: Some(&shapes_fit), ..LoadOptions::default() };
    Ok((path.to_path_buf(), checkpoint::describe(&RealFs, path, &options)?))
}

/// The tokenizer in the directory of a model, where there is one.
pub(super) fn tokenizer_beside(dir: &Path) -> Result<Option<Tokenizer>, StoreError> {
    match dir.join("tokenizer.json").is_file() {
        true => Ok(Some(Tokenizer::load(dir)?)),
        false => Ok(None),
    }
}

/// The tokenizer alone of what [`super::open`] opens, or of a `tokenizer.json` or a directory that holds one.
///
/// # Errors
/// As [`super::open`]; as [`Tokenizer::load`] where there is none.
pub fn tokenizer_of(path: &Path) -> Result<Tokenizer, StoreError> {
    if path.join("checkpoints").is_dir() {
        return tokenizer_in(&newest_described(&RealFs, path)?.0);
    }
    if path.is_file() && gguf::recognises(path) {
        return gguf::tokenizer_of(path);
    }
    tokenizer_in(path)
}

/// The tokenizer of a directory or file, for the ends of text that a `generation_config.json` in it has.
fn tokenizer_in(path: &Path) -> Result<Tokenizer, StoreError> {
    let tokenizer = Tokenizer::load(path)?;
    let generation = path.join(GENERATION);
    Ok(match read_json(&RealFs, &generation) {
        Ok(Some(json)) => tokenizer.with_ends(&ids_in(&generation, &json)?),
        Ok(None) => tokenizer,
        Err(_) if path.is_file() => tokenizer,
        Err(error) => return Err(error.into()),
    })
}
