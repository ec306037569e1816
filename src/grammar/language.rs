//! The language of a constraint, as the caller writes it.
use std::borrow::Cow;

use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::GrammarError;
use crate::model::json as json_errors;
use crate::tensor::faults::{self, Fault};

/// The characters of JSON strings without escapes.
pub(super) const JSON_TEXT: &str = r#"[^"\\\x00-\x1F\x7F]"#;

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
    /// Text that is not JSON, with the line and the column; an integer that would be rounded.
    pub fn json_schema(text: &str) -> Result<Language, GrammarError> {
        let parsed = serde_json::from_str(text).map_err(|error| {
            GrammarError::JsonSchema(format!("expected JSON, found {}", json_errors::found_at_line(&error)))
        })?;
        match json_errors::rounded_integer(text) {
            None => Ok(Language::JsonSchema(parsed)),
            Some(number) => {
                let message = format!("expected integers of at most 64 bits, found {number}");
                Err(GrammarError::JsonSchema(message))
            }
        }
    }

    /// Checks the syntax of a regular expression, and the integers of a schema. Unsupported syntax and schemas are found
    /// when they are compiled.
    ///
    /// # Errors
    /// [`GrammarError::Regex`] with the position; an expression that matches nothing, or only the empty text.
    /// [`GrammarError::JsonSchema`] for an integer above 2^53, which the parser would round.
    pub fn check(&self) -> Result<(), GrammarError> {
        let regex = match self {
            Language::Regex(regex) => regex,
            Language::JsonSchema(_) if faults::on(Fault::SchemaIntegersRounded) => return Ok(()),
            Language::JsonSchema(schema) => return exact_integers(schema),
        };
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

    /// True for every JSON schema, and for a regular expression with a class that contains the class [`JSON_TEXT`],
    /// such as `.`.
    pub(super) fn has_free_text(&self) -> bool {
        let Language::Regex(regex) = self else { return true };
        // an expression with a syntax error has no class
        regex_syntax::parse(regex).is_ok_and(|regex| contains_class(&regex, &parsed_class(JSON_TEXT)))
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

/// The characters of a class in the syntax of regular expressions.
fn parsed_class(class: &str) -> ClassUnicode {
    match regex_syntax::parse(class).map(Hir::into_kind) {
        Ok(HirKind::Class(Class::Unicode(class))) => class,
        _ => unreachable!("a class of characters: {class}"),
    }
}

/// Whether a class in the expression contains all characters of `needed`.
fn contains_class(regex: &Hir, needed: &ClassUnicode) -> bool {
    match regex.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            let mut missing = needed.clone();
            missing.difference(class);
            missing.ranges().is_empty()
        }
        HirKind::Repetition(repetition) => contains_class(&repetition.sub, needed),
        HirKind::Capture(capture) => contains_class(&capture.sub, needed),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().any(|part| contains_class(part, needed))
        }
        // a class of bytes contains ASCII only
        HirKind::Class(Class::Bytes(_)) | HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => false,
    }
}

/// Refuses integers whose size is above 2^53: the parser computes with f64.
fn exact_integers(value: &Value) -> Result<(), GrammarError> {
    match value {
        Value::Number(n) if !n.is_f64() && n.as_i64().is_none_or(|n| n.unsigned_abs() > 1 << 53) => {
            Err(GrammarError::JsonSchema(format!("expected integers of at most 2^53, found {n}")))
        }
        Value::Array(values) => values.iter().try_for_each(exact_integers),
        Value::Object(fields) => fields.values().try_for_each(exact_integers),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_the_parser_would_round_are_refused() {
        let check = |schema: Value| Language::JsonSchema(schema).check();
        for n in [json!(9_007_199_254_740_993_u64), json!(u64::MAX), json!(-9_007_199_254_740_993_i64)] {
            for schema in [json!({"const": n}), json!({"anyOf": [{"type": "integer", "maximum": n}]})] {
                assert!(check(schema).unwrap_err().to_string().contains(&n.to_string()), "{n}");
            }
            #[cfg(feature = "faults")]
            assert!(faults::with(Fault::SchemaIntegersRounded, || check(json!({"const": n}))).is_ok());
        }
        assert_eq!(check(json!({"minimum": -9_007_199_254_740_992_i64, "maximum": 1e300})), Ok(()));
    }

    #[test]
    fn free_text_is_recognized() {
        let has_free_text = |regex: &str| Language::Regex(regex.to_string()).has_free_text();
        for regex in
            [".", ".{1,500}!", r"\s|\S", r#"a(b|[^"]+x)c"#, r#"[^"\\]*"#, r#"x[^"\\\x00-\x1f\x7f]{3}"#]
        {
            assert!(has_free_text(regex), "{regex}");
        }
        for regex in [r"(\w+[ ,.])*!", "[^x]*", r"\d{4}", "abc", "[a-z](b|c)+", "("] {
            assert!(!has_free_text(regex), "{regex}");
        }
        assert!(Language::JsonSchema(json!({"type": "integer"})).has_free_text());
    }
}
