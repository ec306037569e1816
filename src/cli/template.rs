//! Flags of the commands that render chat messages.
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;

use super::exit::CliError;
use super::input_file::read_text;
use crate::model::chat::{ChatTemplate, Json, Options};
use crate::model::tokenizer::Tokenizer;

/// The chat template and its variables.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Chat template")]
pub(super) struct TemplateFlags {
    /// Jinja file with a chat template [default: the model's template].
    #[arg(long, value_name = "FILE")]
    pub(super) template: Option<PathBuf>,
    /// Set a template variable, for example enable_thinking=false. The value is JSON, otherwise a string.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(super) var: Vec<(String, Json)>,
}

impl TemplateFlags {
    /// Variables and special tokens for the template of `tokenizer`. The date is today's date in UTC.
    pub(super) fn options(&self, tokenizer: &Tokenizer) -> Options {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Options {
            variables: self.var.clone(),
            now: Some(i64::try_from(now).unwrap_or(0)),
            ..Options::of(tokenizer)
        }
    }

    /// The template of the flag, of the model, or the built-in one.
    pub(super) fn open(&self, tokenizer: &Tokenizer, options: &Options) -> Result<ChatTemplate, CliError> {
        let Some(file) = &self.template else {
            return Ok(ChatTemplate::of(tokenizer, None, options)?);
        };
        Ok(ChatTemplate::parse_file(&read_text(file)?, Some(file))?)
    }
}

/// Parses NAME=VALUE.
fn variable(text: &str) -> Result<(String, Json), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let plain = |c: char| c.is_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return Err("expected NAME=VALUE, where NAME has letters, digits and _".into());
    }
    Ok((name.into(), Json::parse(value).unwrap_or_else(|_| Json::from(value))))
}
