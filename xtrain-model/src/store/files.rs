//! The files of a model directory that [`super::open`], [`super::describe`] and [`super::resume`] share.
use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use xtrain_tensor::Dtype;
use xtrain_tensor::ops::Piece;

use crate::checkpoint::{CheckpointError, RealFs, TensorInfo, TensorSink, read_json, require_shapes};
use crate::config::Config;
use crate::error::Error;
use crate::hf;
use crate::model::Model;
use crate::param::{ParamOptions, ParamReader};
use crate::params::Params;
use crate::store_error::StoreError;
use crate::tokenizer::Tokenizer;

/// The version of docs/numerics.md that a checkpoint follows.
pub const NUMERICS: &str = "1";

/// The optimizer's states. Each tensor of the optimizer is named `STATE.PARAMETER`.
pub(super) const STATES: [&str; 2] = ["m", "v"];
pub(super) const GENERATION: &str = "generation_config.json";

/// The tokenizer in a model directory. `None`: the directory has no `tokenizer.json`.
pub(super) fn tokenizer_in_dir(dir: &Path) -> Result<Option<Tokenizer>, StoreError> {
    if dir.join("tokenizer.json").is_file() { Ok(Some(Tokenizer::load(dir)?)) } else { Ok(None) }
}

/// The end-of-text ids: those of `generation_config.json`, else those of config.json.
pub(super) fn eos_of(dir: &Path, config: &Value) -> Result<Vec<u32>, StoreError> {
    let generation = dir.join(GENERATION);
    let ids = match read_json(&RealFs, &generation)? {
        Some(json) => eos_in(&generation, &json)?,
        None => Vec::new(),
    };
    Ok(if ids.is_empty() { eos_in(&dir.join("config.json"), config)? } else { ids })
}

/// The `eos_token_id` of the JSON in `file`.
pub(super) fn eos_in(file: &Path, json: &Value) -> Result<Vec<u32>, CheckpointError> {
    hf::eos_ids(json).map_err(|error| CheckpointError::json(file, "", error))
}

/// A parameter that is being read from a file. An error is reported after the whole file has been verified.
pub(super) struct ParamLoader {
    name: String,
    reader: Result<ParamReader, Error>,
}

impl ParamLoader {
    pub(super) fn begin(options: &ParamOptions<'_>, name: &str, shape: &[usize]) -> ParamLoader {
        ParamLoader { name: name.into(), reader: ParamReader::new(options, name, shape) }
    }
}

impl TensorSink for ParamLoader {
    fn push(&mut self, piece: Piece<'_>) {
        if let Ok(reader) = &mut self.reader {
            reader.push(piece);
        }
    }
}

/// Builds a model from loaded tensors.
pub(super) fn build(cfg: Config, tensors: Vec<ParamLoader>, compute: Dtype) -> Result<Model, Error> {
    let mut named: HashMap<String, _> = tensors.into_iter().map(|t| (t.name, t.reader)).collect();
    let params = Params::from_readers(&cfg, compute, |name, shape| {
        named.remove(name).unwrap_or_else(|| {
            let (want, got) = (format!("a tensor of shape {shape:?}"), "none".into());
            Err(Error::Parameter { name: name.into(), want, got })
        })
    })?;
    Model::new(cfg, params)
}

/// Compares a config with the tensors of a file before any tensor is allocated.
pub(super) fn check_shapes(file: &Path, config: &Value, got: &[TensorInfo]) -> Result<(), CheckpointError> {
    let invalid = |error: Error| CheckpointError::json(file.with_file_name("config.json"), "", error);
    let cfg: Config = hf::from_json(config).map_err(invalid)?;
    require_shapes(file, &Params::shapes(&cfg).map_err(invalid)?, TensorInfo::shapes(got))
}
