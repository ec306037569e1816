//! The sections of a configuration, their keys and their defaults.
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The whole configuration of a run; `config.toml` of a run directory holds it resolved.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunConfig {
    /// The sizes of the model.
    pub model: ModelSection,
    /// How it is trained.
    pub train: TrainSection,
    /// What it is trained on.
    pub data: DataSection,
    /// The samples that are drawn while it trains.
    pub sample: SampleSection,
}

/// `[model]`: the sizes of a Qwen3-style model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSection {
    /// The preset whose sizes are the defaults of this section; empty for none.
    pub preset: String,
    /// Width of the residual stream.
    pub dim: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`. Default: `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head: even, at most 256. Default: `dim / n_heads`.
    pub head_dim: usize,
    /// Width of the MLP. Default: 8/3 of `dim`, rounded up to a multiple of 32.
    pub ffn_dim: usize,
    /// Rows of the embedding; 0 for the size of the tokenizer's vocabulary.
    pub vocab: usize,
    /// Longest sequence that the model serves; at least `train.context`, which 0 stands for.
    pub max_positions: usize,
    /// One table for the embedding and the head.
    pub tie_embeddings: bool,
    /// RMS norm of queries and keys per head.
    pub qk_norm: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square inside every norm.
    pub norm_eps: f64,
}

/// `[train]`: batches, optimizer, schedule, and what happens every so many steps (0: never).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainSection {
    /// What is learnt: every token of text, or the answers of conversations.
    pub task: Task,
    /// The model that the weights begin as, whose sizes `[model]` then takes: a run, a checkpoint, a Hugging
    /// Face directory or a GGUF file. Empty: they are drawn from the seed.
    pub init: String,
    /// Tokens of a sample.
    pub context: usize,
    /// Samples of a step.
    pub batch: usize,
    /// Samples of one forward pass; the passes of a step accumulate, and the split changes no bit.
    /// Default: `batch`.
    pub micro_batch: usize,
    /// Whether a pass keeps the input of each layer alone and runs its forward again for the backward: less
    /// memory for a third more work, and the same bits.
    pub recompute: bool,
    /// Updates of the weights.
    pub steps: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Where the warm-up begins.
    pub initial_learning_rate: f64,
    /// Where the schedule ends. Default: a tenth of `learning_rate`.
    pub min_learning_rate: f64,
    /// The shape of the learning rate after the warm-up.
    pub schedule: Schedule,
    /// Steps over which the learning rate rises from `initial_learning_rate`. Default: 100, at most a tenth of `steps`.
    pub warmup: usize,
    /// Last steps over which the schedules `wsd`, `wsd-cosine` and `wsd-sqrt` fall. Default: a fifth of `steps`.
    pub decay: usize,
    /// Weight decay of matrices; vectors have none.
    pub weight_decay: f64,
    /// AdamW's decay of the mean of the gradient.
    pub beta1: f64,
    /// AdamW's decay of the mean of its square.
    pub beta2: f64,
    /// Added to AdamW's denominator.
    pub eps: f64,
    /// The gradient's norm is cut to this; 0 for no cut.
    pub clip: f64,
    /// What the passes compute in; master weights are f32.
    pub dtype: Precision,
    /// The seed of weights, order and samples; above 2^63 - 1, where TOML has no integers, a string.
    #[serde(with = "super::seed")]
    pub seed: u64,
    /// Steps between two evaluations.
    pub eval_every: usize,
    /// Tokens of the validation part that an evaluation reads; 0 for all.
    pub eval_tokens: usize,
    /// Steps between two samples of text.
    pub sample_every: usize,
    /// Steps between two checkpoints; the last step always saves.
    pub save_every: usize,
    /// Checkpoints that are kept, at least 2.
    pub keep: usize,
    /// How samples are drawn from the training part. Default: `random`; `shuffled` for the task `sft`.
    pub order: Order,
}

/// `[data]`: the text and how it becomes tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSection {
    /// Text, JSONL or packed token files, relative to the working directory.
    pub files: Vec<String>,
    /// The share at the end of the tokens that is never trained on; of the conversations for the task `sft`.
    pub val_fraction: f64,
    /// How tokens fill the windows of `train.context`. Default: `stream`; `documents` for the task `sft`.
    pub packing: Packing,
    /// `bytes`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
}

/// `[sample]`: the samples that are drawn while the model trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleSection {
    /// What the samples continue.
    pub prompt: String,
    /// Samples drawn at a time.
    pub count: usize,
    /// New tokens of a sample, at most.
    pub max_new: usize,
    /// Divides the logits; 0 takes the largest.
    pub temperature: f64,
    /// Keeps the k largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest tokens that hold this share; 1 keeps all.
    pub top_p: f64,
    /// Keeps the tokens that have at least this share of the largest; 0 keeps all.
    pub min_p: f64,
}

/// What is learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Language modelling: every token of the text (of a `prompt` + `completion` the latter).
    Lm,
    /// Supervised fine-tuning: what the assistant says in `messages`, or the `completion` after a `prompt`.
    Sft,
}

/// How tokens fill a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// One running text: a window begins anywhere and sees across the ends of documents.
    Stream,
    /// Whole documents: each sees itself alone, from position 0; a longer one is split.
    Documents,
}

/// What a pass computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floating point.
    F32,
    /// bfloat16 products and activations, accumulated as docs/numerics.md says.
    Bf16,
}

/// The shape of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Half a cosine down to the minimum.
    Cosine,
    /// A straight line down to the minimum.
    Linear,
    /// Constant, then a straight line down over the last steps.
    Wsd,
    /// Constant, then half a cosine down over the last steps.
    WsdCosine,
    /// Constant, then down by the root of the share of the last steps that is done.
    WsdSqrt,
    /// Constant.
    Constant,
}

/// How samples are drawn from the training part; each a pure function of seed and step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Windows at random offsets.
    Random,
    /// Every window once per epoch, in a new order each epoch.
    Shuffled,
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
            task: Task::Lm,
            init: String::new(),
            context: 256,
            batch: 16,
            micro_batch: 16,
            recompute: false,
            steps: 1000,
            learning_rate: 1e-3,
            initial_learning_rate: 0.0,
            min_learning_rate: 1e-4,
            schedule: Schedule::Cosine,
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
            order: Order::Random,
        }
    }
}

impl Default for DataSection {
    fn default() -> DataSection {
        DataSection {
            files: Vec::new(),
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
