//! Flags and report of speculative decoding.
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::common::Common;
use super::loaded::{self, Loaded};
use super::{CliError, Exit};
use crate::decode::{Counters, EngineOptions, KvKind, Speculation};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;

/// Speculative decoding flags. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(super) struct SpeculationFlags {
    /// Draft tokens and verify several of them in one forward pass. The completions do not depend on it.
    #[arg(long, value_name = "DRAFTS", default_value = "off")]
    pub(super) speculate: SpeculateArg,
    /// Draft with this smaller model instead: a run, a checkpoint, a Hugging Face directory or a GGUF file with the
    /// same vocabulary.
    #[arg(long, value_name = "MODEL", conflicts_with = "speculate")]
    pub(super) draft: Option<PathBuf>,
}

/// Where drafted tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpeculateArg {
    /// One token per forward pass.
    Off,
    /// The tokens that followed the last tokens where they occurred before in prompt or completion.
    Lookup,
}

impl SpeculationFlags {
    /// `options` with these flags.
    ///
    /// # Errors
    /// Speculation without a KV cache, or with a sinks cache.
    pub(super) fn apply(&self, options: EngineOptions) -> Result<EngineOptions, CliError> {
        let speculation = match self.speculate {
            SpeculateArg::Off => Speculation::Off,
            SpeculateArg::Lookup => Speculation::PromptLookup,
        };
        if self.drafts() && options.kv == KvKind::Off {
            let flag = if self.draft.is_some() { "--draft" } else { "--speculate" };
            let message = format_args!("{flag} requires a KV cache, found --kv off");
            return Err(CliError::new(Exit::Usage, message).hint("remove one of the two flags"));
        }
        if self.drafts() && !options.kv.keeps_all() {
            let flag = if self.draft.is_some() { "--draft" } else { "--speculate" };
            let message = format_args!("{flag} requires a cache that can drop tokens, found --kv sinks");
            return Err(CliError::new(Exit::Usage, message).hint("remove one of the two flags"));
        }
        Ok(EngineOptions { speculation, ..options })
    }

    /// Whether tokens are drafted.
    fn drafts(&self) -> bool {
        self.draft.is_some() || self.speculate != SpeculateArg::Off
    }

    /// Opens the draft model of a model with this tokenizer. `None`: there is none.
    ///
    /// # Errors
    /// Its vocabulary is another one.
    pub(super) fn open_draft(
        &self,
        model: &Model,
        tokenizer: Option<&Tokenizer>,
        common: &Common,
    ) -> Result<Option<Loaded>, CliError> {
        let draft = self.draft.as_deref().map(|path| loaded::open(path, common)).transpose()?;
        draft.as_ref().map_or(Ok(()), |draft| require_vocabulary(draft, model, tokenizer))?;
        Ok(draft)
    }

    /// The report of a rollout with these flags. `None` if none was requested.
    pub(super) fn report(&self, counters: Counters) -> Option<SpeculationReport> {
        self.drafts().then(|| SpeculationReport::of(counters))
    }
}

/// Rejects a draft model whose vocabulary is not that of the model: a drafted id would be another token.
fn require_vocabulary(draft: &Loaded, model: &Model, tokenizer: Option<&Tokenizer>) -> Result<(), CliError> {
    let refuse = |what: String| {
        let message = format!("--draft {}: {what}", draft.path.display());
        Err(CliError::new(Exit::Usage, message).hint("choose a draft model with the tokenizer of the model"))
    };
    let [found, want] = [&draft.model, model].map(|model| model.config().vocab);
    if found != want {
        return refuse(format!("expected a vocabulary of {want} tokens, found {found}"));
    }
    if let (Some(draft), Some(own)) = (&draft.tokenizer, tokenizer) {
        let differs = (0..want as u32).find(|&id| draft.token_bytes(id) != own.token_bytes(id));
        if let Some(id) = differs {
            let [found, want] = [draft, own].map(|t| String::from_utf8_lossy(t.token_bytes(id)));
            return refuse(format!("token {id}: expected {want:?}, found {found:?}"));
        }
    }
    Ok(())
}

/// The drafted tokens of a rollout, as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct SpeculationReport {
    /// Drafted tokens that were verified.
    pub(super) drafted_tokens: u64,
    /// Those that the sampler chose, too.
    pub(super) accepted_tokens: u64,
    /// Accepted tokens divided by drafted ones. `None`: none was drafted.
    pub(super) acceptance_rate: Option<f64>,
}

impl SpeculationReport {
    fn of(counters: Counters) -> SpeculationReport {
        let Counters { drafted, accepted, .. } = counters;
        SpeculationReport {
            drafted_tokens: drafted,
            accepted_tokens: accepted,
            acceptance_rate: (drafted > 0).then(|| accepted as f64 / drafted as f64),
        }
    }

    /// One line of text.
    pub(super) fn text(&self) -> String {
        let SpeculationReport { drafted_tokens, accepted_tokens, acceptance_rate } = self;
        let rate = acceptance_rate.map_or(String::new(), |rate| format!(" ({:.0} %)", 100.0 * rate));
        format!("{accepted_tokens} of {drafted_tokens} drafted tokens accepted{rate}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acceptance_rate_is_that_of_the_drafted_tokens() {
        let of =
            |drafted, accepted| SpeculationReport::of(Counters { drafted, accepted, ..Counters::default() });
        let report = of(8, 6);
        assert_eq!(report.acceptance_rate, Some(0.75));
        assert_eq!(report.text(), "6 of 8 drafted tokens accepted (75 %)");
        assert_eq!(of(0, 0).text(), "0 of 0 drafted tokens accepted");
    }
}
