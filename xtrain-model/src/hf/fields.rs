//! Reading single fields of a `config.json`.
use std::fmt::Display;

use serde_json::Value;

use crate::error::{Error, Result};

pub(super) fn refuse<T>(field: &'static str, want: &'static str, got: impl Display) -> Result<T> {
    Err(Error::Config { field, want, got: got.to_string() })
}

/// Rejects a field that is present with an unsupported value.
pub(super) fn only(
    json: &Value,
    field: &'static str,
    want: &'static str,
    fits: fn(&Value) -> bool,
) -> Result<()> {
    match &json[field] {
        Value::Null => Ok(()),
        value if fits(value) => Ok(()),
        value => refuse(field, want, value),
    }
}

/// A boolean field. Absent: false.
pub(super) fn flag(json: &Value, field: &'static str) -> Result<bool> {
    match &json[field] {
        Value::Null => Ok(false),
        Value::Bool(on) => Ok(*on),
        other => refuse(field, "true or false", other),
    }
}

pub(super) fn size(json: &Value, field: &'static str, absent: Option<usize>) -> Result<usize> {
    match (&json[field], absent) {
        (Value::Null, Some(size)) => Ok(size),
        (value, _) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(n),
            None => refuse(field, "a non-negative integer", value),
        },
    }
}
