//! Reading every byte of a model to verify it.
use std::path::{Path, PathBuf};

use xtrain_tensor::ops::Piece;

use super::files::{ModelDir, load_options};
use crate::checkpoint::{
    LoadOptions, NonFinite, RealFs, Refused, TensorSink, TrainerPart, load, load_weights, newest_good,
};
use crate::gguf;
use crate::store_error::StoreError;

/// What [`verify`] found in the weights of a model.
#[derive(Debug, Default)]
pub struct WeightCounts {
    /// The number of tensors.
    pub tensors: u64,
    /// The number of weights.
    pub weights: u64,
    /// The number of weights that are NaN.
    pub nan: u64,
    /// The number of weights that are infinite.
    pub infinite: u64,
    /// The name of the first tensor with a weight that is not finite.
    pub first_non_finite: Option<String>,
    /// The file or directory. For a run: the checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints of a run that are damaged. The caller reports them.
    pub refused: Vec<Refused>,
}

/// Reads all weights of the model in `path`, and all other files of a checkpoint, and verifies every checksum. Counts
/// the weights that are not finite, with which [`super::open`] rejects a model.
///
/// # Errors
/// As [`super::open`], except for weights that are not finite.
pub fn verify(path: &Path) -> Result<WeightCounts, StoreError> {
    if path.is_file() {
        return Ok(WeightCounts::of(path, gguf::weights(path, &TensorCounts::begin)?));
    }
    let options =
        LoadOptions { non_finite: NonFinite::Allow, trainer: TrainerPart::Verify, ..load_options() };
    if path.join("checkpoints").is_dir() {
        let newest = newest_good(&RealFs, path, &options, &TensorCounts::begin)?;
        let counts = WeightCounts::of(&newest.loaded.path, newest.loaded.tensors);
        return Ok(WeightCounts { refused: newest.refused, ..counts });
    }
    let tensors = if ModelDir::open(path)?.is_checkpoint() {
        load(&RealFs, path, &options, &TensorCounts::begin)?.tensors
    } else {
        load_weights(&RealFs, path, &options, &TensorCounts::begin)?.tensors
    };
    Ok(WeightCounts::of(path, tensors))
}

impl WeightCounts {
    fn of(path: &Path, tensors: Vec<TensorCounts>) -> WeightCounts {
        let (path, count) = (path.to_path_buf(), tensors.len() as u64);
        let mut all = WeightCounts { path, tensors: count, ..WeightCounts::default() };
        for TensorCounts { name, weights, nan, infinite } in tensors {
            all.weights += weights;
            all.nan += nan;
            all.infinite += infinite;
            if nan + infinite > 0 {
                all.first_non_finite.get_or_insert(name);
            }
        }
        all
    }
}

/// Counts the elements of a tensor.
struct TensorCounts {
    name: String,
    weights: u64,
    nan: u64,
    infinite: u64,
}

impl TensorCounts {
    fn begin(name: &str, _: &[usize]) -> TensorCounts {
        TensorCounts { name: name.into(), weights: 0, nan: 0, infinite: 0 }
    }
}

impl TensorSink for TensorCounts {
    fn push(&mut self, piece: Piece<'_>) {
        self.weights += piece.count() as u64;
        if piece.first_non_finite().is_none() {
            return;
        }
        let mut values = Vec::new();
        piece.widen(&mut values);
        self.nan += values.iter().filter(|x| x.is_nan()).count() as u64;
        self.infinite += values.iter().filter(|x| x.is_infinite()).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tensor_with_a_weight_that_is_not_finite_is_named() {
        let of = |name: &str, [nan, infinite]: [u64; 2]| TensorCounts {
            name: name.into(),
            weights: 9,
            nan,
            infinite,
        };
        let counts = |tensors| WeightCounts::of(Path::new("m"), tensors);
        let all = counts(vec![of("a", [0, 0]), of("b", [0, 1]), of("c", [2, 3])]);
        assert_eq!((all.tensors, all.weights, all.nan, all.infinite), (3, 27, 2, 4));
        assert_eq!((all.first_non_finite.as_deref(), all.path), (Some("b"), "m".into()));
        assert_eq!(counts(vec![of("a", [0, 0]), of("c", [1, 0])]).first_non_finite.as_deref(), Some("c"));
        assert_eq!(counts(vec![of("a", [0, 0])]).first_non_finite, None);
    }
}
