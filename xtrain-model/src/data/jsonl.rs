//! JSONL files: one record per line.
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use xtrain_tensor::faults::{self, Fault};

use super::error::DataError;
use super::text;
use crate::chat::{ChatError, Json, Message};
use crate::json;
use crate::tokenizer::TokenizerError;

/// Maximum length of a line in bytes.
const MAX_LINE: u64 = 64 << 20;

/// A record of training data.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// `{"text": ...}`: a document.
    Text(String),
    /// `{"prompt": ..., "completion": ...}`: only the completion contributes to the loss.
    Pair {
        /// The prompt.
        prompt: String,
        /// The completion.
        completion: String,
    },
    /// `{"messages": [{"role": ..., "content": ...}, ...]}`, or such lists as `prompt` and `completion`.
    Chat(Conversation),
}

/// A conversation. Only assistant turns contribute to the loss, and none of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Message>,
    /// Number of messages of the prompt; 0 for `messages`.
    pub prompt: usize,
    /// `tools`: the functions that the assistant may call. `None`: no tools.
    pub tools: Option<Json>,
}

impl Conversation {
    /// A prompt and its completion.
    pub fn in_parts(prompt: Vec<Message>, completion: Vec<Message>, tools: Option<Json>) -> Conversation {
        Conversation { prompt: prompt.len(), messages: [prompt, completion].concat(), tools }
    }
}

/// The kinds of a prompt with a completion, for errors.
const PARTS: &str = "\"prompt\" and \"completion\", both as strings or both as lists of messages";

/// What a line is expected to be, for errors.
pub const OBJECT: &str = "a JSON object";

/// The kinds of records, for a line that has none of their fields.
pub const ONE_KIND: &str = "\"text\", \"messages\", or \"prompt\" with \"completion\"";

/// The kinds of records, for a line that has the fields of several.
const KINDS: &str = "only one of \"text\", \"messages\", and \"prompt\" with \"completion\"";

impl Record {
    /// The record of the object at `location`.
    pub(super) fn from_object(object: &Map<String, Value>, location: &Location) -> Result<Record, DataError> {
        // tables with rows of several kinds are exported with null in the other fields
        let get = |name: &str| object.get(name).filter(|value| !value.is_null());
        let other = ["text", "messages"].iter().any(|name| get(name).is_some());
        match ["prompt", "completion"].map(get) {
            [Some(Value::Array(_)), Some(Value::Array(_))] if other => {
                return Err(location.error(KINDS, fields(object)));
            }
            [Some(Value::Array(_)), Some(Value::Array(_))] => return Record::conversation(location),
            parts if !other && parts.iter().flatten().any(|part| part.is_array()) => {
                let [prompt, completion] = parts.map(|part| part.map_or("nothing", kind_of));
                return Err(location.error(PARTS, format!("{prompt} and {completion}")));
            }
            _ => {}
        }
        let field = |name: &str| match get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(location.error("strings as fields", format!("{name:?}: {}", kind_of(other)))),
        };
        match (field("text")?, field("prompt")?, field("completion")?, get("messages").is_some()) {
            (Some(text), None, None, false) => Ok(Record::Text(text)),
            (None, Some(prompt), Some(completion), false) => Ok(Record::Pair { prompt, completion }),
            (None, None, None, true) => Record::chat(location),
            (None, None, None, false) => Err(location.error(ONE_KIND, fields(object))),
            (None, Some(_), None, false) => {
                Err(location.error("\"completion\" with \"prompt\"", fields(object)))
            }
            (None, None, Some(_), false) => {
                Err(location.error("\"prompt\" with \"completion\"", fields(object)))
            }
            _ => Err(location.error(KINDS, fields(object))),
        }
    }

    /// Parses a conversation. Rejects one without an assistant turn.
    fn chat(location: &Location) -> Result<Record, DataError> {
        let want = "\"messages\" as [{\"role\": ..., \"content\": ...}, ...]";
        let ([messages], tools) = lists(["messages"], want, location)?;
        require_answer(&messages, "\"messages\" with a turn of the role \"assistant\"", location)?;
        Ok(Record::Chat(Conversation { messages, prompt: 0, tools }))
    }

    /// Parses a conversation in two parts. Rejects a completion without an assistant turn.
    fn conversation(location: &Location) -> Result<Record, DataError> {
        let want = "\"prompt\" and \"completion\" as [{\"role\": ..., \"content\": ...}, ...]";
        let ([prompt, completion], tools) = lists(["prompt", "completion"], want, location)?;
        require_answer(&completion, "\"completion\" with a turn of the role \"assistant\"", location)?;
        Ok(Record::Chat(Conversation::in_parts(prompt, completion, tools)))
    }
}

/// The lists of messages in the fields `names` of a line, and its `tools`.
pub(crate) fn lists<const N: usize>(
    names: [&str; N],
    want: &'static str,
    location: &Location,
) -> Result<([Vec<Message>; N], Option<Json>), DataError> {
    let refused = |error: ChatError| location.error(want, error.to_string());
    // parsed again: templates print objects with their keys in the order of the text
    let json = Json::parse(&location.text).map_err(refused)?;
    let mut all = names.map(|_| Vec::new());
    for (messages, name) in all.iter_mut().zip(names) {
        let list = json.get(name).unwrap_or_else(|| json.clone());
        let place = if N > 1 { format!("{name:?}: ") } else { String::new() };
        let in_field = |error: ChatError| location.error(want, format!("{place}{error}"));
        *messages = Message::list(&list).map_err(in_field)?;
    }
    let refused = |error| match error {
        ChatError::Message { want, got } => location.error(want, got),
        error => location.error("\"tools\"", error.to_string()),
    };
    Ok((all, tools(&json).map_err(refused)?))
}

/// The field `tools` of a line. A string, as in tables of other programs, is parsed; an empty one and `null` are none.
///
/// # Errors
/// A string that is not the JSON of a list or of `null`.
pub fn tools(json: &Json) -> Result<Option<Json>, ChatError> {
    let given = json.get("tools").filter(|tools| tools.kind() != "null");
    let Some(text) = given.as_ref().and_then(Json::as_str).filter(|_| !faults::on(Fault::ToolsStayText))
    else {
        return Ok(given);
    };
    let want = "\"tools\" as a list, or as a string with the JSON of one";
    match Json::parse(text) {
        _ if text.trim().is_empty() => Ok(None),
        Ok(parsed) if parsed.kind() == "null" => Ok(None),
        Ok(parsed) if parsed.items().is_some() => Ok(Some(parsed)),
        Ok(parsed) => Err(ChatError::Message { want, got: format!("a string with {}", parsed.kind()) }),
        Err(_) => Err(ChatError::Message { want, got: "a string that is not JSON".into() }),
    }
}

/// Checks that a turn of the assistant is among `messages`.
fn require_answer(messages: &[Message], want: &'static str, location: &Location) -> Result<(), DataError> {
    if messages.iter().any(|message| message.role() == "assistant") {
        return Ok(());
    }
    let mut roles: Vec<String> = messages.iter().map(|m| format!("{:?}", m.role())).collect();
    roles.dedup();
    roles.truncate(8);
    Err(location.error(want, format!("only the roles {}", roles.join(", "))))
}

/// Calls `each` with every record of `path` and its location. Skips blank lines.
///
/// # Errors
/// A file that cannot be read or contains no record; an invalid line, by its number; errors of `each`.
pub fn records(
    path: &Path,
    mut each: impl FnMut(Record, &Location) -> Result<(), DataError>,
) -> Result<(), DataError> {
    objects(path, |object, location| each(Record::from_object(object, location)?, location))
}

/// The location of an object in a file.
#[derive(Debug)]
pub struct Location {
    file: PathBuf,
    line: u64,
    read: u64,
    text: String,
}

impl Location {
    /// Number of bytes of the file up to the end of the line.
    pub fn bytes(&self) -> u64 {
        self.read
    }

    /// The line number, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// The first integer of the line that would be rounded.
    pub(crate) fn rounded_integer(&self) -> Option<&str> {
        json::rounded_integer(&self.text)
    }

    /// The error for this line.
    pub(crate) fn error(&self, want: &'static str, got: impl Into<String>) -> DataError {
        DataError::Line { file: self.file.clone(), line: self.line, want, got: got.into() }
    }

    /// Adds the number of the line that is being read to the error for a byte that is not UTF-8. A file with a zero byte
    /// is binary and has no lines.
    fn of_not_text(&self, error: DataError) -> DataError {
        match error {
            DataError::NotText { file, offset, byte, .. } if byte != 0 => {
                DataError::NotText { file, line: Some(self.line), offset: offset - self.read, byte }
            }
            other => other,
        }
    }

    /// The error for text of this line that the tokenizer cannot encode.
    pub(super) fn not_encoded(&self, error: &TokenizerError) -> DataError {
        self.error("text that the tokenizer can encode", error.to_string())
    }
}

/// Calls `each` with the object of every line of `path` that is not blank.
pub(crate) fn objects(
    path: &Path,
    each: impl FnMut(&Map<String, Value>, &Location) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = File::open(path).map_err(|e| DataError::io(path, "open", e))?;
    objects_of(BufReader::new(file), path, each)
}

/// A line with sorted keys, except those of a `json_schema`: output follows the order of its properties.
fn sorted_line(mut line: Value) -> Value {
    let schema = line.as_object_mut().and_then(|object| object.shift_remove("json_schema"));
    let mut line = json::sorted(line);
    if let (Some(object), Some(schema)) = (line.as_object_mut(), schema) {
        object.insert("json_schema".into(), schema);
    }
    line
}

/// Like [`objects`], for the text of `reader`. Errors name it `path`.
pub(crate) fn objects_of(
    mut reader: impl BufRead,
    path: &Path,
    mut each: impl FnMut(&Map<String, Value>, &Location) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut location = Location { file: path.into(), line: 0, read: 0, text: String::new() };
    let mut count = 0u64;
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
        let length = read.map_err(|e| DataError::io(path, "read", e))? as u64;
        if length == 0 {
            break;
        }
        location.line += 1;
        if length > MAX_LINE {
            return Err(location.error("a line of at most 64 MiB", "more"));
        }
        let line = text::to_text(line, location.read, path);
        let mut line = line.map_err(|error| location.of_not_text(error))?;
        if location.read == 0 && line.starts_with('\u{feff}') {
            line.drain(..'\u{feff}'.len_utf8());
        }
        location.read += length;
        if line.trim().is_empty() {
            continue;
        }
        count += 1;
        location.text = line;
        match json::from_unique(location.text.trim_end_matches(['\n', '\r'])).map(sorted_line) {
            Ok(Value::Object(object)) => each(&object, &location)?,
            Ok(other) => return Err(location.error(OBJECT, kind_of(&other))),
            Err(error) => return Err(location.error(OBJECT, json::found_at_column(&error))),
        }
    }
    if count == 0 {
        location.line = location.line.max(1);
        return Err(location.error("at least one line with a JSON object", "none"));
    }
    Ok(())
}

/// The kind of a JSON value, for errors.
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

/// The names of an object's fields that are not null, for an error.
pub fn fields(object: &Map<String, Value>) -> String {
    let given = object.iter().filter(|(_, value)| !value.is_null());
    let names: Vec<String> = given.take(8).map(|(name, _)| format!("{name:?}")).collect();
    match &names[..] {
        [] if object.is_empty() => "no field".into(),
        [] => "only null".into(),
        [name] => format!("the field {name}"),
        _ => format!("the fields {}", names.join(", ")),
    }
}
