//! Flags of `xtrain bench cache-kinds`.
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::shared::Shared;
use crate::cli::cache_flags::CacheSizes;
use crate::cli::common::{count, up_to};

#[derive(Debug, Clone, Args)]
pub(crate) struct CacheKindsArgs {
    /// Model: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured
    /// sizes].
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub(super) model: Option<PathBuf>,
    /// Text file for the perplexity [default: samples of the model].
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(super) text: Option<PathBuf>,
    /// Size of the cache in MiB.
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = up_to(1 << 20))]
    pub(super) budget_mib: usize,
    /// Batch size: number of sequences.
    #[arg(long, value_name = "N", default_value = "4", value_parser = count)]
    pub(super) batch: NonZeroUsize,
    /// Prompt length [default: 64, or half of the model's context].
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(super) prompt_len: Option<NonZeroUsize>,
    /// New tokens per sequence [default: 64, or half of the model's context].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(super) max_new: Option<NonZeroUsize>,
    /// Number of measured rollouts per kind, after one warmup rollout.
    #[arg(long, value_name = "N", default_value = "3", value_parser = count)]
    pub(super) repeats: NonZeroUsize,
    #[command(flatten)]
    pub(super) shared: Shared,
    #[command(flatten)]
    pub(super) sizes: CacheSizes,
}

impl CacheKindsArgs {
    /// Prompt length and number of new tokens, each `default` unless given.
    pub(super) fn lengths(&self, default: usize) -> [usize; 2] {
        [self.prompt_len, self.max_new].map(|n| n.map_or(default, NonZeroUsize::get))
    }
}
