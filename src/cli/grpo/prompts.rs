//! The prompts of a run.
use std::path::Path;
use std::sync::Arc;

use super::prompt_limit::PromptLimit;
use super::setup::Setup;
use crate::cli::exit::{CliError, Exit};
use crate::config::GrpoSection;
use crate::grpo;
use crate::grpo::batch::Prompt;
use crate::grpo::prompts::text_prompt;
use crate::model::Config;
use crate::model::tasks::{EncodedPrompt, PromptFile, PromptRecord, PromptSet};
use crate::model::tokenizer::Tokenizer;

/// The prompts of a JSONL file for a model of these sizes. Each leaves room for one token.
pub(super) fn read(
    section: &GrpoSection,
    file: &str,
    tokenizer: &Tokenizer,
    cfg: &Config,
) -> Result<Vec<Arc<Prompt>>, CliError> {
    let prompts = PromptFile::open(Path::new(file))?;
    let encoded = prompts.encode(Some(tokenizer))?;
    let limit = PromptLimit::new(section, cfg.max_positions);
    let prompt = |(record, prompt): (&PromptRecord, EncodedPrompt)| {
        let EncodedPrompt { text, ids } = prompt;
        let text = text.unwrap_or_default();
        let place = format!("{file}:{}", record.line);
        limit.check(&place, ids.len())?;
        if let Some(at) = ids.iter().position(|&id| id as usize >= cfg.vocab) {
            let (want, found) = (cfg.vocab, ids[at]);
            let message =
                format!("{place}: prompt position {at}: expected a token id below {want}, found {found}");
            return Err(CliError::new(Exit::Data, message));
        }
        Ok(Arc::new(Prompt { text, ids, columns: record.columns.clone() }))
    };
    prompts.records().iter().zip(encoded).map(prompt).collect()
}

impl Setup<'_> {
    /// The held-out prompts: those of `grpo.eval_prompts`, or of the task.
    pub(super) fn held_out(&self, tokenizer: &Tokenizer, cfg: &Config) -> Result<Vec<Arc<Prompt>>, CliError> {
        let mut prompts = match (self.section.eval_prompts.as_str(), self.task) {
            ("", None) => Vec::new(),
            ("", Some(task)) => {
                let texts = task.prompts(PromptSet::HeldOut).into_iter();
                let prompts = texts.map(|text| Ok(Arc::new(text_prompt(text, tokenizer)?)));
                prompts.collect::<Result<_, grpo::Error>>()?
            }
            (file, _) => read(self.section, file, tokenizer, cfg)?,
        };
        if self.section.eval_limit > 0 {
            prompts.truncate(self.section.eval_limit);
        }
        Ok(prompts)
    }
}
