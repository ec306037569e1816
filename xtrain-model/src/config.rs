//! The config of a model.
use xtrain_tensor::RopeScaling;

use crate::error::{Error, Result};

/// The config of a model of the Qwen3, Qwen2, Llama or Mistral family. The letters are used in shapes. The default
/// has zero sizes, no QK-norm, no biases and no sliding windows: set the required fields and use
/// `..Config::default()`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Config {
    /// `V`: vocabulary size.
    pub vocab: usize,
    /// `C`: width of the residual stream.
    pub dim: usize,
    /// `F`: width of the MLP.
    pub ffn_dim: usize,
    /// `L`: number of blocks.
    pub n_layers: usize,
    /// `nh`: number of query heads.
    pub n_heads: usize,
    /// `nkv`: number of key and value heads; divides `nh`.
    pub n_kv_heads: usize,
    /// `hd`: width of a head, even; `nh hd` may differ from `C`.
    pub head_dim: usize,
    /// Number of positions of the RoPE table: the maximum sequence length.
    pub max_positions: usize,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in every norm.
    pub norm_eps: f64,
    /// Whether queries and keys are normalized head by head (Qwen3).
    pub qk_norm: bool,
    /// Whether the head is the embedding table.
    pub tie_embeddings: bool,
    /// Which projections have a bias.
    pub biases: Biases,
    /// Scaling of the RoPE frequencies.
    pub rope_scaling: RopeScaling,
    /// The sliding-window size of each layer, including the current token. `None`: full attention. An empty list:
    /// full attention in all layers.
    pub windows: Vec<Option<usize>>,
}

/// Which projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Queries, keys and values (Qwen2).
    pub qkv: bool,
    /// The output projection of attention.
    pub o: bool,
    /// Gate, up and down.
    pub mlp: bool,
}

impl Config {
    /// The largest vocabulary. A sampler adds an integer weight for each token in 64 bits, which may overflow beyond it.
    pub const MAX_VOCAB: usize = 1 << 19;

    /// The largest maximum number of positions.
    pub const MAX_POSITIONS: usize = (1 << 20) + 1;

    /// A tiny config for examples and tests: 2 layers, width 32, a byte vocabulary with an end-of-text id, QK-norm
    /// and tied embeddings, up to 64 positions.
    ///
    /// ```
    /// use xtrain_model::Config;
    /// let cfg = Config::tiny();
    /// assert_eq!((cfg.vocab, cfg.n_params()), (257, 26_848));
    /// ```
    pub fn tiny() -> Config {
        Config {
            vocab: 257,
            dim: 32,
            ffn_dim: 64,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 8,
            max_positions: 64,
            rope_theta: 10_000.0,
            norm_eps: 1e-6,
            qk_norm: true,
            tie_embeddings: true,
            ..Config::default()
        }
    }

    /// Checks the config.
    ///
    /// # Errors
    /// [`Error::Config`] with the field, its valid values and its value.
    pub fn check(&self) -> Result<()> {
        let Config { vocab, dim, ffn_dim, n_layers, n_heads, n_kv_heads, head_dim, max_positions, .. } =
            *self;
        let refuse = |field, want, got: String| Err(Error::Config { field, want, got });
        let sizes = [
            ("vocab", vocab, Config::MAX_VOCAB, "from 1 to 524288"),
            ("dim", dim, 1 << 16, "from 1 to 65536"),
            ("ffn_dim", ffn_dim, 1 << 18, "from 1 to 262144"),
            ("n_layers", n_layers, 1 << 10, "from 1 to 1024"),
            ("n_heads", n_heads, 1 << 10, "from 1 to 1024"),
            ("n_kv_heads", n_kv_heads, 1 << 10, "from 1 to 1024"),
            ("max_positions", max_positions, Config::MAX_POSITIONS, "from 1 to 1048577"),
        ];
        if let Some((field, got, _, want)) = sizes.into_iter().find(|(_, n, max, _)| *n == 0 || n > max) {
            return refuse(field, want, got.to_string());
        }
        if head_dim == 0 || head_dim % 2 != 0 || head_dim > 256 {
            return refuse("head_dim", "even, from 2 to 256", head_dim.to_string());
        }
        if n_heads % n_kv_heads != 0 {
            return refuse(
                "n_kv_heads",
                "a divisor of the number of query heads",
                format!("{n_kv_heads} for {n_heads} heads"),
            );
        }
        if !(self.rope_theta > 0.0 && self.rope_theta.is_finite()) {
            return refuse("rope_theta", "positive and finite", self.rope_theta.to_string());
        }
        if !(self.norm_eps > 0.0 && self.norm_eps.is_finite()) {
            return refuse("norm_eps", "positive and finite", self.norm_eps.to_string());
        }
        if !self.windows.is_empty() && self.windows.len() != n_layers || self.windows.contains(&Some(0)) {
            let want = "a window of at least 1 or null for each layer";
            return refuse("sliding_window", want, format!("{:?}", self.windows));
        }
        if let Err(xtrain_tensor::Error::Argument { want, got, .. }) = self.rope_scaling.check() {
            return refuse("rope_scaling", want, got);
        }
        if let RopeScaling::Divisors(table) = &self.rope_scaling
            && 2 * table.len() != head_dim
        {
            let got = format!("{} divisors for a head of {head_dim}", table.len());
            return refuse("rope_scaling", "one divisor for each pair of a head", got);
        }
        Ok(())
    }

    /// The sliding-window size of a layer, including the current token. `None`: full attention.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// The number of parameters. A tied table counts once.
    pub fn n_params(&self) -> usize {
        let (c, q, kv) = (self.dim, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let norms = 2 * c + if self.qk_norm { 2 * self.head_dim } else { 0 };
        let Biases { qkv, o, mlp } = self.biases;
        let bias = |present: bool, width: usize| if present { width } else { 0 };
        let biases = bias(qkv, q + 2 * kv) + bias(o, c) + bias(mlp, 2 * self.ffn_dim + c);
        let block = norms + biases + 2 * c * q + 2 * c * kv + 3 * c * self.ffn_dim;
        let tables = if self.tie_embeddings { 1 } else { 2 };
        tables * self.vocab * c + self.n_layers * block + c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_accepted_at_its_limits_and_refused_beyond_them() {
        type Set = fn(&mut Config, usize);
        let sizes: [(&str, usize, Set); 7] = [
            ("vocab", 524_288, |cfg, n| cfg.vocab = n),
            ("dim", 65_536, |cfg, n| cfg.dim = n),
            ("ffn_dim", 262_144, |cfg, n| cfg.ffn_dim = n),
            ("n_layers", 1024, |cfg, n| cfg.n_layers = n),
            ("n_heads", 1024, |cfg, n| (cfg.n_heads, cfg.n_kv_heads) = (n, 1)),
            ("n_kv_heads", 1024, |cfg, n| (cfg.n_heads, cfg.n_kv_heads) = (n.clamp(1, 1024), n)),
            ("max_positions", 1_048_577, |cfg, n| cfg.max_positions = n),
        ];
        for (field, max, set) in sizes {
            let check = |n: usize| {
                let mut cfg = Config::tiny();
                set(&mut cfg, n);
                cfg.check().map_err(|error| error.to_string())
            };
            assert_eq!((check(1), check(max)), (Ok(()), Ok(())), "{field}");
            for n in [0, max + 1] {
                let error = check(n).unwrap_err();
                assert!(error.contains(field) && error.contains(&n.to_string()), "{field}: {error}");
            }
        }
    }
}
