//! Flags of the commands that render messages.
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;

use super::{CliError, Exit};
use crate::model::chat::{ChatTemplate, Json, Options};
use crate::model::tokenizer::Tokenizer;

/// Which template, and what it is given.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Template")]
pub struct TemplateFlags {
    /// Jinja file that stands for the model's chat template.
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Sets a variable of the template, as enable_thinking=false; what is no JSON is text.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub var: Vec<(String, Variable)>,
}

/// A value for a template.
pub type Variable = Json;

impl TemplateFlags {
    /// What the template of `tokenizer` is given beside the messages; the date is today's, in UTC.
    pub fn options(&self, tokenizer: &Tokenizer) -> Options {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Options {
            variables: self.var.clone(),
            now: Some(i64::try_from(now).unwrap_or(0)),
            ..Options::of(tokenizer)
        }
    }

    /// The template: that of the flag, the model's, or the built-in one.
    ///
    /// # Errors
    /// A file that cannot be read; a template that is none.
    pub fn open(&self, tokenizer: &Tokenizer, options: &Options) -> Result<ChatTemplate, CliError> {
        let Some(file) = &self.template else {
            return Ok(ChatTemplate::of(tokenizer, None, options)?);
        };
        let bytes = std::fs::read(file).map_err(|error| CliError::io(file, &error))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| CliError::new(Exit::Data, format_args!("{}: want UTF-8 text", file.display())))?;
        let named = |error| CliError::new(Exit::Data, format_args!("{}: {error}", file.display()));
        ChatTemplate::parse(&text).map_err(named)
    }
}

/// A name and its value.
fn variable(text: &str) -> Result<(String, Json), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let plain = |c: char| c.is_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return Err("expected a name of letters, digits and _ before the =".into());
    }
    Ok((name.into(), Json::parse(value).unwrap_or_else(|_| Json::from(value))))
}
