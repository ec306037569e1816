//! The prompts of a run.
use std::path::Path;
use std::sync::Arc;

use super::prompt_limit::PromptLimit;
use super::setup::Setup;
use crate::cli::exit::CliError;
use crate::grpo;
use crate::grpo::batch::Prompt;
use crate::grpo::prompts::text_prompt;
use crate::model::tasks::{EncodedPrompt, PromptFile, PromptRecord, PromptSet};
use crate::model::tokenizer::Tokenizer;

impl Setup<'_> {
    /// The prompts of a JSONL file. Each leaves room for one token in `max_positions`.
    pub(super) fn prompts(
        &self,
        file: &str,
        tokenizer: &Tokenizer,
        max_positions: usize,
    ) -> Result<Vec<Arc<Prompt>>, CliError> {
        let prompts = PromptFile::open(Path::new(file))?;
        let encoded = prompts.encode(Some(tokenizer))?;
        let limit = PromptLimit::new(self.section, max_positions);
        let prompt = |(record, prompt): (&PromptRecord, EncodedPrompt)| {
            let EncodedPrompt { text, ids } = prompt;
            let text = text.unwrap_or_default();
            limit.check(&format!("{file}:{}", record.line), ids.len())?;
            Ok(Arc::new(Prompt { text, ids, columns: record.columns.clone() }))
        };
        prompts.records().iter().zip(encoded).map(prompt).collect()
    }

    /// The held-out prompts: those of `grpo.eval_prompts`, or of the task.
    pub(super) fn held_out(
        &self,
        tokenizer: &Tokenizer,
        max_positions: usize,
    ) -> Result<Vec<Arc<Prompt>>, CliError> {
        let mut prompts = match (self.section.eval_prompts.as_str(), self.task) {
            ("", None) => Vec::new(),
            ("", Some(task)) => {
                let texts = task.prompts(PromptSet::HeldOut).into_iter();
                let prompts = texts.map(|text| Ok(Arc::new(text_prompt(text, tokenizer)?)));
                prompts.collect::<Result<_, grpo::Error>>()?
            }
            (file, _) => self.prompts(file, tokenizer, max_positions)?,
        };
        if self.section.eval_limit > 0 {
            prompts.truncate(self.section.eval_limit);
        }
        Ok(prompts)
    }
}
