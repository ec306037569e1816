//! Prompts from JSONL files.
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::exit::{CliError, Exit};
use crate::decode::Request;
use crate::model::Config;
use crate::model::tokenizer::Tokenizer;

/// A prompt of a JSONL file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    /// Its location for error messages, for example ``prompts.jsonl:3: `prompt_ids` ``.
    pub(super) place: String,
    /// Its text. `None`: the line has ids only.
    pub(super) text: Option<String>,
    pub(super) ids: Vec<u32>,
}

/// Reads the prompts of the JSONL file `path` (`-`: standard input). `prompt_ids` are used as they are; otherwise
/// `prompt` is encoded, which requires a tokenizer. Other fields and blank lines are ignored.
pub(super) fn read(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<Prompt>, CliError> {
    let stdin = path == Path::new("-");
    let name = if stdin { "standard input".to_string() } else { path.display().to_string() };
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => CliError::new(Exit::Data, format_args!("{name}: expected UTF-8 text")),
        _ => CliError::io(Path::new(&name), &error),
    };
    let reader: Box<dyn BufRead> = match stdin {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path).map_err(io)?)),
    };
    let mut prompts = Vec::new();
    for (at, line) in reader.lines().enumerate() {
        let (place, line) = (format!("{name}:{}", at + 1), line.map_err(io)?);
        let line = line.trim_start_matches('\u{feff}');
        if !line.trim().is_empty() {
            prompts.push(parse(line, place, tokenizer)?);
        }
    }
    if prompts.is_empty() {
        return Err(CliError::new(Exit::Data, format_args!("{name}: no prompts found")).hint(HINT));
    }
    Ok(prompts)
}

const HINT: &str = "each line is {\"prompt\": \"some text\"} or {\"prompt_ids\": [1, 2, 3]}";

fn parse(line: &str, place: String, tokenizer: Option<&Tokenizer>) -> Result<Prompt, CliError> {
    let refuse = |what: &str| CliError::new(Exit::Data, format_args!("{place}: {what}")).hint(HINT);
    let value: Value =
        serde_json::from_str(line).map_err(|e| refuse(&format!("invalid JSON at column {}", e.column())))?;
    let Value::Object(object) = value else { return Err(refuse("expected a JSON object")) };
    let text = match object.get("prompt") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return Err(refuse("`prompt`: expected a string")),
    };
    let (field, ids) = match (object.get("prompt_ids"), &text) {
        (Some(Value::Array(ids)), _) => {
            let id = |(at, id): (usize, &Value)| {
                let whole = id.as_u64().and_then(|id| u32::try_from(id).ok());
                whole.ok_or_else(|| refuse(&format!("`prompt_ids[{at}]`: expected a token id, found {id}")))
            };
            ("prompt_ids", ids.iter().enumerate().map(id).collect::<Result<Vec<u32>, _>>()?)
        }
        (None | Some(Value::Null), Some(text)) => {
            let missing = || refuse("`prompt` requires a tokenizer; the model has no tokenizer.json");
            ("prompt", tokenizer.ok_or_else(missing)?.encode(text)?)
        }
        (None | Some(Value::Null), None) => return Err(refuse("expected `prompt` or `prompt_ids`")),
        (Some(_), _) => return Err(refuse("`prompt_ids`: expected a list")),
    };
    Ok(Prompt { place: format!("{place}: `{field}`"), text, ids })
}

impl Prompt {
    /// Checks that a model of `cfg` can complete `request`, which was made from this prompt. The error names file, line
    /// and field.
    pub(super) fn checked(&self, request: Request, cfg: &Config) -> Result<Request, CliError> {
        request.check(cfg).map_err(|error| CliError::of_request(Exit::Data, &self.place, &error))?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Prompt, String> {
        parse(line, "p:1".into(), Some(&Tokenizer::byte())).map_err(|e| e.to_string())
    }

    #[test]
    fn ids_take_precedence_over_text_and_text_is_encoded() {
        assert_eq!(parsed("{\"prompt\":\"ab\",\"answer\":1}").unwrap().ids, [97, 98]);
        let both = parsed("{\"prompt\":\"ab\",\"prompt_ids\":[5]}").unwrap();
        assert_eq!((both.text.as_deref(), &both.ids[..]), (Some("ab"), &[5][..]));
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_location() {
        for line in ["[]", "{}", "{\"prompt\":3}", "{\"prompt_ids\":[-1]}", "{\"prompt_ids\":\"1\"}", "{"] {
            let error = parsed(line).unwrap_err();
            assert!(error.starts_with("error: p:1: "), "{line}: {error}");
        }
        assert!(parse("{\"prompt\":\"a\"}", "p:1".into(), None).is_err());
    }
}
