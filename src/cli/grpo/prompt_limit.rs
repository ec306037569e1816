//! The longest prompt of a run.
use crate::cli::exit::{CliError, Exit};
use crate::config::GrpoSection;

/// The longest prompt that leaves room for one token in the context of the model, and the reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptLimit {
    tokens: usize,
    hint: &'static str,
}

impl PromptLimit {
    /// The limit of a model with `max_positions`.
    pub(super) fn new(section: &GrpoSection, max_positions: usize) -> PromptLimit {
        let context = max_positions.saturating_sub(1);
        let tokens = section.max_prompt_length.min(context);
        let hint = match tokens == context {
            true => "shorten the prompt; a completion needs at least one position of the model's context",
            false => "raise grpo.max_prompt_length, or shorten the prompt",
        };
        PromptLimit { tokens, hint }
    }

    /// Checks a prompt of `found` tokens. `place` starts the error.
    pub(super) fn check(&self, place: &str, found: usize) -> Result<(), CliError> {
        if found <= self.tokens {
            return Ok(());
        }
        let message = format!("{place}: expected a prompt of at most {} tokens, found {found}", self.tokens);
        Err(CliError::new(Exit::Data, message).hint(self.hint))
    }
}
