//! Flags of `xtrain bench`.
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::cache_kinds_args::CacheKindsArgs;
use super::gpu_spec::TargetGpu;
use super::guard::GuardArgs;
use super::scale_args::ScaleArgs;
use super::shared::Shared;
use super::trace_args::TraceArgs;
use crate::cli::cache_flags::{CacheFlags, CacheSizes};
use crate::cli::common::{count, share, temperature, up_to};
use crate::cli::speculation::SpeculationFlags;

/// Commands of `xtrain bench`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BenchCommand {
    /// Benchmark training steps on random tokens: milliseconds per step, tokens per second.
    #[command(after_help = "\
A sample is the wall-clock time of one step (forward, backward, optimizer) on a batch of random tokens, after three \
warmup steps in the same process. The table summarizes the samples; --json lists all of them.

Examples:
  xtrain bench train --set model.preset=tiny-1m
  xtrain bench train -c configs/shakespeare.toml --threads 1 --json
  xtrain bench train --set model.preset=base-125m --dtype bf16 --estimate h200")]
    Train(BenchTrainArgs),
    /// Benchmark decoding: time to first token, tokens per second, slope over the position.
    #[command(after_help = "\
A sample is one complete rollout, after one warmup rollout in the same process. Every forward pass is timed with the \
wall clock. The table shows medians over the samples; --json lists every pass of every sample. \
decode_tokens_per_second is the number of tokens after the first of each sequence, divided by the total time of \
their passes. time_to_first_token_ms is the total time of the passes until every sequence has its first token. With \
--speculate or --draft, as many rollouts without drafts are measured afterwards; speedup is the \
ratio of the medians of the total times.

Examples:
  xtrain bench decode --model runs/shakespeare --batch 32
  xtrain bench decode --set model.preset=tiny-3m --temperature 1 --top-p 0.9
  xtrain bench decode --model runs/shakespeare --speculate lookup
  xtrain bench decode --set model.preset=tiny-3m --prompt-len 512 --max-new 128 --json
  xtrain bench decode --set model.preset=base-125m --dtype bf16 --batch 32 --estimate h200")]
    Decode(DecodeArgs),
    /// Compare the KV caches off, growing, contiguous and paged at n = 32, 128, 256 new tokens.
    #[command(after_help = "\
A row is one cache at one n: greedy rollouts of one random prompt, one warmup rollout and --repeats measured ones, \
in the same process. The caches alternate, forward and backward, so that drift affects all of them equally. The \
table shows medians of wall-clock times; --json lists every pass of every rollout. The column `speedup` is the total \
time without a cache, divided by the total time of the row.

Examples:
  xtrain bench kv --set model.preset=tiny-1m
  xtrain bench kv --long --repeats 1 --json")]
    Kv(KvArgs),
    /// Compare the kinds of KV cache under one byte budget: bytes, context, waste, speed and perplexity.
    #[command(after_help = "\
A row is one kind of cache. Its bytes per token are those of the formula, 2 x layers x kv heads x bytes of a head, and \
those of the tensors divided by their slots; its context is the number of positions in the budget. The times are \
medians of --repeats greedy rollouts of --batch random prompts, after one warmup rollout; the kinds alternate. \
Perplexity and waste are those of 32 windows of a text, of 128 to 256 tokens, that the cache holds at the same time; \
a model with a shorter context gets shorter windows; waste is the share of the slots in use that hold no position. `difference` is relative to an exact cache: all \
exact kinds have the same bits. The second table compares published claims with the measured values; prefix sharing \
is measured with eight sampled completions of one prompt.

Examples:
  xtrain bench cache-kinds --set model.preset=tiny-1m
  xtrain bench cache-kinds --model runs/shakespeare --text examples/data/tinyshakespeare.txt \\
      --budget-mib 16 --json")]
    CacheKinds(CacheKindsArgs),
    /// Benchmark each matrix product of a model: microseconds, operations per second.
    #[command(after_help = "\
A product is x W^T, with --rows rows of x and one matrix of the configured sizes, random values, in the compute \
dtype. A sample is the time of four passes over several copies of the matrix, so that no copy stays in the GPU \
cache, divided by the number of products. Two warmup samples are not counted.

Examples:
  xtrain bench linear --set model.preset=tiny-3m --threads 1
  xtrain bench linear --set model.preset=base-125m --rows 1,256 --dtype bf16 --json")]
    Linear(LinearArgs),
    /// Benchmark opening a model: time compared with a plain read of the files, and peak memory.
    #[command(after_help = "\
A sample is one plain read of the weight files, one open, and with --masters one packing of the matrices, in the \
same process. One read is not measured: it loads the files into the page cache. Peak memory is the maximum resident \
memory of the first sample minus the resident memory before it; it is available on Linux only. Without --model, a \
child process writes random bf16 weights to a temporary directory, which is removed at the end.

Examples:
  xtrain bench load --model runs/shakespeare
  xtrain bench load --set model.preset=qwen3-0.6b --dtype bf16 --json")]
    Load(LoadArgs),
    /// Benchmark serving: time to first token, time between tokens and goodput of requests that arrive over time.
    #[command(after_help = "\
The requests of a trace are a function of --trace-seed and the other flags of the trace: arrival times, lengths and \
random prompts. The clock is the measured time of the steps; where no request runs, it moves on to the next arrival. \
Time to first token counts from the arrival. The goodput is the number of requests per second that meet both limits. \
A waiting request of priority p runs before each request of priority q >= p that arrives --ageing * (q - p) steps or \
more after it, so none starves. The model runs one short request before the clock starts. --requests and --burst are \
at most 1000000, --prompt-len and --max-new at most 16777216, and --rate is at least 0.001.

Examples:
  xtrain bench trace --set model.preset=tiny-3m
  xtrain bench trace --model runs/shakespeare --arrivals bursty --burst 32 --rate 50 --json
  xtrain bench trace --set model.preset=tiny-1m --high-priority 0.2 \\
      --kv-capacity 2048 --watermark 512")]
    Trace(TraceArgs),
    /// Measure the training step of several processes, and estimate it for up to 4096.
    #[command(after_help = "\
Each process computes one shard of train.batch windows. This machine measures its gradient, its update and the \
addition of two gradients. Under mpirun, the step of all processes is measured as well. --estimate adds the time of the \
exchange: each process receives 2 P (R - 1) / R numbers of 4 bytes at --bandwidth, and (G + 1) (R - 1) + 3 log2(R) \
messages wait for --latency-us each, for G groups of layers. The update is divided by R.

Examples:
  xtrain bench scale --set model.preset=tiny-3m --estimate
  xtrain bench scale --set model.preset=tiny-1m --estimate --latency-us 2 --bandwidth 12.5 --json
  mpirun -n 2 xtrain bench scale --set model.preset=tiny-1m --threads 1")]
    Scale(ScaleArgs),
    /// Compare the speed of this CPU with committed figures: a guard against slower code.
    #[command(after_help = "\
Runs small pieces of training and decoding on one thread, each next to a fixed loop of arithmetic, and prints the ratio \
of the least times. The ratio depends little on the clock rate and the load of the machine, so it can be compared with \
the ratio that is committed for the same CPU and instruction set. Exits with code 1 if a workload takes more than \
--tolerance longer.

Examples:
  xtrain bench guard
  xtrain bench guard --rounds 200 --json")]
    Guard(GuardArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchTrainArgs {
    /// Number of measured steps, after three warmup steps.
    #[arg(long, value_name = "N", default_value = "20", value_parser = up_to(1 << 32))]
    pub(super) steps: usize,
    /// Estimate a step on this GPU instead: the kernel launches that the host code issues, and the lower bound of
    /// their time. Needs no GPU.
    #[arg(long, value_name = "GPU", conflicts_with_all = ["device", "steps"])]
    pub(super) estimate: Option<TargetGpu>,
    #[command(flatten)]
    pub(super) shared: Shared,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DecodeArgs {
    /// Model: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured
    /// sizes].
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub(super) model: Option<PathBuf>,
    /// Batch size: number of sequences.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub(super) batch: NonZeroUsize,
    /// All sequences share one prompt, which is prefilled once.
    #[arg(long)]
    pub(super) one_prompt: bool,
    /// Prompt length [default: 128, or half of the model's context].
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(super) prompt_len: Option<NonZeroUsize>,
    /// New tokens per sequence [default: 128, or half of the model's context].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(super) max_new: Option<NonZeroUsize>,
    /// Softmax temperature; 0 = greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    pub(super) temperature: f32,
    /// Top-p sampling, with a temperature above 0; 1 = keep all.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    pub(super) top_p: f32,
    /// Number of measured rollouts, after one warmup rollout.
    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    pub(super) repeats: NonZeroUsize,
    /// GPU: decode steps between two synchronizations with the host.
    #[arg(long, alias = "look", value_name = "STEPS", default_value = "8", value_parser = count)]
    pub(crate) sync_every: NonZeroUsize,
    /// Estimate a step on this GPU instead: the kernel launches that the host code issues, and the lower bound of
    /// their time. Needs no GPU.
    #[arg(
        long,
        value_name = "GPU",
        conflicts_with_all = ["model", "device", "repeats", "sync_every", "speculate", "draft"]
    )]
    pub(super) estimate: Option<TargetGpu>,
    #[command(flatten)]
    pub(super) shared: Shared,
    #[command(flatten)]
    pub(super) cache: CacheFlags,
    #[command(flatten)]
    pub(super) speculation: SpeculationFlags,
}

impl DecodeArgs {
    /// Prompt length and number of new tokens, each `default` unless given.
    pub(super) fn lengths(&self, default: usize) -> [usize; 2] {
        [self.prompt_len, self.max_new].map(|n| n.map_or(default, NonZeroUsize::get))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct KvArgs {
    /// Model: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured
    /// sizes].
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub(super) model: Option<PathBuf>,
    /// Prompt length.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = count)]
    pub(super) prompt_len: NonZeroUsize,
    /// Also measure n = 1024. Lengths that exceed the context of a loaded model are skipped.
    #[arg(long)]
    pub(super) long: bool,
    /// Number of measured rollouts per row, after one warmup rollout.
    #[arg(long, value_name = "N", default_value = "3", value_parser = count)]
    pub(super) repeats: NonZeroUsize,
    #[command(flatten)]
    pub(super) shared: Shared,
    #[command(flatten)]
    pub(super) sizes: CacheSizes,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LinearArgs {
    /// Numbers of rows of x; each is measured separately.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16,256", value_parser = up_to(1 << 16))]
    pub(super) rows: Vec<usize>,
    /// Number of copies of each matrix [default: 128 MiB in total, 4 to 512 copies].
    #[arg(long, value_name = "N", value_parser = up_to(1 << 16))]
    pub(super) copies: Option<usize>,
    /// Number of samples.
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to(1 << 20))]
    pub(super) repeats: usize,
    #[command(flatten)]
    pub(super) shared: Shared,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// Model: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured
    /// sizes].
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub(super) model: Option<PathBuf>,
    /// Number of samples.
    #[arg(long, value_name = "N", default_value = "3", value_parser = count)]
    pub(super) repeats: NonZeroUsize,
    /// Open the model for training: keep f32 master weights, and pack the matrices afterwards.
    #[arg(long)]
    pub(super) masters: bool,
    /// Write the random weights to OUT and exit.
    #[arg(long, value_name = "OUT", hide = true, conflicts_with = "model")]
    pub(super) make: Option<PathBuf>,
    #[command(flatten)]
    pub(super) shared: Shared,
}
