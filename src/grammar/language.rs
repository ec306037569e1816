//! The language of a constraint, as the caller writes it.
use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::GrammarError;

/// A set of texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// The texts that a regular expression matches as a whole, in the syntax of the crate `regex`. `.` matches no line
    /// break. `^` at the beginning and `$` at the end have no effect; other look-around is not supported.
    Regex(String),
    /// The JSON texts that match a schema. The properties of an object are in the order of the schema. Between two
    /// tokens of JSON there may be a space, or a line break and up to 16 spaces; there is none before and after the
    /// value.
    JsonSchema(Value),
}

impl Language {
    /// Reads a JSON schema.
    ///
    /// # Errors
    /// Text that is not JSON, with the line and the column.
    pub fn json_schema(text: &str) -> Result<Language, GrammarError> {
        let parsed = serde_json::from_str(text);
        Ok(Language::JsonSchema(
            parsed.map_err(|error| GrammarError::JsonSchema(format!("not JSON: {error}")))?,
        ))
    }

    /// Checks the syntax of a regular expression. Unsupported syntax and schemas are found when they are compiled.
    ///
    /// # Errors
    /// [`GrammarError::Regex`] with the position; an expression that matches nothing, or only the empty text.
    pub fn check(&self) -> Result<(), GrammarError> {
        let Language::Regex(regex) = self else { return Ok(()) };
        let parsed = regex_syntax::parse(regex).map_err(|error| GrammarError::syntax(&error))?;
        let lengths = parsed.properties();
        if lengths.minimum_len().is_none() {
            return Err(GrammarError::Regex(
                "expected one that matches text, found one without a match".into(),
            ));
        }
        match lengths.maximum_len() {
            Some(0) => Err(GrammarError::Regex(
                "expected one that matches text, found one for the empty text".into(),
            )),
            _ => Ok(()),
        }
    }

    /// The fields `regex` and `json_schema` of a rollout file: one of them is `Some`.
    pub fn fields(&self) -> (Option<Cow<'_, str>>, Option<Cow<'_, Value>>) {
        match self {
            Language::Regex(regex) => (Some(Cow::Borrowed(regex)), None),
            Language::JsonSchema(schema) => (None, Some(Cow::Borrowed(schema))),
        }
    }

    /// The schema with the whitespace that [`Language::JsonSchema`] describes, in the field `x-guidance` of llguidance.
    pub(super) fn with_whitespace(schema: &Value) -> Value {
        let mut schema = schema.clone();
        if let Some(object) = schema.as_object_mut() {
            let whitespace = json!({"whitespace_pattern": "[ ]|\\n[ ]{0,16}"});
            object.insert("x-guidance".to_string(), whitespace);
        }
        schema
    }
}
