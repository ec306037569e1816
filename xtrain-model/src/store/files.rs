//! The files of a model directory that [`super::open`], [`super::describe`] and [`super::resume`] share.
use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use xtrain_tensor::Dtype;
use xtrain_tensor::ops::Piece;

use crate::checkpoint::{
    Checkpoint, CheckpointError, LoadOptions, RealFs, TensorInfo, TensorSink, decode_json, read_json,
    require_shapes, with_manifest,
};
use crate::config::Config;
use crate::error::Error;
use crate::hf;
use crate::kept_fields::KeptFields;
use crate::model::Model;
use crate::param::{ParamOptions, ParamReader};
use crate::params::Params;
use crate::store_error::StoreError;
use crate::tokenizer::{CONFIG as TOKENIZER_CONFIG, FILE as TOKENIZER, TEMPLATE, Tokenizer};

/// The version of docs/numerics.md that a checkpoint follows.
pub const NUMERICS: &str = "1";

/// The optimizer's states. Each tensor of the optimizer is named `STATE.PARAMETER`.
pub(super) const STATES: [&str; 2] = ["m", "v"];
/// The name of the optimizer in a control record.
pub(super) const OPTIMIZER: &str = "adamw";
pub(super) const GENERATION: &str = "generation_config.json";

/// The small files of a model directory. Those of a checkpoint are verified against its manifest.
pub(super) struct ModelDir<'a> {
    dir: &'a Path,
    /// `None`: the directory has no manifest.
    checkpoint: Option<Checkpoint<'a>>,
}

impl<'a> ModelDir<'a> {
    pub(super) fn open(dir: &'a Path) -> Result<ModelDir<'a>, CheckpointError> {
        Ok(ModelDir { dir, checkpoint: with_manifest(&RealFs, dir)? })
    }

    /// Whether the directory is a checkpoint, whose manifest has the checksum of every file.
    pub(super) fn is_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// The tokenizer. `None`: the directory has no `tokenizer.json`.
    pub(super) fn tokenizer(&self) -> Result<Option<Tokenizer>, StoreError> {
        let file = self.dir.join(TOKENIZER);
        let Some(checkpoint) = &self.checkpoint else {
            return if file.is_file() { Ok(Some(Tokenizer::load(&file)?)) } else { Ok(None) };
        };
        let Some(json) = checkpoint.file(TOKENIZER)? else { return Ok(None) };
        let (config, template) = (checkpoint.file(TOKENIZER_CONFIG)?, checkpoint.file(TEMPLATE)?);
        Ok(Some(Tokenizer::from_files(json, config, template, &file)?))
    }

    /// `generation_config.json`. Null: there is no such file.
    pub(super) fn generation(&self) -> Result<Value, CheckpointError> {
        let file = self.dir.join(GENERATION);
        let json = match &self.checkpoint {
            Some(checkpoint) => {
                checkpoint.file(GENERATION)?.map(|bytes| decode_json(&file, &bytes)).transpose()?
            }
            None => read_json(&RealFs, &file)?,
        };
        Ok(json.unwrap_or(Value::Null))
    }

    /// The end-of-text ids: those of `generation_config.json`, else those of config.json.
    pub(super) fn eos(&self, config: &Value) -> Result<Vec<u32>, CheckpointError> {
        let ids = eos_in(&self.dir.join(GENERATION), &self.generation()?)?;
        if ids.is_empty() { eos_in(&self.dir.join("config.json"), config) } else { Ok(ids) }
    }

    /// The fields of `config` and of `generation_config.json` that no computation reads.
    pub(super) fn kept_fields(&self, config: &Value) -> Result<KeptFields, CheckpointError> {
        Ok(KeptFields::of(config, &self.generation()?))
    }
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

/// The options of every loader: config.json is of a supported family and has the shapes of the weights.
pub(super) fn load_options() -> LoadOptions<'static> {
    LoadOptions { config: Some(&check_config), shapes: Some(&check_shapes), ..LoadOptions::default() }
}

/// Rejects a config that no supported family has.
fn check_config(file: &Path, config: &Value) -> Result<(), CheckpointError> {
    supported(file, config).map(|_| ())
}

fn supported(file: &Path, config: &Value) -> Result<Config, CheckpointError> {
    hf::from_json(config).map_err(|error| CheckpointError::json(file, "", error))
}

/// Compares a config with the tensors of a file before any tensor is allocated.
fn check_shapes(file: &Path, config: &Value, got: &[TensorInfo]) -> Result<(), CheckpointError> {
    let invalid = |error: Error| CheckpointError::json(file.with_file_name("config.json"), "", error);
    let cfg = supported(&file.with_file_name("config.json"), config)?;
    require_shapes(file, &Params::shapes(&cfg).map_err(invalid)?, TensorInfo::shapes(got))
}
