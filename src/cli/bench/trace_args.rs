//! Flags of `xtrain bench trace`.
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::arrivals::{Pattern, TraceSpec};
use super::shared::Shared;
use crate::cli::cache_flags::CacheFlags;
use crate::cli::common::{count, number};
use crate::cli::scheduler_flags::SchedulerFlags;
use crate::cli::speculation::SpeculationFlags;
use crate::cli::{CliError, Exit};
use crate::decode::{EngineOptions, KvKind};

#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Model: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights of the configured
    /// sizes].
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = ["config", "set", "seed"])]
    pub(super) model: Option<PathBuf>,
    /// Number of requests.
    #[arg(long, value_name = "N", default_value = "200", value_parser = requests)]
    requests: NonZeroUsize,
    /// How requests arrive.
    #[arg(long, value_name = "PATTERN", default_value = "poisson")]
    arrivals: Pattern,
    /// Mean arrivals per second.
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = rate)]
    rate: f64,
    /// Requests that arrive together, with --arrivals bursty [default: 16].
    #[arg(long, value_name = "N", value_parser = requests)]
    burst: Option<NonZeroUsize>,
    /// Mean prompt tokens; uniform from half to one and a half of it [default: 64, or less if
    /// the model's context is short].
    #[arg(long, value_name = "TOKENS", value_parser = length)]
    prompt_len: Option<NonZeroUsize>,
    /// Mean new tokens; uniform from half to one and a half of it [default: 64, or less if
    /// the model's context is short].
    #[arg(long, value_name = "N", value_parser = length)]
    max_new: Option<NonZeroUsize>,
    /// Share of the requests with priority 1; the others have priority 0.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    high_priority: f64,
    /// Steps of waiting that one level of priority is worth.
    #[arg(long, value_name = "STEPS", default_value = "32", value_parser = count)]
    ageing: NonZeroUsize,
    /// Seed of the trace: arrivals, lengths, prompts and sampling.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::cli::common::whole)]
    trace_seed: u64,
    /// Goodput: longest time to the first token, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000.0, value_parser = positive)]
    pub(super) limit_ttft: f64,
    /// Goodput: longest time between two tokens, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = positive)]
    pub(super) limit_gap: f64,
    /// Maximum number of requests that run concurrently.
    #[arg(long, value_name = "N", default_value = "32", value_parser = count)]
    max_batch_size: NonZeroUsize,
    #[command(flatten)]
    pub(super) shared: Shared,
    #[command(flatten)]
    pub(super) scheduler: SchedulerFlags,
    #[command(flatten)]
    cache: CacheFlags,
    #[command(flatten)]
    pub(super) speculation: SpeculationFlags,
}

/// Default mean of prompt tokens and of new tokens.
const DEFAULT_LEN: usize = 64;

impl TraceArgs {
    /// The trace for a model with a context of `context` tokens.
    pub(super) fn spec(&self, context: usize) -> TraceSpec {
        // a mean of n is at most 1.5 n tokens, and both together fill at most the context
        let [prompt, new] = [self.prompt_len, self.max_new].map(|given| given.map(NonZeroUsize::get));
        let beside = |other: Option<usize>| match other {
            Some(other) => context.saturating_sub(other.saturating_add(other.div_ceil(2))) / 3 * 2,
            None => context / 3,
        };
        let default = |other| DEFAULT_LEN.min(beside(other)).max(1);
        TraceSpec {
            pattern: self.arrivals,
            requests: self.requests.get(),
            rate: self.rate,
            burst: self.burst.map_or(16, NonZeroUsize::get),
            prompt_len: prompt.unwrap_or_else(|| default(new)),
            max_new: new.unwrap_or_else(|| default(prompt)),
            high_priority: self.high_priority,
            seed: self.trace_seed,
        }
    }

    /// Checks that no burst is given with arrivals one at a time.
    ///
    /// # Errors
    /// `--burst` without `--arrivals bursty`.
    pub(super) fn check(&self) -> Result<(), CliError> {
        match (self.burst, self.arrivals) {
            (Some(burst), Pattern::Poisson) => {
                let message = format!("--burst {burst}: expected --arrivals bursty, found poisson");
                Err(CliError::new(Exit::Usage, message).hint("add --arrivals bursty, or remove --burst"))
            }
            _ => Ok(()),
        }
    }

    /// The kind of cache.
    pub(super) fn kv(&self) -> KvKind {
        self.cache.engine().kv
    }

    /// The engine options for sequences of at most `longest` positions.
    pub(in crate::cli) fn options(&self, longest: usize) -> Result<EngineOptions, CliError> {
        let options = self.speculation.apply(self.scheduler.apply(self.cache.engine()))?;
        let (ageing, max_batch) = (self.ageing.get(), self.max_batch_size.get());
        // one step per synchronization: the time of each token counts
        let options =
            EngineOptions { max_batch, max_seq_len: Some(longest), ageing, steps_per_sync: 1, ..options };
        self.scheduler.fit(options, longest, "--max-new")
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |&x| x > 0.0 && f64::is_finite(x), "expected a number above 0")
}

fn requests(text: &str) -> Result<NonZeroUsize, String> {
    number(text, |n: &NonZeroUsize| n.get() <= 1_000_000, "expected a whole number from 1 to 1000000")
}

/// Parses a mean length. The longest sequence has at most 3 * 2^24 tokens.
fn length(text: &str) -> Result<NonZeroUsize, String> {
    number(text, |n: &NonZeroUsize| n.get() <= 1 << 24, "expected a whole number from 1 to 16777216")
}

/// Parses a rate. All arrival times are finite.
fn rate(text: &str) -> Result<f64, String> {
    number(text, |x| (1e-3..=1e9).contains(x), "expected a number from 0.001 to 1e9")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |x| (0.0..=1.0).contains(x), "expected a number from 0 to 1")
}
