//! Budgets of the scheduler.
use std::num::NonZeroUsize;

use clap::Args;

use super::common::{count, number};
use super::{CliError, Exit};
use crate::decode::{EngineOptions, KvKind};

/// Scheduler flags. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scheduler")]
pub(super) struct SchedulerFlags {
    /// Maximum number of tokens in a forward pass, prompts included [default: no limit].
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(super) max_batched_tokens: Option<NonZeroUsize>,
    /// Tokens that the KV cache has room for, of all sequences together [default: --max-batch-size sequences of the
    /// longest length].
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(super) kv_capacity: Option<NonZeroUsize>,
    /// Tokens of the KV cache that stay free when a sequence starts besides others, so that these can grow; 0 = start
    /// sequences as long as they fit, and preempt when the cache is full. For --kv paged.
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = whole)]
    pub(super) watermark: usize,
    /// Steps by which each completion of a prompt counts as submitted after the one before; 0 = a prompt with all its
    /// completions runs before later prompts.
    #[arg(long, value_name = "STEPS", default_value_t = 0, value_parser = whole)]
    pub(super) group_spacing: usize,
}

impl SchedulerFlags {
    /// `options` with these flags.
    pub(super) fn apply(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            max_batched_tokens: self.max_batched_tokens.map(NonZeroUsize::get),
            kv_capacity: self.kv_capacity.map(NonZeroUsize::get),
            watermark: self.watermark,
            group_spacing: self.group_spacing,
            ..options
        }
    }

    /// Rejects a cache that has no room for a sequence of `longest` positions.
    ///
    /// # Errors
    /// A value of --kv-capacity with less room, in whole pages.
    pub(super) fn require_room(&self, options: &EngineOptions, longest: usize) -> Result<(), CliError> {
        let page = if let KvKind::Paged { page } = options.kv { page } else { 1 };
        let want = longest.div_ceil(page) * page;
        match self.kv_capacity.map(NonZeroUsize::get) {
            Some(found) if found < want => {
                let message =
                    format!("--kv-capacity {found}: expected at least {want}, for the longest sequence");
                Err(CliError::new(Exit::Usage, message).hint("increase --kv-capacity, or reduce --max-new"))
            }
            _ => Ok(()),
        }
    }
}

fn whole(text: &str) -> Result<usize, String> {
    number(text, |_| true, "expected a whole number of at least 0")
}
