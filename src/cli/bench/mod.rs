//! `xtrain bench`: speed, as tables or JSON.
mod decode;
mod ideal;
mod kv;
mod linear;
mod load;
mod made;
mod resident;
mod subject;
mod traffic;
mod train;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::CliError;
use super::common::{CacheFlags, CacheSizes, Common, Layers};

/// Commands of `xtrain bench`.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Measures training steps on random tokens: milliseconds a step, tokens per second.
    #[command(after_help = "\
A sample is the wall time of one step (forward, backward, update) on a batch of random tokens, in this \
process, after three steps that do not count; the table shows their spread, --json every one.

Examples:
  xtrain bench train --set model.preset=tiny-1m
  xtrain bench train -c configs/shakespeare.toml --threads 1 --json")]
    Train(TrainArgs),
    /// Measures decoding: time to the first token, tokens per second, slope over the position.
    #[command(after_help = "\
A sample is one whole rollout in this process, after one that does not count; each pass is timed by the \
wall clock, and what is shown is the median over the samples, --json has every pass of every one. \
decode_tokens_per_second = the tokens after the first of each sequence / the sum of the times of their \
passes. time_to_first_token_ms = the times of the passes until every sequence has its first token.

Examples:
  xtrain bench decode --model runs/shakespeare --batch 32
  xtrain bench decode --set model.preset=tiny-3m --prompt-len 512 --max-new 128 --json")]
    Decode(DecodeArgs),
    /// Measures the caches side by side: off, growing, contiguous, paged at n = 32, 128, 256 new tokens.
    #[command(after_help = "\
A cell is one cache at one n: greedy rollouts of one random prompt, one that does not count and --repeats \
that do, all in this process. The caches take turns, there and back, so that what drifts drifts for all; \
shown are medians of wall times over the rollouts of the cell, and --json has every pass of every one. \
x off = total time of the cache off / that of the cell.

Examples:
  xtrain bench kv --set model.preset=tiny-1m
  xtrain bench kv --long --repeats 1 --json")]
    Kv(KvArgs),
    /// Measures the products of a model's matrices, each by itself: microseconds, operations per second.
    #[command(after_help = "\
A product is x W^T of --rows rows with one matrix of the configured sizes, random values, in the compute type. A \
sample is four rounds over several copies of the matrix, so that none stays in a GPU's cache, divided by the \
products; two samples do not count.

Examples:
  xtrain bench linear --set model.preset=tiny-3m --threads 1
  xtrain bench linear --set model.preset=base-125m --rows 1,256 --dtype bf16 --json")]
    Linear(LinearArgs),
    /// Measures opening a model: time beside that of a plain read, and the peak of memory.
    #[command(after_help = "\
A sample is one plain read of the files that hold the weights, one open, and one packing of the matrices for \
products, in this process, after a read that does not count and leaves the files in the system's cache. Peak memory is \
the most resident memory of the first sample over what the process had before it; Linux alone says it. Without \
--model a process of its own writes random weights in bf16 under the temporary directory, which are removed again.

Examples:
  xtrain bench load --model runs/shakespeare
  xtrain bench load --set model.preset=qwen3-0.6b --dtype bf16 --json")]
    Load(LoadArgs),
}

/// What every `xtrain bench` runs.
#[derive(Debug, Clone, Args)]
pub struct Shared {
    /// Prints one JSON object with the raw samples.
    #[arg(long)]
    pub json: bool,
    /// The configuration.
    #[command(flatten)]
    pub layers: Layers,
    /// Seed of the random weights [default: the configuration's, 0].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of `xtrain bench train`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// Steps that are measured, after three that are not.
    #[arg(long, value_name = "N", default_value = "20", value_parser = upto(1 << 32))]
    pub steps: usize,
    /// What is run.
    #[command(flatten)]
    pub shared: Shared,
}

/// Flags of `xtrain bench decode`.
#[derive(Debug, Clone, Args)]
pub struct DecodeArgs {
    /// A run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured sizes].
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub model: Option<PathBuf>,
    /// Sequences at once.
    #[arg(long, value_name = "N", default_value = "1")]
    pub batch: NonZeroUsize,
    /// All sequences complete one prompt, which is computed once.
    #[arg(long)]
    pub one_prompt: bool,
    /// Tokens of a prompt [default: 128, or half of the model's positions].
    #[arg(long, value_name = "TOKENS")]
    pub prompt_len: Option<NonZeroUsize>,
    /// New tokens of a sequence [default: 128, or half of the model's positions].
    #[arg(long, value_name = "N")]
    pub max_new: Option<NonZeroUsize>,
    /// Rollouts that are measured, after one that is not; medians are shown.
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeats: NonZeroUsize,
    /// On a GPU, the most steps before the host looks at the tokens.
    #[arg(long, value_name = "STEPS", default_value = "8")]
    pub look: NonZeroUsize,
    /// What is run.
    #[command(flatten)]
    pub shared: Shared,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// Flags of `xtrain bench kv`.
#[derive(Debug, Clone, Args)]
pub struct KvArgs {
    /// A run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured sizes].
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub model: Option<PathBuf>,
    /// Tokens of the prompt.
    #[arg(long, value_name = "TOKENS", default_value = "16")]
    pub prompt_len: NonZeroUsize,
    /// Measures n = 1024 too; lengths that a loaded model has no positions for are left out.
    #[arg(long)]
    pub long: bool,
    /// Rollouts of each cell that are measured, after one that is not; medians are shown.
    #[arg(long, value_name = "N", default_value = "3")]
    pub repeats: NonZeroUsize,
    /// What is run.
    #[command(flatten)]
    pub shared: Shared,
    /// The sizes of pages and passes.
    #[command(flatten)]
    pub sizes: CacheSizes,
}

/// Flags of `xtrain bench linear`.
#[derive(Debug, Clone, Args)]
pub struct LinearArgs {
    /// Rows of x, one measurement each.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16,256", value_parser = upto(1 << 16))]
    pub rows: Vec<usize>,
    /// Copies of a matrix [default: 128 MiB of them, from 4 to 512].
    #[arg(long, value_name = "N", value_parser = upto(1 << 16))]
    pub copies: Option<usize>,
    /// Samples; their spread is shown.
    #[arg(long, value_name = "N", default_value = "5", value_parser = upto(1 << 20))]
    pub repeats: usize,
    /// What is run.
    #[command(flatten)]
    pub shared: Shared,
}

/// A number from 1 to `most`.
fn upto(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Flags of `xtrain bench load`.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// A run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured sizes].
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub model: Option<PathBuf>,
    /// Samples; their spread is shown.
    #[arg(long, value_name = "N", default_value = "3")]
    pub repeats: NonZeroUsize,
    /// Opens it as training does: f32 weights stay, and matrices are packed afterwards.
    #[arg(long)]
    pub masters: bool,
    /// Writes the random weights there and measures nothing.
    #[arg(long, value_name = "OUT", hide = true, conflicts_with = "model")]
    pub make: Option<PathBuf>,
    /// What is run.
    #[command(flatten)]
    pub shared: Shared,
}

/// Measures.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(command: &BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Train(args) => train::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Kv(args) => kv::run(args),
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Load(args) => load::run(args),
    }
}
