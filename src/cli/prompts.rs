//! Prompts from JSONL files and standard input.
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::Path;

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::exit::{CliError, Exit};
use super::input_file::require_end;
use super::loaded::Loaded;
use super::parameters::{InvalidField, Parameters};
use crate::decode::Request;
use crate::grammar::Language;
use crate::model::Config;
use crate::model::comm::Communicator;
use crate::model::tasks::{EncodedPrompt, PromptFile, PromptRecord};
use crate::model::tokenizer::Tokenizer;
use crate::rollout_file::RolloutLine;
use crate::tensor::faults::{self, Fault};

/// A prompt of a JSONL file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    /// Its location for error messages, for example `prompts.jsonl:3`.
    pub(super) place: String,
    /// Its index in the file, which skipped prompts do not change.
    pub(super) index: usize,
    /// Its text. `None`: ids without a tokenizer.
    pub(super) text: Option<String>,
    pub(super) ids: Vec<u32>,
    /// The parameters of its completions. `None`: those of the flags.
    pub(super) parameters: Option<Parameters>,
    /// What its completions have to match. `None`: as the flags say.
    pub(super) language: Option<Language>,
    /// Prompts of a higher priority run first.
    pub(super) priority: i32,
    /// The other fields of its line.
    pub(super) columns: Map<String, Value>,
}

/// The end of a prompt whose tokens are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TruncatedSide {
    /// Keep the last tokens that leave room for --max-new tokens, or for one if --max-new fills the context. The BOS
    /// token at the beginning is kept.
    Left,
}

/// The hint for prompts that do not fit the context.
pub(super) const TRUNCATE: &str = "--truncate-prompt left completes them without their first tokens";

const HINT: &str =
    "each line is {\"prompt\": \"some text\"}, {\"messages\": [...]} or {\"prompt_ids\": [1, 2, 3]}";

/// Checks that every process can read the prompts of `path` (`-`: standard input).
pub(super) fn require_readable(path: &Path, comm: &dyn Communicator) -> Result<(), CliError> {
    if comm.size() == 1 || path != Path::new("-") {
        return Ok(());
    }
    let message = format!("--prompts: expected a file with {} processes, found standard input", comm.size());
    Err(CliError::new(Exit::Usage, message).hint("only the first process has the standard input"))
}

/// Reads the prompts of the JSONL file `path` (`-`: standard input). Text and messages require a tokenizer.
pub(super) fn read(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<Prompt>, CliError> {
    let stdin = path == Path::new("-");
    let name = if stdin { Path::new("standard input") } else { path };
    if !stdin {
        require_end(path)?;
    }
    let file = match stdin {
        true => {
            if io::stdin().is_terminal() {
                eprintln!(
                    "reading prompts from standard input, one JSON object per line, such as {{\"prompt\": \"Hi\"}}; \
                     Ctrl-D ends the input; --prompts FILE reads a file"
                );
            }
            PromptFile::read(io::stdin().lock(), name)
        }
        false => PromptFile::open(path),
    };
    let hint = |error| {
        let error = CliError::from(error);
        if error.exit() == Exit::Data { error.or_hint(HINT) } else { error }
    };
    let file = file.map_err(hint)?;
    let encoded = file.encode(tokenizer).map_err(hint)?;
    let prompt = |(index, (record, prompt)): (usize, (&PromptRecord, EncodedPrompt))| {
        let EncodedPrompt { text, ids } = prompt;
        let place = format!("{}:{}", name.display(), record.line);
        Prompt {
            place,
            index,
            text,
            ids,
            parameters: None,
            language: None,
            priority: 0,
            columns: record.columns.clone(),
        }
    };
    let mut prompts: Vec<Prompt> = file.records().iter().zip(encoded).enumerate().map(prompt).collect();
    for prompt in &mut prompts {
        prompt.take_language()?;
        prompt.take_priority()?;
    }
    Ok(prompts)
}

/// Notes the columns whose names are nearly those of parameters.
pub(super) fn note_columns(prompts: &[Prompt]) {
    let mut seen = BTreeSet::new();
    for prompt in prompts {
        for name in prompt.columns.keys().filter(|name| !seen.contains(*name)).cloned().collect::<Vec<_>>() {
            if let Some(parameter) = Parameters::nearly(&name) {
                let place = &prompt.place;
                eprintln!("note: {place}: the field {name:?} has no effect; did you mean {parameter:?}?");
            }
            seen.insert(name);
        }
    }
}

/// Checks that no column of a prompt has the name of a field of its completions.
pub(super) fn check_columns(prompts: &[Prompt]) -> Result<(), CliError> {
    let reserved = |prompt: &Prompt| {
        RolloutLine::RESERVED_COLUMNS.into_iter().find(|name| prompt.columns.contains_key(*name))
    };
    match prompts.iter().find_map(|prompt| Some((prompt, reserved(prompt)?))) {
        None => Ok(()),
        Some((prompt, name)) => {
            let message = format_args!("{}: field {name:?}: expected another name", prompt.place);
            Err(CliError::new(Exit::Data, message)
                .hint("fields of a prompt are copied to its completions, which have a field with this name"))
        }
    }
}

/// Truncates the prompts that do not fit a sequence of `context` positions, or removes them with a warning. `flags`: the
/// parameters of a prompt whose line has none.
///
/// # Errors
/// No prompt is left.
pub(super) fn fit(
    prompts: &mut Vec<Prompt>,
    (flags, context): (&Parameters, usize),
    truncate: Option<TruncatedSide>,
    loaded: &Loaded,
) -> Result<(), CliError> {
    prompts.retain_mut(|prompt| {
        let length = prompt.ids.len();
        if length < context {
            return true;
        }
        if truncate == Some(TruncatedSide::Left) {
            let kept = kept_tokens(prompt.parameters(flags).max_new, context);
            prompt.truncate_left(kept, loaded.tokenizer.as_ref());
            return true;
        }
        let (place, want) = (&prompt.place, context - 1);
        eprintln!("warning: {place}: expected a prompt of at most {want} tokens, found {length}; skipped");
        false
    });
    if prompts.is_empty() {
        return Err(CliError::new(Exit::Data, "no prompt fits the context").hint(TRUNCATE));
    }
    Ok(())
}

/// Tokens of a truncated prompt: they leave room for `max_new` tokens, or for one if the context has no more.
fn kept_tokens(max_new: usize, context: usize) -> usize {
    context - if max_new < context { max_new } else { 1 }
}

impl Prompt {
    /// Reads the fields of its line that replace `flags`.
    pub(super) fn take_parameters(&mut self, flags: &Parameters) -> Result<(), CliError> {
        let of_line = flags.of_line(&mut self.columns).map_err(|InvalidField { name, want, found }| {
            CliError::new(Exit::Data, format_args!("{}: field {name:?}: {want}, found {found}", self.place))
        })?;
        self.parameters = (of_line != *flags).then_some(of_line);
        Ok(())
    }

    /// The parameters of its completions.
    pub(super) fn parameters<'a>(&'a self, flags: &'a Parameters) -> &'a Parameters {
        self.parameters.as_ref().unwrap_or(flags)
    }

    /// Moves the fields `regex` and `json_schema` of its line to `language`.
    fn take_language(&mut self) -> Result<(), CliError> {
        // null is no constraint, as for the other fields
        let [regex, schema] = ["regex", "json_schema"]
            .map(|name| self.columns.shift_remove(name).filter(|value| !value.is_null()));
        let (name, found) = match (regex, schema) {
            (None, None) => return Ok(()),
            (Some(Value::String(regex)), None) => {
                self.language = Some(Language::Regex(regex));
                return Ok(());
            }
            (None, Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
                self.language = Some(Language::JsonSchema(schema));
                return Ok(());
            }
            (Some(_), Some(_)) => ("regex", "also \"json_schema\"".to_string()),
            (Some(regex), None) => ("regex", regex.to_string()),
            (None, Some(schema)) => ("json_schema", schema.to_string()),
        };
        let want =
            if name == "regex" { "a string, or \"json_schema\" instead" } else { "a schema: an object" };
        let message = format_args!("{}: field {name:?}: expected {want}, found {found}", self.place);
        Err(CliError::new(Exit::Data, message))
    }

    /// Reads the field `priority` of its line, which is also copied to the completions.
    fn take_priority(&mut self) -> Result<(), CliError> {
        let Some(found) = self.columns.get("priority").filter(|value| !value.is_null()) else {
            return Ok(());
        };
        let Some(priority) = found.as_i64().and_then(|n| i32::try_from(n).ok()) else {
            let want = "a whole number from -2147483648 to 2147483647";
            let message = format_args!("{}: field \"priority\": expected {want}, found {found}", self.place);
            return Err(CliError::new(Exit::Data, message));
        };
        self.priority = if faults::on(Fault::PriorityColumnIgnored) { 0 } else { priority };
        Ok(())
    }

    /// Refuses a `regex` or `json_schema` in the line.
    pub(super) fn require_no_constraint(&self, hint: &str) -> Result<(), CliError> {
        let Some(language) = &self.language else { return Ok(()) };
        let name = if matches!(language, Language::Regex(_)) { "regex" } else { "json_schema" };
        let message = format_args!("{}: expected no field {name:?}: {hint}", self.place);
        Err(CliError::new(Exit::Data, message))
    }

    /// Keeps the last tokens, `kept` in all. A BOS token at the beginning is kept if another token is.
    fn truncate_left(&mut self, kept: usize, tokenizer: Option<&Tokenizer>) {
        let bos =
            tokenizer.and_then(Tokenizer::bos_id).filter(|bos| kept > 1 && self.ids.first() == Some(bos));
        let first = usize::from(bos.is_some());
        self.ids.drain(first..first + self.ids.len() - kept);
        if !faults::on(Fault::TextOfTruncatedPromptKept) {
            self.text = tokenizer.map(|tokenizer| tokenizer.decode(&self.ids[first..]));
        }
    }

    /// Checks that a model of `cfg` can complete `request`, which was made from this prompt. The error names file and
    /// line.
    pub(super) fn checked(&self, request: Request, cfg: &Config) -> Result<Request, CliError> {
        request.check(cfg).map_err(|error| CliError::of_request(Exit::Data, &self.place, &error))?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_prompt_keeps_at_least_one_token() {
        let kept = [1, 16, 31, 32, 33, 100].map(|max_new| kept_tokens(max_new, 32));
        assert_eq!(kept, [31, 16, 1, 31, 31, 31]);
    }
}
