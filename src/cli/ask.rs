//! What `generate` and `rollout` are both asked: the model, how far and how to draw.
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::{CacheFlags, Common, Sampling};
use super::loaded::{self, Loaded};
use crate::decode::{EngineOptions, Request, StopConditions};

/// What the help of both commands says of how a completion ends.
pub(super) const ENDS: &str = "\
finish_reason: eos (the model's end-of-text token, which is in the ids and not in the text), length \
(--max-new tokens), context (prompt and completion fill the model's positions, as many as it was trained \
with unless model.max_positions gave it more; a larger --max-new is no error).";

/// Flags of a command that completes prompts.
#[derive(Debug, Clone, Args)]
pub struct GenerationArgs {
    /// A run (its newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file.
    pub model: PathBuf,
    /// New tokens, at most; a completion that fills the model's positions ends there.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub max_new: usize,
    /// Goes on after the end-of-text token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Seed of every random number, from 0 to 2^64 - 1.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

impl GenerationArgs {
    /// The model.
    ///
    /// # Errors
    /// As [`loaded::open`].
    pub fn open(&self) -> Result<Loaded, CliError> {
        loaded::open(&self.model, &self.common)
    }

    /// The completion numbered `id` of `prompt`.
    pub fn request(&self, loaded: &Loaded, id: u64, prompt: Vec<u32>) -> Request {
        let eos = if self.ignore_eos { Vec::new() } else { loaded.eos.clone() };
        Request {
            id,
            seed: self.seed,
            prompt,
            options: self.sampling.options(),
            max_new: self.max_new,
            stop: StopConditions { eos, tokens: Vec::new() },
        }
    }

    /// An engine's options for sequences of at most `positions`, so many at a time.
    pub fn engine(&self, positions: Option<usize>, max_batch: usize) -> EngineOptions {
        EngineOptions { max_seq_len: positions, max_batch, ..self.cache.engine() }
    }
}

/// A number of new tokens.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n >= 1).ok_or_else(|| "expected at least 1 new token".to_string())
}
