//! The sections of a configuration, their keys and defaults. docs/reference/config.md is generated from this file.
use serde::{Deserialize, Serialize};

use super::GrpoSection;
use super::kinds::{DecayKind, Order, Packing, Precision, TaskKind};

/// The configuration of a run. A run directory stores the resolved configuration in `config.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunConfig {
    /// Model architecture.
    pub model: ModelSection,
    /// Training.
    pub train: TrainSection,
    /// Training data.
    pub data: DataSection,
    /// Text samples generated during training.
    pub sample: SampleSection,
    /// Reinforcement learning. `None`: a run of `xtrain train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpo: Option<GrpoSection>,
}

impl RunConfig {
    /// Whether a run with this configuration is one of `xtrain grpo`. A configuration of `xtrain train` may have the
    /// section `[grpo]`, too.
    pub fn is_grpo(&self) -> bool {
        self.grpo.is_some() && self.data.files.is_empty()
    }
}

/// `[model]`: the architecture of a Qwen3-style model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSection {
    /// Preset that provides the defaults of this section; empty: no preset.
    pub preset: String,
    /// Hidden size: width of the residual stream.
    pub dim: usize,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key/value heads; must divide `n_heads`. Default: `n_heads`.
    pub n_kv_heads: usize,
    /// Head dimension; even, at most 256. Default: `dim / n_heads`.
    pub head_dim: usize,
    /// Intermediate size of the MLP. Default: `8/3 * dim`, rounded up to a multiple of 32.
    pub ffn_dim: usize,
    /// Vocabulary size; 0: the vocabulary size of the tokenizer.
    pub vocab: usize,
    /// Maximum sequence length of the model. Values below `train.context`, such as 0, mean `train.context`.
    pub max_positions: usize,
    /// Share one weight matrix between the embedding and the output head.
    pub tie_embeddings: bool,
    /// Apply RMS norm to each query and key head (QK-norm).
    pub qk_norm: bool,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Epsilon of RMS norm.
    pub norm_eps: f64,
}

/// `[train]`: batch sizes, optimizer, schedule, and evaluation, sampling and checkpoint intervals (0: never).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainSection {
    /// Training objective.
    pub task: TaskKind,
    /// Model that provides the initial weights and the `[model]` section: a run, a checkpoint, a Hugging Face
    /// directory or a GGUF file. Empty: random weights.
    pub init: String,
    /// Context length: tokens per training window.
    pub context: usize,
    /// Windows per step (batch size).
    pub batch: usize,
    /// Windows per forward pass. Gradients are accumulated over the passes of a step; the results are bit-identical
    /// for every value. Default: `batch`.
    pub micro_batch: usize,
    /// Parts of a step whose gradients are summed separately and then added as a tree, also of `xtrain grpo`. Steps
    /// with different numbers of shards have different bits. With several processes (`mpirun`), a multiple of their
    /// number.
    pub shards: usize,
    /// Store only the input of each layer and recompute the activations in the backward pass. Uses less memory for
    /// about a third more computation; the results are bit-identical.
    #[serde(alias = "recompute")]
    pub gradient_checkpointing: bool,
    /// Number of optimizer steps.
    pub steps: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Learning rate at the start of warmup.
    pub initial_learning_rate: f64,
    /// Learning rate that the schedule reaches after the last step. Default: `learning_rate / 10`.
    pub min_learning_rate: f64,
    /// Learning rate schedule after warmup.
    pub schedule: DecayKind,
    /// Linear warmup steps, from `initial_learning_rate` to `learning_rate`. Default: `min(100, steps / 10)`.
    pub warmup: usize,
    /// Decay steps at the end of the schedules `wsd`, `wsd-cosine` and `wsd-sqrt`. Default: `steps / 5`.
    pub decay: usize,
    /// AdamW weight decay. Applies to matrices, not to vectors.
    pub weight_decay: f64,
    /// AdamW beta1.
    pub beta1: f64,
    /// AdamW beta2.
    pub beta2: f64,
    /// AdamW epsilon.
    pub eps: f64,
    /// Maximum gradient norm; 0: no clipping.
    pub clip: f64,
    /// Compute dtype. Master weights are always f32.
    pub dtype: Precision,
    /// Seed of the initial weights, the data order and the samples. A string above 2^63 - 1, the largest TOML
    /// integer.
    #[serde(with = "super::seed")]
    pub seed: u64,
    /// Evaluate every N steps and at the last step; 0: never.
    pub eval_every: usize,
    /// Validation tokens per evaluation; 0: all.
    pub eval_tokens: usize,
    /// Generate text samples every N steps; 0: never.
    pub sample_every: usize,
    /// Save a checkpoint every N steps. The last step is always saved.
    pub save_every: usize,
    /// Number of recent checkpoints to keep; at least 2.
    pub keep: usize,
    /// Also keep the weights with the lowest validation loss, in `best/` of the run, which is a model of its own.
    pub keep_best: bool,
    /// Stop after N consecutive evaluations without a lower validation loss; 0: never.
    pub patience: usize,
    /// Add the norms of the gradient and of the weights of each layer to the metrics every N steps; 0: never.
    pub stats_every: usize,
    /// Order of the training windows. Default: `random`; `shuffled` for `task = "sft"`.
    pub order: Order,
}

/// `[data]`: the training data and the tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSection {
    /// Text, JSONL or packed token files. Paths are relative to the working directory.
    pub files: Vec<String>,
    /// Text, JSONL or packed token files for validation. They replace a `val_fraction` of an earlier layer. Empty:
    /// `val_fraction` holds out a part of `files`.
    pub val_files: Vec<String>,
    /// Fraction held out for validation: the last tokens, or the last conversations for `task = "sft"`. Default with
    /// `val_files`: 0.
    pub val_fraction: f64,
    /// How tokens are packed into windows of `train.context`. Default: `stream`; `documents` for `task = "sft"`.
    pub packing: Packing,
    /// `bytes` (one token per byte), or the path of a `tokenizer.json` or of a model.
    pub tokenizer: String,
}

/// `[sample]`: text samples generated during training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleSection {
    /// Prompt of the samples. Default: a line break; empty for `task = "sft"`, which means the first held-out
    /// conversation up to its first answer.
    pub prompt: String,
    /// Number of samples.
    pub count: usize,
    /// Maximum number of new tokens per sample.
    pub max_new: usize,
    /// Softmax temperature; 0: greedy.
    pub temperature: f64,
    /// Top-k sampling: keep the k most likely tokens; 0: keep all.
    pub top_k: usize,
    /// Top-p (nucleus) sampling: keep the smallest set of tokens with this total probability; 1: keep all.
    pub top_p: f64,
    /// Min-p sampling: keep tokens with at least this fraction of the highest probability; 0: keep all.
    pub min_p: f64,
}

impl Default for ModelSection {
    fn default() -> ModelSection {
        ModelSection {
            preset: String::new(),
            dim: 128,
            n_layers: 4,
            n_heads: 4,
            n_kv_heads: 4,
            head_dim: 32,
            ffn_dim: 352,
            vocab: 0,
            max_positions: 0,
            tie_embeddings: true,
            qk_norm: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-6,
        }
    }
}

impl Default for TrainSection {
    fn default() -> TrainSection {
        TrainSection {
            task: TaskKind::Lm,
            init: String::new(),
            context: 256,
            batch: 16,
            micro_batch: 16,
            shards: 1,
            gradient_checkpointing: false,
            steps: 1000,
            learning_rate: 1e-3,
            initial_learning_rate: 0.0,
            min_learning_rate: 1e-4,
            schedule: DecayKind::Cosine,
            warmup: 100,
            decay: 200,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            clip: 1.0,
            dtype: Precision::F32,
            seed: 0,
            eval_every: 250,
            eval_tokens: 0,
            sample_every: 250,
            save_every: 250,
            keep: 2,
            keep_best: false,
            patience: 0,
            stats_every: 0,
            order: Order::Random,
        }
    }
}

impl Default for DataSection {
    fn default() -> DataSection {
        DataSection {
            files: Vec::new(),
            val_files: Vec::new(),
            val_fraction: 0.1,
            packing: Packing::Stream,
            tokenizer: "bytes".to_string(),
        }
    }
}

impl Default for SampleSection {
    fn default() -> SampleSection {
        SampleSection {
            prompt: "\n".to_string(),
            count: 1,
            max_new: 128,
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}
