//! The named values of configuration keys. docs/reference/config.md is generated from this file.
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Training objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// Language modeling: loss on every token of the text, on the `completion` of a `prompt`, or on the assistant turns
    /// of `messages`.
    Lm,
    /// Supervised fine-tuning: loss on the assistant turns of `messages`, or on the `completion` of a `prompt`.
    Sft,
}

/// How tokens are packed into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// Windows cut from the concatenated text. Attention crosses document boundaries.
    Stream,
    /// Whole documents: each attends only to itself and starts at position 0. Longer documents are split, longer
    /// conversations are truncated.
    Documents,
}

/// Compute dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floating point.
    F32,
    /// bfloat16 matrix products and activations, accumulated in f32 as specified in docs/numerics.md.
    Bf16,
}

/// Learning rate schedule after warmup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayKind {
    /// Cosine decay to the minimum.
    Cosine,
    /// Linear decay to the minimum.
    Linear,
    /// Warmup-stable-decay: constant, then linear decay.
    Wsd,
    /// Warmup-stable-decay: constant, then cosine decay.
    WsdCosine,
    /// Warmup-stable-decay: constant, then decay by `1 - sqrt(progress)`.
    WsdSqrt,
    /// Constant learning rate.
    Constant,
}

/// Order of the training windows; a pure function of seed and step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Windows at random offsets.
    Random,
    /// Every window once per epoch, reshuffled each epoch.
    Shuffled,
}
