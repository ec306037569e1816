//! Flags shared by `generate` and `rollout`: model, length, sampling.
use clap::Args;

use super::CliError;
use super::common::{CacheFlags, Common, Sampling, StopFlag, at_least_one, whole};
use super::constraint::ConstraintFlags;
use super::loaded::Loaded;
use super::model_arg::ModelArg;
use super::prefix::PrefixFlag;
use super::speculation::SpeculationFlags;
use crate::decode::{EngineOptions, Request, StopConditions, TextStops};

pub(super) const FINISH_REASONS: &str = "\
finish_reason is eos (the model generated an end-of-text token, which is included in the ids but not in the text), \
stop (the text reached a --stop text, whose tokens are included in the ids but which is not in the text; or nothing can \
follow in a match of --regex or --json-schema), \
length (--max-new tokens were generated) or context (prompt and completion fill the model's context: \
model.max_positions, by default the training context; --max-new may be larger).";

/// Flags of a command that completes prompts.
#[derive(Debug, Clone, Args)]
pub(super) struct GenerationArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// Maximum number of new tokens. A completion also ends when the model's context is full, except with --kv sinks.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub(super) max_new: usize,
    /// Continue after end-of-text tokens.
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Random seed, 0 to 2^64 - 1.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(super) stop: StopFlag,
    #[command(flatten)]
    pub(super) constraint: ConstraintFlags,
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) cache: CacheFlags,
    #[command(flatten)]
    pub(super) prefix: PrefixFlag,
    #[command(flatten)]
    pub(super) speculation: SpeculationFlags,
}

impl GenerationArgs {
    /// The stop texts for the completions. `None`: there are none, and the model has no tokenizer.
    ///
    /// # Errors
    /// `--stop` with a model that has no tokenizer.
    pub(super) fn text_stops<'t>(&self, loaded: &'t Loaded) -> Result<Option<TextStops<'t>>, CliError> {
        let StopFlag { stop } = &self.stop;
        let tokenizer = match stop.is_empty() {
            true => loaded.tokenizer.as_ref(),
            false => Some(loaded.require_tokenizer("--stop", "remove --stop; --max-new limits the length")?),
        };
        Ok(tokenizer.map(|tokenizer| TextStops::new(tokenizer, stop.clone())))
    }

    /// Opens the draft model of `loaded`. `None`: there is none.
    ///
    /// # Errors
    /// Its vocabulary is another one.
    pub(super) fn open_draft(&self, loaded: &Loaded) -> Result<Option<Loaded>, CliError> {
        self.speculation.open_draft(&loaded.model, loaded.tokenizer.as_ref(), &self.common)
    }

    /// What ends a completion with the finish reason `stop`.
    pub(super) fn why_stopped(&self) -> &'static str {
        match (self.constraint.is_given(), self.stop.stop.is_empty()) {
            (false, _) => "--stop",
            (true, true) => "nothing can follow",
            (true, false) => "--stop, or nothing can follow",
        }
    }

    /// The engine options of these flags.
    ///
    /// # Errors
    /// Flags that exclude each other.
    pub(super) fn engine(&self) -> Result<EngineOptions, CliError> {
        Ok(self.prefix.apply(self.speculation.apply(self.cache.engine())?))
    }

    /// The request for the completion `id` of `prompt`, without a constraint. `eos`: the end-of-text tokens of the
    /// model.
    pub(super) fn request(&self, eos: &[u32], id: u64, prompt: Vec<u32>) -> Request {
        let eos = if self.ignore_eos { Vec::new() } else { eos.to_vec() };
        Request {
            id,
            seed: self.seed,
            prompt,
            options: self.sampling.options(),
            max_new: self.max_new,
            stop: StopConditions { eos, tokens: Vec::new() },
            constraint: None,
        }
    }
}
