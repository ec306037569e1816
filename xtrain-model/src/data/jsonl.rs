//! JSONL files: one record on each line.
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{DataError, text};
use crate::chat::{ChatError, Json, Message};
use crate::tokenizer::TokenizerError;

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 64 << 20;

/// What a line of training data holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// `{"text": ...}`: a document.
    Text(String),
    /// `{"prompt": ..., "completion": ...}`: only the completion is to be learnt.
    Pair {
        /// What is read.
        prompt: String,
        /// What is learnt.
        completion: String,
    },
    /// `{"messages": [{"role": ..., "content": ...}, ...]}`: what the assistant says is to be learnt.
    Chat {
        /// The turns.
        messages: Vec<Message>,
        /// `tools`: what the assistant may call.
        tools: Option<Json>,
    },
}

/// What a line may be.
const KINDS: &str = "\"text\", or \"prompt\" and \"completion\", or \"messages\"";

impl Record {
    /// The record of an object, which `line` is the text of.
    ///
    /// # Errors
    /// Other fields than those of one kind of record.
    fn from_object(object: &Map<String, Value>, line: &str) -> Result<Record, (&'static str, String)> {
        let field = |name: &str| match object.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(("strings as fields", format!("{name:?}: {}", kind_of(other)))),
        };
        match (field("text")?, field("prompt")?, field("completion")?, object.contains_key("messages")) {
            (Some(text), None, None, false) => Ok(Record::Text(text)),
            (None, Some(prompt), Some(completion), false) => Ok(Record::Pair { prompt, completion }),
            (None, None, None, true) => Record::chat(line),
            _ => Err((KINDS, fields(object))),
        }
    }

    /// # Errors
    /// `messages` that are no list of messages, or have no turn of the assistant.
    fn chat(line: &str) -> Result<Record, (&'static str, String)> {
        const WANT: &str = "\"messages\" as [{\"role\": ..., \"content\": ...}, ...]";
        // read again: templates write objects with their keys in the order of the text
        let read = |line: &str| {
            let json = Json::parse(line)?;
            let messages = Message::list(&json.get("messages").unwrap_or_else(|| json.clone()))?;
            Ok((messages, json.get("tools").filter(|tools| tools.kind() != "null")))
        };
        let (messages, tools) = read(line).map_err(|error: ChatError| (WANT, error.to_string()))?;
        if messages.iter().all(|message| message.role() != "assistant") {
            let mut roles: Vec<String> = messages.iter().map(|m| format!("{:?}", m.role())).collect();
            roles.dedup();
            roles.truncate(8);
            let want = "\"messages\" with a turn of the role \"assistant\"";
            return Err((want, format!("the roles {}", roles.join(", "))));
        }
        Ok(Record::Chat { messages, tools })
    }
}

/// Calls `each` with every record of `path` and its place; blank lines are skipped.
///
/// # Errors
/// A file that cannot be read or has no record, a line that is no record (by its number), what `each` returns.
pub fn records(
    path: &Path,
    mut each: impl FnMut(Record, &Place) -> Result<(), DataError>,
) -> Result<(), DataError> {
    objects(path, |object, place| {
        each(Record::from_object(object, &place.text).map_err(|why| place.error(why))?, place)
    })
}

/// Where in a file an object stands.
#[derive(Debug)]
pub struct Place {
    file: PathBuf,
    line: u64,
    read: u64,
    text: String,
}

impl Place {
    /// Bytes of the file up to the end of the line.
    pub fn bytes(&self) -> u64 {
        self.read
    }

    pub(crate) fn error(&self, (want, got): (&'static str, String)) -> DataError {
        DataError::Line { file: self.file.clone(), line: self.line, want, got }
    }

    pub(super) fn not_encoded(&self, refused: &TokenizerError) -> DataError {
        self.error(("text that the tokenizer can encode", refused.to_string()))
    }
}

/// Calls `each` with the object of every line that is not blank.
///
/// # Errors
/// As [`records`].
pub(crate) fn objects(
    path: &Path,
    mut each: impl FnMut(&Map<String, Value>, &Place) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = File::open(path).map_err(|e| DataError::io(path, "open", &e))?;
    let mut reader = BufReader::new(file);
    let mut place = Place { file: path.into(), line: 0, read: 0, text: String::new() };
    let mut seen = 0u64;
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
        let length = read.map_err(|e| DataError::io(path, "read", &e))? as u64;
        if length == 0 {
            break;
        }
        place.line += 1;
        if length > MAX_LINE {
            return Err(place.error(("a line of at most 64 MiB", "more".into())));
        }
        let mut line = text::to_text(line, place.read, path)?;
        if place.read == 0 && line.starts_with('\u{feff}') {
            line.drain(..'\u{feff}'.len_utf8());
        }
        place.read += length;
        if line.trim().is_empty() {
            continue;
        }
        seen += 1;
        place.text = line;
        match serde_json::from_str(&place.text) {
            Ok(Value::Object(object)) => each(&object, &place)?,
            Ok(other) => return Err(place.error(("a JSON object", kind_of(&other).into()))),
            Err(error) => return Err(place.error(("a JSON object", error.to_string()))),
        }
    }
    if seen == 0 {
        return Err(place.error(("a record", "the end of the file".into())));
    }
    Ok(())
}

/// What a JSON value is, in a word.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The names of an object's fields, for an error.
pub(crate) fn fields(object: &Map<String, Value>) -> String {
    let names: Vec<String> = object.keys().take(8).map(|name| format!("{name:?}")).collect();
    if names.is_empty() { "no field".into() } else { format!("the fields {}", names.join(", ")) }
}
