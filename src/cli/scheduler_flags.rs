//! Budgets of the scheduler.
use std::num::NonZeroUsize;

use clap::Args;

use super::common::{count, number};
use super::offload::OffloadFlags;
use super::{CliError, Exit};
use crate::decode::EngineOptions;
use crate::tensor::faults::{self, Fault};

/// Scheduler flags. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scheduler")]
pub(super) struct SchedulerFlags {
    /// Maximum number of tokens in a forward pass, prompts included [default: no limit].
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(super) max_batched_tokens: Option<NonZeroUsize>,
    /// Tokens that the KV cache has room for, of all sequences together [default: room for --max-batch-size sequences of
    /// the maximum length, which is also the maximum].
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(super) kv_capacity: Option<NonZeroUsize>,
    /// Tokens of the KV cache, in whole pages, that must stay free when a sequence is admitted while others run, so
    /// that the running ones can grow. 0 = admit every sequence that fits, and preempt when the cache is full. Use at
    /// least one page per running sequence. For --kv paged and int8 [default: with --kv-capacity, what the running
    /// sequences are expected to need].
    #[arg(long, value_name = "TOKENS", value_parser = whole)]
    pub(super) watermark: Option<usize>,
    #[command(flatten)]
    pub(super) offload: OffloadFlags,
}

impl SchedulerFlags {
    /// `options` with these flags.
    pub(super) fn apply(&self, options: EngineOptions) -> EngineOptions {
        let options = self.offload.apply(options);
        EngineOptions {
            max_batched_tokens: self.max_batched_tokens.map(NonZeroUsize::get),
            kv_capacity: self.kv_capacity.map(NonZeroUsize::get),
            watermark: self.watermark.filter(|_| !faults::on(Fault::WatermarkFlagIgnored)),
            ..options
        }
    }

    /// `options` with a KV cache that has room for a sequence of `longest` positions, and at most for all sequences.
    /// `shorter`: what makes it shorter, for a hint.
    ///
    /// # Errors
    /// A value of --kv-capacity with less room, in whole pages.
    pub(super) fn fit(
        &self,
        options: EngineOptions,
        longest: usize,
        shorter: &str,
    ) -> Result<EngineOptions, CliError> {
        let want = options.kv.slots(longest);
        if let Some(found) = options.kv_capacity.filter(|&found| found < want) {
            let message =
                format!("--kv-capacity {found}: expected at least {want}, for the longest sequence");
            let shorter = if options.kv.keeps_all() { shorter } else { "--kv-window" };
            let hint = format!("increase --kv-capacity, or reduce {shorter}");
            return Err(CliError::new(Exit::Usage, message).hint(hint));
        }
        let all = want.max(1).saturating_mul(options.max_batch);
        Ok(EngineOptions { kv_capacity: options.kv_capacity.map(|n| n.min(all)), ..options })
    }
}

fn whole(text: &str) -> Result<usize, String> {
    number(text, |_| true, "expected a whole number of at least 0")
}
