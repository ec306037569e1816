//! The prompt of `xtrain generate`: text of a flag or of standard input, or token ids.
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use super::exit::{CliError, Exit};
use super::input_file::text_of;
use super::loaded::Loaded;

/// Maximum length of a prompt on standard input, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Where a prompt comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum PromptSource<'a> {
    /// `--prompt TEXT`.
    Text(&'a str),
    /// `--prompt -`.
    Stdin,
    /// `--tokens IDS`.
    Ids(&'a [u32]),
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PromptInput {
    pub(super) ids: Vec<u32>,
    /// Its text. `None`: ids without a tokenizer.
    pub(super) text: Option<String>,
}

impl<'a> PromptSource<'a> {
    /// The source that the flags name. clap requires one of them.
    pub(super) fn of(prompt: Option<&'a str>, tokens: Option<&'a [u32]>) -> PromptSource<'a> {
        match prompt {
            Some("-") => PromptSource::Stdin,
            Some(text) => PromptSource::Text(text),
            None => PromptSource::Ids(tokens.unwrap_or_default()),
        }
    }

    /// Its name in error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            PromptSource::Text(_) => "--prompt",
            PromptSource::Stdin => "standard input",
            PromptSource::Ids(_) => "--tokens",
        }
    }

    /// Reads and encodes the prompt. An empty text is the BOS token of the model.
    ///
    /// # Errors
    /// Text for a model without a tokenizer; an empty text for a model without a BOS token; standard
    /// input that cannot be read, is not UTF-8 or is longer than 16 MiB.
    pub(super) fn read(self, loaded: &Loaded) -> Result<PromptInput, CliError> {
        let text = match self {
            PromptSource::Ids(ids) => {
                let text = loaded.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(ids));
                return Ok(PromptInput { ids: ids.to_vec(), text });
            }
            PromptSource::Text(text) => text.to_string(),
            PromptSource::Stdin => String::new(),
        };
        let tokenizer = loaded.require_tokenizer("--prompt", "pass token ids: --tokens 1,2,3")?;
        let text = if let PromptSource::Stdin = self { from_stdin()? } else { text };
        let ids = tokenizer.encode_with_bos(&text)?;
        let ids = if ids.is_empty() { vec![beginning(self, loaded)?] } else { ids };
        Ok(PromptInput { ids, text: Some(text) })
    }
}

/// The BOS token of the model, for an empty prompt.
fn beginning(source: PromptSource<'_>, loaded: &Loaded) -> Result<u32, CliError> {
    loaded.bos()?.ok_or_else(|| {
        let message = format_args!(
            "{}: the prompt is empty, and {} has no BOS token",
            source.name(),
            loaded.path.display()
        );
        let error = CliError::new(Exit::Usage, message);
        match loaded.eos.first() {
            Some(eos) => error.hint(format_args!("to start after an end-of-text token: --tokens {eos}")),
            None => error.hint("pass a text, or token ids: --tokens 1,2,3"),
        }
    })
}

/// The text on standard input, without a byte order mark at its beginning and one line break at its end.
fn from_stdin() -> Result<String, CliError> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        eprintln!("reading the prompt from standard input; Ctrl-D ends the input");
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| CliError::io(Path::new("standard input"), &error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(CliError::new(Exit::Data, "standard input: expected a prompt of at most 16 MiB"));
    }
    Ok(without_line_break(text_of(Path::new("standard input"), bytes)?))
}

fn without_line_break(mut text: String) -> String {
    let Some(line) = text.strip_suffix('\n') else { return text };
    let len = line.strip_suffix('\r').unwrap_or(line).len();
    text.truncate(len);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_of_standard_input_is_not_part_of_the_prompt() {
        for (text, want) in
            [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("\n", ""), ("a\nb", "a\nb")]
        {
            assert_eq!(without_line_break(text.to_string()), want, "{text:?}");
        }
    }
}
