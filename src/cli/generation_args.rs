//! Flags shared by `generate` and `rollout`: model, length, sampling.
use std::path::PathBuf;

use clap::Args;

use super::cache_flags::CacheFlags;
use super::common::Common;
use super::constraint::ConstraintFlags;
use super::loaded::Loaded;
use super::model_arg::ModelArg;
use super::parameters::Parameters;
use super::prefix::PrefixFlag;
use super::speculation::SpeculationFlags;
use super::{CliError, Exit};
use crate::decode::{EngineOptions, TextStops};

pub(super) const FINISH_REASONS: &str = "\
finish_reason is eos (the model generated an end-of-text token, which is included in the ids but not in the text), \
stop (the text reached a --stop text, whose tokens are included in the ids but which is not in the text; or the model \
generated a token of --stop-token-ids; or nothing can follow in a match of --regex or --json-schema), \
length (--max-new tokens were generated) or context (prompt and completion fill the model's context: \
model.max_positions, by default the training context; --max-new may be larger).";

/// Flags of a command that completes prompts.
#[derive(Debug, Clone, Args)]
pub(super) struct GenerationArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) parameters: Parameters,
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
    /// The files and directories that the command reads.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        let Self { model, prefix, speculation, constraint, .. } = self;
        let others = [prefix.prefix.clone(), speculation.draft.clone(), constraint.schema_file()];
        others.into_iter().flatten().chain([model.path().to_path_buf()]).collect()
    }

    /// The stop texts for the completions. `None`: there are none, and the model has no tokenizer.
    ///
    /// # Errors
    /// `--stop` with a model that has no tokenizer.
    pub(super) fn text_stops<'t>(&self, loaded: &'t Loaded) -> Result<Option<TextStops<'t>>, CliError> {
        let stop = &self.parameters.stop.stop;
        let tokenizer = match stop.is_empty() {
            true => loaded.tokenizer.as_ref(),
            false => Some(loaded.require_tokenizer("--stop", "remove --stop; --max-new limits the length")?),
        };
        Ok(tokenizer.map(|tokenizer| TextStops::new(tokenizer, stop.clone())))
    }

    /// Checks that the tokens of `--stop-token-ids` are in the vocabulary of the model.
    pub(super) fn check_stop_token_ids(&self, loaded: &Loaded) -> Result<(), CliError> {
        let (ids, vocab) = (&self.parameters.stop_token_ids, loaded.model.config().vocab);
        let Some(found) = ids.iter().find(|&&id| id as usize >= vocab) else { return Ok(()) };
        let message = format_args!("--stop-token-ids: expected token ids below {vocab}, found {found}");
        Err(CliError::new(Exit::Usage, message))
    }

    /// Opens the draft model of `loaded`. `None`: there is none.
    ///
    /// # Errors
    /// Its vocabulary is another one.
    pub(super) fn open_draft(&self, loaded: &Loaded) -> Result<Option<Loaded>, CliError> {
        self.speculation.open_draft(&loaded.model, loaded.tokenizer.as_ref(), &self.common)
    }

    /// What ends a completion with the finish reason `stop`.
    pub(super) fn why_stopped(&self) -> String {
        let Parameters { stop, stop_token_ids, .. } = &self.parameters;
        let causes = [
            (!stop.stop.is_empty(), "--stop"),
            (!stop_token_ids.is_empty(), "--stop-token-ids"),
            (self.constraint.is_given(), "nothing can follow"),
        ];
        let causes = causes.into_iter().filter_map(|(possible, name)| possible.then_some(name));
        causes.collect::<Vec<_>>().join(", or ")
    }

    /// The engine options of these flags.
    ///
    /// # Errors
    /// Flags that exclude each other.
    pub(super) fn engine(&self) -> Result<EngineOptions, CliError> {
        Ok(self.prefix.apply(self.speculation.apply(self.cache.engine())?))
    }
}
