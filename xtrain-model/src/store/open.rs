//! Opening a model for training, export or inference.
use std::path::{Path, PathBuf};

use xtrain_tensor::{Device, Dtype};

use super::files::{ModelDir, ParamLoader, build, load_options};
use crate::checkpoint::{
    LoadOptions, LoadedCheckpoint, RealFs, Refused, TrainerPart, load_weights, newest_good,
};
use crate::gguf::{self, Imported};
use crate::hf;
use crate::model::Model;
use crate::param::{MasterWeights, ParamOptions};
use crate::store_error::{StoreError, found};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A model and its tokenizer.
#[derive(Debug)]
pub struct LoadedModel {
    /// The model.
    pub model: Model,
    /// The tokenizer. `None`: the directory or file contains none that is supported.
    pub tokenizer: Option<Tokenizer>,
    /// Why the tokenizer is not supported. The caller reports it; the model can be used with token ids.
    pub unsupported_tokenizer: Option<TokenizerError>,
    /// The end-of-text ids.
    pub eos: Vec<u32>,
    /// The file or directory. For a run: the checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints of a run that are damaged. The caller reports them.
    pub refused: Vec<Refused>,
}

/// Opens the model in `path`: a run (its newest loadable checkpoint), a checkpoint, a Hugging Face directory or
/// a GGUF file. Keeps the f32 master weights, so the model can be trained and exported.
///
/// # Errors
/// [`StoreError`], naming file and tensor; an unsupported model family.
pub fn open(path: &Path, compute: Dtype, device: &Device) -> Result<LoadedModel, StoreError> {
    open_with(path, &ParamOptions { compute, device, master_weights: MasterWeights::Keep })
}

/// [`open`] for inference only: packs each matrix for products in `compute` while it is read and keeps no f32 master
/// weights. The forward pass is bit-identical. Training or exporting the model returns
/// [`Error::NoMasterWeights`](crate::Error::NoMasterWeights).
///
/// # Errors
/// As [`open`].
pub fn open_for_inference(path: &Path, compute: Dtype, device: &Device) -> Result<LoadedModel, StoreError> {
    open_with(path, &ParamOptions { compute, device, master_weights: MasterWeights::Discard })
}

/// How often an opened checkpoint may be removed by a training run before its tokenizer is read.
const MAX_ATTEMPTS: usize = 16;

fn open_with(path: &Path, params: &ParamOptions<'_>) -> Result<LoadedModel, StoreError> {
    let begin = |name: &str, shape: &[usize]| ParamLoader::begin(params, name, shape);
    if path.is_file() {
        let imported = gguf::read(path, &begin)?;
        let Imported { config, tensors, tokenizer, unsupported_tokenizer, eos, kept_fields } = imported;
        let mut model = build(config, tensors, params.compute)?;
        model.kept_fields = kept_fields;
        let (path, refused) = (path.to_path_buf(), Vec::new());
        return Ok(LoadedModel { model, tokenizer, unsupported_tokenizer, eos, path, refused });
    }
    let options = LoadOptions { trainer: TrainerPart::Verify, ..load_options() };
    let mut attempts = 0;
    loop {
        let (config, tensors, dir, refused) = if path.join("checkpoints").is_dir() {
            let newest = newest_good(&RealFs, path, &options, &begin)?;
            let LoadedCheckpoint { config, tensors, path, .. } = newest.loaded;
            (config, tensors, path, newest.refused)
        } else {
            let weights = load_weights(&RealFs, path, &options, &begin)?;
            (weights.config, weights.tensors, path.to_path_buf(), Vec::new())
        };
        let small_files = || {
            let files = ModelDir::open(&dir)?;
            let tokenizer = found(files.tokenizer())?;
            Ok::<_, StoreError>((tokenizer, files.kept_fields(&config)?, files.eos(&config)?))
        };
        let small_files = small_files();
        attempts += 1;
        if !dir.is_dir() && attempts < MAX_ATTEMPTS {
            continue;
        }
        let ((tokenizer, unsupported_tokenizer), kept_fields, eos) = small_files?;
        let mut model = build(hf::from_json(&config)?, tensors, params.compute)?;
        model.kept_fields = kept_fields;
        return Ok(LoadedModel { model, tokenizer, unsupported_tokenizer, eos, path: dir, refused });
    }
}
