//! JSON with ordered objects: templates print tools and arguments with their keys in the order of the text.
use std::fmt;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::error::ChatError;
use crate::json::{MAX_DEPTH, found_at_line, from_unique, too_deep};

/// A JSON value. Objects keep their keys in the order of the text, as in Python.
#[derive(Clone, PartialEq)]
pub struct Json(pub(super) Value);

impl Json {
    /// Parses a JSON value.
    ///
    /// # Errors
    /// [`ChatError::Message`] for invalid JSON or nesting deeper than 64.
    pub fn parse(text: &str) -> Result<Json, ChatError> {
        if let Some(at) = too_deep(text.as_bytes()) {
            let got = format!("level {} at byte {at}", MAX_DEPTH + 1);
            return Err(ChatError::Message { want: "JSON nested at most 64 deep", got });
        }
        let read = serde_json::from_str::<Value>(text);
        read.map(Json).map_err(|e| ChatError::Message { want: "JSON", got: found_at_line(&e) })
    }

    /// [`Json::parse`]; keys that an object has twice are an error.
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse_unique(text: &str) -> Result<Json, ChatError> {
        let json = Json::parse(text)?;
        from_unique(text).map_err(|e| ChatError::Message { want: "JSON", got: found_at_line(&e) })?;
        Ok(json)
    }

    /// The value of `key` in an object. `None`: not an object, or the key is absent.
    pub fn get(&self, key: &str) -> Option<Json> {
        let value = self.0.get_attr(key).ok().filter(|_| self.0.kind() == ValueKind::Map)?;
        (!value.is_undefined()).then_some(Json(value))
    }

    /// The text of a string. `None`: not a string.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// The items of a list. `None`: not a list.
    pub fn items(&self) -> Option<Vec<Json>> {
        let items = self.0.try_iter().ok().filter(|_| self.0.kind() == ValueKind::Seq)?;
        Some(items.map(Json).collect())
    }

    /// The kind of the value, for errors.
    pub fn kind(&self) -> &'static str {
        match self.0.kind() {
            ValueKind::Bool => "a boolean",
            ValueKind::Number => "a number",
            ValueKind::String => "a string",
            ValueKind::Seq => "a list",
            ValueKind::Map => "an object",
            _ => "null",
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json(Value::from(text))
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
