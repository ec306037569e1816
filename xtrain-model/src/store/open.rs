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
    let weights = || {
        if path.join("checkpoints").is_dir() {
            let newest = newest_good(&RealFs, path, &options, &begin)?;
            let LoadedCheckpoint { config, tensors, path, .. } = newest.loaded;
            return Ok((path, (config, tensors, newest.refused)));
        }
        let weights = load_weights(&RealFs, path, &options, &begin)?;
        Ok((path.to_path_buf(), (weights.config, weights.tensors, Vec::new())))
    };
    let ((path, (config, tensors, refused)), small_files) = read_present(weights, |(dir, (config, ..))| {
        let files = ModelDir::open(dir)?;
        let tokenizer = found(files.tokenizer())?;
        Ok((tokenizer, files.kept_fields(config)?, files.eos(config)?))
    })?;
    let ((tokenizer, unsupported_tokenizer), kept_fields, eos) = small_files;
    let mut model = build(hf::from_json(&config)?, tensors, params.compute)?;
    model.kept_fields = kept_fields;
    Ok(LoadedModel { model, tokenizer, unsupported_tokenizer, eos, path, refused })
}

/// Reads weights, which return their directory, and the small files of that directory. If a training run has removed
/// the directory before both were read, it reads both again, [`MAX_ATTEMPTS`] times at most.
fn read_present<W, S>(
    weights: impl Fn() -> Result<(PathBuf, W), StoreError>,
    small_files: impl Fn(&(PathBuf, W)) -> Result<S, StoreError>,
) -> Result<((PathBuf, W), S), StoreError> {
    let mut attempts = 0;
    loop {
        let weights = weights()?;
        let small_files = small_files(&weights);
        attempts += 1;
        if weights.0.is_dir() || attempts == MAX_ATTEMPTS {
            return Ok((weights, small_files?));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::Error;

    /// Reads a directory that is removed `removals` times before its small files are read, and small files that are
    /// damaged if `damaged`. Returns how often the weights were read, and the outcome.
    fn read(removals: usize, damaged: bool) -> (usize, Result<usize, String>) {
        let reads = Cell::new(0);
        let weights = || {
            reads.set(reads.get() + 1);
            let removed = reads.get() <= removals;
            let dir =
                if removed { PathBuf::from("removed") } else { PathBuf::from(env!("CARGO_MANIFEST_DIR")) };
            Ok((dir, reads.get()))
        };
        let small_files = |(dir, read): &(PathBuf, usize)| {
            if dir.is_dir() && !damaged {
                return Ok(*read);
            }
            Err(Error::Config { field: "eos", want: "an id", got: dir.display().to_string() }.into())
        };
        let found = read_present(weights, small_files).map(|(_, read)| read);
        (reads.get(), found.map_err(|error| error.to_string()))
    }

    #[test]
    fn a_checkpoint_that_is_removed_while_it_is_opened_is_read_again() {
        for removals in [0, 1, MAX_ATTEMPTS - 1] {
            assert_eq!(read(removals, false), (removals + 1, Ok(removals + 1)));
        }
        let (reads, found) = read(MAX_ATTEMPTS, false);
        assert_eq!(reads, MAX_ATTEMPTS);
        assert!(found.unwrap_err().contains("removed"));
        // damaged files of a directory that exists are not read again
        let (reads, found) = read(1, true);
        assert_eq!(reads, 2);
        assert!(found.is_err());
    }
}
