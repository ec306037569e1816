//! Named model sizes.
use super::ModelSection;

/// A named model size: the fields of `[model]` that it sets. All presets use tied embeddings and QK-norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preset {
    /// The value of `model.preset`.
    pub name: &'static str,
    /// `model.dim`, `n_layers`, `n_heads`, `n_kv_heads`, `head_dim` and `ffn_dim`.
    sizes: [usize; 6],
    /// `model.vocab`; 0: the vocabulary size of the tokenizer.
    vocab: usize,
    /// `model.rope_theta`.
    rope_theta: f64,
}

/// All presets, smallest first.
pub const PRESETS: [Preset; 6] = [
    row("tiny-1m", [128, 5, 4, 2, 32, 384]),
    row("tiny-3m", [192, 7, 6, 2, 32, 576]),
    row("small-10m", [384, 6, 6, 2, 64, 1024]),
    row("base-30m", [512, 10, 8, 2, 64, 1536]),
    row("base-125m", [768, 18, 12, 4, 64, 2304]),
    Preset { vocab: 151_936, rope_theta: 1e6, ..row("qwen3-0.6b", [1024, 28, 16, 8, 128, 3072]) },
];

/// A preset with the tokenizer's vocabulary.
const fn row(name: &'static str, sizes: [usize; 6]) -> Preset {
    Preset { name, sizes, vocab: 0, rope_theta: 10_000.0 }
}

/// The preset with this name. `None`: there is none.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Preset {
    /// The `[model]` section of this preset.
    pub fn section(&self) -> ModelSection {
        let [dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim] = self.sizes;
        let Preset { name, vocab, rope_theta, .. } = *self;
        let sizes =
            ModelSection { dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, ..Default::default() };
        ModelSection { preset: name.to_string(), vocab, rope_theta, ..sizes }
    }
}
