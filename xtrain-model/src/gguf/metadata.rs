//! The metadata of a GGUF file: keys and values.
use std::fmt::Display;
use std::path::PathBuf;

use crate::checkpoint::{CheckpointError, Result};

/// A metadata value. Numbers are widened.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are sufficient")]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Strings(Vec<String>),
}

/// The metadata of a file, in the order of the file. Keys are unique.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    /// The file, for errors.
    pub file: PathBuf,
    /// Keys and values.
    pub values: Vec<(String, Value)>,
}

impl Metadata {
    /// The value of `key`. `None`: the key is absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The error for an invalid value.
    pub(super) fn bad(&self, key: &str, want: &str, got: impl Display) -> CheckpointError {
        CheckpointError::field(&self.file, key, want, got)
    }

    /// The error for a value of the wrong type or a missing value.
    fn wrong(&self, key: &str, want: &str) -> CheckpointError {
        let got = match self.get(key) {
            None => "none".to_string(),
            Some(Value::Int(n)) => n.to_string(),
            Some(Value::Float(x)) => x.to_string(),
            Some(Value::Bool(b)) => b.to_string(),
            Some(Value::String(text)) => format!("{:?}", text.chars().take(80).collect::<String>()),
            Some(Value::Ints(_) | Value::Floats(_) | Value::Strings(_)) => "a list".to_string(),
        };
        self.bad(key, want, got)
    }

    /// The value of `key`, converted. `None`: the key is absent. Fails if `convert` rejects the value.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key).map(|value| convert(value).ok_or_else(|| self.wrong(key, want))).transpose()
    }

    /// A non-negative integer. `None`: the key is absent.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |value| match value {
            Value::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        })
    }

    pub(super) fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "a non-negative integer"))
    }

    pub(super) fn required_number(&self, key: &str) -> Result<f64> {
        self.number(key)?.ok_or_else(|| self.wrong(key, "a number"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(on) => Some(*on),
            _ => None,
        })
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| match value {
            Value::Float(x) => Some(*x),
            _ => None,
        })
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(&text[..]),
            _ => None,
        })
    }

    /// A list of strings. Empty if the key is absent.
    pub(super) fn texts(&self, key: &str) -> Result<&[String]> {
        let texts = self.typed(key, "a list of strings", |value| match value {
            Value::Strings(texts) => Some(&texts[..]),
            _ => None,
        });
        Ok(texts?.unwrap_or_default())
    }

    /// A list of numbers. Empty if the key is absent.
    pub(super) fn floats(&self, key: &str) -> Result<&[f64]> {
        let floats = self.typed(key, "a list of numbers", |value| match value {
            Value::Floats(floats) => Some(&floats[..]),
            _ => None,
        });
        Ok(floats?.unwrap_or_default())
    }

    /// A list of integers. Empty if the key is absent.
    pub(super) fn ints(&self, key: &str) -> Result<&[i64]> {
        let ints = self.typed(key, "a list of integers", |value| match value {
            Value::Ints(ints) => Some(&ints[..]),
            _ => None,
        });
        Ok(ints?.unwrap_or_default())
    }
}
