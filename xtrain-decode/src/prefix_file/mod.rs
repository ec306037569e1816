//! Prefix files: the cached rows of a prompt, saved so that later processes do not compute them again.
//!
//! A file is a safetensors file with `layers.N.keys` and `layers.N.values` `[T, nkv, hd]`, f32 or bf16, and a manifest:
//! the tokens, what the rows depend on ([`PrefixIdentity`]), and checksums. Any cache of the same shape can read it.
use std::path::Path;

use half::bf16;
use serde::{Deserialize, Serialize};
use xtrain_model::Model;
use xtrain_model::checkpoint::{
    CheckpointError, RealFs, SealedTensor, TensorInfo, TensorSink, load_sealed, require_shapes, save_sealed,
};
use xtrain_tensor::ops::Piece;
use xtrain_tensor::{Device, Dtype, Tensor};

use crate::cache::{CacheShape, KvRows};

mod identity;
#[cfg(test)]
mod tests;

pub use identity::PrefixIdentity;

/// The kind of file in the manifest.
const KIND: &str = "kv prefix";

/// The tokens of a prefix, from position 0 on, and their keys and values in host memory.
#[derive(Debug, Clone)]
pub struct KvPrefix {
    tokens: Vec<u32>,
    rows: KvRows,
}

/// What a manifest contains besides the tensors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    model: PrefixIdentity,
    tokens: Vec<u32>,
}

impl KvPrefix {
    /// The rows of `tokens`, which begin at position 0, as many as there are tokens.
    pub(crate) fn new(tokens: Vec<u32>, rows: KvRows) -> KvPrefix {
        KvPrefix { tokens, rows }
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Their keys and values.
    pub fn rows(&self) -> &KvRows {
        &self.rows
    }

    /// The tokens, without their keys and values.
    pub fn into_tokens(self) -> Vec<u32> {
        self.tokens
    }

    /// The first `len` tokens, or all of them if there are fewer.
    #[must_use]
    pub fn truncated(mut self, len: usize) -> KvPrefix {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.rows = self.rows.truncated(len);
        }
        self
    }

    /// Saves the prefix in `path`, which appears, or is replaced, when it is complete and durable. `identity` is that
    /// of the model that computed the rows.
    ///
    /// # Errors
    /// [`CheckpointError::Io`], [`CheckpointError::NotAFile`] if `path` is no regular file, or a prefix whose tokens
    /// take more than 16 MiB of text.
    pub fn save(&self, path: &Path, identity: &PrefixIdentity) -> Result<(), CheckpointError> {
        let content = Content { model: identity.clone(), tokens: self.tokens.clone() };
        let mut tensors = Vec::with_capacity(2 * self.rows.layers().len());
        for (layer, pair) in self.rows.layers().iter().enumerate() {
            for (tensor, name) in pair.iter().zip(names(layer)) {
                let data = match tensor.dtype() {
                    Dtype::BF16 => tensor.data::<bf16>().map(Piece::BF16),
                    _ => tensor.data::<f32>().map(Piece::F32),
                };
                let data = data.expect("the rows of a prefix are f32 or bf16 in host memory");
                tensors.push(SealedTensor { name, shape: tensor.shape().to_vec(), data });
            }
        }
        save_sealed(&RealFs, path, (KIND, &content), &tensors)
    }

    /// Loads a prefix of `model`, and verifies every byte of the file. `identity` is that of `model`.
    ///
    /// # Errors
    /// [`CheckpointError`], naming the file and the first field or tensor that differs: other weights, another shape,
    /// dtype or RoPE, tokens that the model does not have, a damaged or truncated file.
    pub fn load(path: &Path, model: &Model, identity: &PrefixIdentity) -> Result<KvPrefix, CheckpointError> {
        let cfg = model.config();
        let check = |content: &Content, found: &[TensorInfo]| {
            content.model.require(path, identity)?;
            let (n, max) = (content.tokens.len(), cfg.max_positions);
            if n == 0 || n > max {
                return Err(field(path, "tokens", format!("1 to {max} tokens"), format!("{n}")));
            }
            if let Some((at, id)) =
                content.tokens.iter().enumerate().find(|(_, id)| **id as usize >= cfg.vocab)
            {
                let want = format!("token ids below {}", cfg.vocab);
                return Err(field(path, "tokens", want, format!("{id} at position {at}")));
            }
            require_rows(path, &CacheShape::of(model), n, found)
        };
        let dtype = model.compute();
        let (content, sinks) =
            load_sealed(&RealFs, path, KIND, &check, &|_, shape| RowsSink::new(dtype, shape))?;
        let failed = |error: xtrain_tensor::Error| field(path, "tensors", "rows".into(), error.to_string());
        let tensors: Result<Vec<Tensor>, _> = sinks.into_iter().map(RowsSink::tensor).collect();
        let layers = tensors.map_err(failed)?;
        let layers = layers.as_chunks::<2>().0.to_vec();
        Ok(KvPrefix { tokens: content.tokens, rows: KvRows::new(0, layers) })
    }
}

fn field(path: &Path, field: &str, want: String, got: String) -> CheckpointError {
    CheckpointError::Field { file: path.into(), field: field.into(), want, got }
}

/// The names of the keys and the values of a layer.
fn names(layer: usize) -> [String; 2] {
    ["keys", "values"].map(|which| format!("layers.{layer}.{which}"))
}

/// Checks that a file has the keys and values of `n` positions in each layer, in this order, and nothing else.
fn require_rows(
    path: &Path,
    shape: &CacheShape,
    n: usize,
    found: &[TensorInfo],
) -> Result<(), CheckpointError> {
    let dims = vec![n, shape.n_kv_heads, shape.head_dim];
    let want: Vec<_> = (0..shape.n_layers).flat_map(names).map(|name| (name, dims.clone())).collect();
    require_shapes(path, &want, TensorInfo::shapes(found))?;
    let stored = if shape.dtype == Dtype::BF16 { "BF16" } else { "F32" };
    for ((name, _), found) in want.into_iter().zip(found) {
        let got = format!("{} {}", found.dtype, found.name);
        if got != format!("{stored} {name}") {
            let (file, tensor, want) = (path.into(), name.clone(), format!("{stored} {name}"));
            return Err(CheckpointError::Entry { file, tensor, want, got });
        }
    }
    Ok(())
}

/// Receives the elements of one tensor in their type.
struct RowsSink {
    shape: Vec<usize>,
    values: Values,
}

enum Values {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
}

impl RowsSink {
    fn new(dtype: Dtype, shape: &[usize]) -> RowsSink {
        let n = shape.iter().product();
        let values = match dtype {
            Dtype::BF16 => Values::BF16(Vec::with_capacity(n)),
            _ => Values::F32(Vec::with_capacity(n)),
        };
        RowsSink { shape: shape.to_vec(), values }
    }

    fn tensor(self) -> Result<Tensor, xtrain_tensor::Error> {
        match self.values {
            Values::F32(values) => Tensor::new(&Device::cpu(), &self.shape, values),
            Values::BF16(values) => Tensor::new(&Device::cpu(), &self.shape, values),
        }
    }
}

impl TensorSink for RowsSink {
    /// The types agree: the file was compared with the model before.
    fn push(&mut self, piece: Piece<'_>) {
        match (&mut self.values, piece) {
            (Values::BF16(values), Piece::BF16(piece)) => values.extend_from_slice(piece),
            (Values::BF16(_), _) => {}
            (Values::F32(values), piece) => piece.widen(values),
        }
    }
}
