//! Parameter counts and memory use of a model.
use serde::Serialize;

use crate::model::{ActivationCheckpointing, Config, Error, Params};
use crate::tensor::{Dtype, block_bytes, max_loss_logits};

/// Parameters of one part of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Part {
    /// Name of the part.
    pub(crate) name: &'static str,
    /// Number of tensors.
    pub(crate) tensors: usize,
    /// Number of parameters.
    pub(crate) parameters: u64,
}

/// Memory use of a model, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// f32 master weights: 4 bytes per parameter.
    pub(crate) weights: u64,
    /// Weights packed for the forward products, in the compute dtype.
    pub(crate) packed: u64,
    /// Weights packed for the backward products, in the compute dtype. An untied embedding has none.
    pub(crate) packed_backward: u64,
    /// f32 gradients. A tied embedding has two until the step ends.
    pub(crate) gradients: u64,
    /// AdamW's two f32 moments.
    pub(crate) moments: u64,
    /// Inference without KV cache: all matrices packed in the compute dtype, including the embedding, and all vectors
    /// in f32. See [`to_decode`] for matrices that stay quantized.
    pub(crate) to_decode: u64,
}

/// The parts of a model, in forward order. Their parameters add up to [`Config::n_params`].
///
/// # Errors
/// No model can have this configuration.
pub(crate) fn parts(cfg: &Config) -> Result<Vec<Part>, Error> {
    let mut parts = ["embedding", "attention", "MLP", "norms", "head"].map(|name| (name, 0, 0));
    for (name, shape) in Params::shapes(cfg)? {
        let at = match &name {
            n if n.contains("embed_tokens") => 0,
            n if n.contains("norm") => 3,
            n if n.contains("self_attn") => 1,
            n if n.contains("mlp") => 2,
            _ => 4,
        };
        parts[at].1 += 1;
        parts[at].2 += shape.iter().map(|&n| n as u64).product::<u64>();
    }
    let used = parts.into_iter().filter(|part| part.1 > 0);
    Ok(used.map(|(name, tensors, parameters)| Part { name, tensors, parameters }).collect())
}

/// The memory use of a model with the compute dtype `compute`.
///
/// # Errors
/// No model can have this configuration.
pub(crate) fn memory(cfg: &Config, compute: Dtype) -> Result<Memory, Error> {
    let (mut all, mut products) = (0u64, 0u64);
    for (name, shape) in Params::shapes(cfg)? {
        let n: u64 = shape.iter().map(|&n| n as u64).product();
        all += n;
        let table = name.contains("embed_tokens") && !cfg.tie_embeddings;
        products += if shape.len() == 2 && !table { n } else { 0 };
    }
    let second_gradient = if cfg.tie_embeddings { (cfg.vocab * cfg.dim) as u64 } else { 0 };
    let packed = products * compute.bytes() as u64;
    Ok(Memory {
        weights: 4 * all,
        packed,
        packed_backward: packed,
        gradients: 4 * (all + second_gradient),
        moments: 8 * all,
        to_decode: to_decode(cfg, compute, |_, _| None)?,
    })
}

/// [`Memory::to_decode`] of a model of which matrices stay quantized in memory. `quantized` returns the bytes of such a
/// matrix, given its index in walk order and its shape, and `None` for others.
///
/// # Errors
/// No model can have this configuration.
pub(crate) fn to_decode(
    cfg: &Config,
    compute: Dtype,
    quantized: impl Fn(usize, [usize; 2]) -> Option<usize>,
) -> Result<u64, Error> {
    let bytes = |at: usize, shape: &[usize]| match *shape {
        [out, width] => quantized(at, [out, width]).unwrap_or(out * width * compute.bytes()) as u64,
        _ => 4 * shape.iter().product::<usize>() as u64,
    };
    Ok(Params::shapes(cfg)?.iter().enumerate().map(|(at, (_, shape))| bytes(at, shape)).sum())
}

/// The unused memory at the ends of the blocks of a model in training: of weights, gradients and moments, and of the
/// packed weights.
///
/// # Errors
/// No model can have this configuration.
pub(crate) fn block_ends(cfg: &Config, compute: Dtype) -> Result<u64, Error> {
    let end = |bytes: usize| (block_bytes(bytes) - bytes) as u64;
    let of = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let packed = if shape.len() == 2 { 2 * end(n * compute.bytes()) } else { 0 };
        4 * end(4 * n) + packed
    };
    Ok(Params::shapes(cfg)?.iter().map(|(_, shape)| of(shape)).sum())
}

/// Estimates the activation memory of a training pass over `rows` rows, in bytes: for every layer the residual stream
/// in f32 and the other activations in `compute`; with activation checkpointing the input of every layer and the
/// activations of one. The gradients of the activations of one layer are in f32. The logits are not included; see
/// [`logits`].
pub(crate) fn activations(
    cfg: &Config,
    compute: Dtype,
    checkpointing: ActivationCheckpointing,
    rows: usize,
) -> u64 {
    let (c, f) = (cfg.dim as u64, cfg.ffn_dim as u64);
    let (q, kv) = ((cfg.n_heads * cfg.head_dim) as u64, (cfg.n_kv_heads * cfg.head_dim) as u64);
    let normed = if cfg.qk_norm { q + kv } else { 0 };
    // Attention norm, q k v, rotated q k, output; MLP norm, gate, up, product.
    let narrow = c + (q + 2 * kv) + (q + kv) + q + c + 3 * f;
    // The residual stream after attention and after the MLP, the head norms, the softmax sums of attention.
    let wide = 2 * c + normed + cfg.n_heads as u64;
    let layer = narrow * compute.bytes() as u64 + 4 * wide;
    let layers = match checkpointing {
        ActivationCheckpointing::Off => cfg.n_layers as u64 * layer,
        ActivationCheckpointing::PerLayer => 4 * c * cfg.n_layers as u64 + layer,
    };
    let gradients = 4 * (2 * c + 3 * f + q + 2 * kv);
    (rows as u64).saturating_mul(layers + gradients + 4 * c + c * compute.bytes() as u64)
}

/// The memory of the logits of a training pass over `rows` rows on a CPU, in bytes: one block of them in f32, and their
/// gradient in `compute` if that is not f32.
pub(crate) fn logits(cfg: &Config, compute: Dtype, rows: usize) -> u64 {
    let max = max_loss_logits(cfg.vocab, cfg.dim);
    let block = rows.saturating_mul(cfg.vocab).min(max).max(cfg.vocab);
    let gradient = if compute == Dtype::F32 { 0 } else { compute.bytes() };
    block as u64 * (4 + gradient) as u64
}

impl Memory {
    /// Training without activations.
    pub(crate) fn to_train(self) -> u64 {
        self.weights + self.packed + self.packed_backward + self.gradients + self.moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tie_embeddings: bool) -> Config {
        Config {
            vocab: 37,
            dim: 12,
            ffn_dim: 20,
            n_layers: 3,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 8,
            max_positions: 16,
            rope_theta: 1e4,
            norm_eps: 1e-6,
            qk_norm: true,
            tie_embeddings,
            ..Config::default()
        }
    }

    #[test]
    fn the_parts_add_up_to_the_model() {
        for tied in [true, false] {
            let cfg = config(tied);
            let parts = parts(&cfg).unwrap();
            assert_eq!(parts.iter().map(|p| p.parameters).sum::<u64>(), cfg.n_params() as u64);
            assert_eq!(parts.iter().any(|p| p.name == "head"), !tied);
        }
    }

    #[test]
    fn a_tied_embedding_has_two_gradients_and_one_packed_form() {
        let (n, table) = (config(true).n_params() as u64, 37 * 12);
        let tied = memory(&config(true), Dtype::BF16).unwrap();
        assert_eq!((tied.weights, tied.gradients, tied.moments), (4 * n, 4 * (n + table), 8 * n));
        let vectors = 3 * (2 * 12 + 2 * 8) + 12;
        assert_eq!(tied.packed, 2 * (n - vectors));
        let loose = memory(&config(false), Dtype::BF16).unwrap();
        assert_eq!((loose.gradients, loose.packed), (4 * (n + table), tied.packed));
        assert_eq!(tied.to_decode, tied.packed + 4 * vectors);
        assert_eq!(loose.to_decode, tied.to_decode + 2 * table);
    }

    #[test]
    fn matrices_that_stay_quantized_take_their_own_bytes() {
        let cfg = config(true);
        let dense = memory(&cfg, Dtype::F32).unwrap().to_decode;
        let table = to_decode(&cfg, Dtype::F32, |at, shape| (at == 0).then_some(shape[0] * 1000 + shape[1]));
        assert_eq!(table.unwrap(), dense - 4 * 37 * 12 + 37_012);
        // two head norms and two norms of the width in each of three layers, and the last norm
        let vectors = 4 * (3 * (2 * 8 + 2 * 12) + 12);
        assert_eq!(to_decode(&cfg, Dtype::F32, |_, _| Some(0)).unwrap(), vectors);
    }

    /// With the sizes of [`config`], a layer has 156 narrow and 50 wide values per row, and 116 gradients.
    #[test]
    fn the_activations_of_a_row_are_counted() {
        let cfg = config(true);
        let (layer, rest) = (4 * 156 + 4 * 50, 4 * 116 + 4 * 12);
        let row = |compute, checkpointing| activations(&cfg, compute, checkpointing, 1);
        assert_eq!(row(Dtype::F32, ActivationCheckpointing::Off), 3 * layer + rest + 4 * 12);
        assert_eq!(row(Dtype::F32, ActivationCheckpointing::PerLayer), 3 * 4 * 12 + layer + rest + 4 * 12);
        let narrow = 2 * 156 + 4 * 50;
        assert_eq!(row(Dtype::BF16, ActivationCheckpointing::Off), 3 * narrow + rest + 2 * 12);
        let without = Config { qk_norm: false, ..cfg.clone() };
        let less = 3 * 4 * (2 * 8 + 8);
        assert_eq!(
            activations(&without, Dtype::F32, ActivationCheckpointing::Off, 1),
            3 * layer + rest + 4 * 12 - less
        );
    }

    #[test]
    fn the_logits_of_a_block_and_their_gradient_are_counted() {
        let cfg = config(true);
        assert_eq!(logits(&cfg, Dtype::F32, 2), 2 * 37 * 4);
        assert_eq!(logits(&cfg, Dtype::BF16, 2), 2 * 37 * (4 + 2));
        assert_eq!(logits(&cfg, Dtype::F32, 0), 37 * 4);
        let max = max_loss_logits(37, 12) as u64;
        assert_eq!(logits(&cfg, Dtype::F32, usize::MAX), max * 4);
    }

    #[test]
    fn activations_grow_with_rows_and_dtype_size() {
        let cfg = config(true);
        let one = activations(&cfg, Dtype::F32, ActivationCheckpointing::Off, 1);
        assert_eq!(activations(&cfg, Dtype::F32, ActivationCheckpointing::Off, 64), 64 * one);
        assert!(activations(&cfg, Dtype::BF16, ActivationCheckpointing::Off, 1) < one);
        assert!(activations(&cfg, Dtype::F32, ActivationCheckpointing::PerLayer, 1) < one);
    }
}
