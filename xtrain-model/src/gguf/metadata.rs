//! The metadata of a GGUF file: keys and values.
use std::fmt::Display;
use std::path::{Path, PathBuf};

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
        CheckpointError::Key {
            file: self.file.clone(),
            key: key.into(),
            want: want.into(),
            got: got.to_string(),
        }
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

    /// A non-negative integer. `None`: the key is absent.
    ///
    /// # Errors
    /// A value of another type, or a negative one.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Int(n)) if *n >= 0 => Ok(Some(*n as usize)),
            Some(_) => Err(self.wrong(key, "a non-negative integer")),
        }
    }

    /// A required non-negative integer.
    ///
    /// # Errors
    /// As [`Metadata::size`], or if the key is absent.
    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "a non-negative integer"))
    }

    /// A floating-point number. `None`: the key is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) => Ok(Some(*x)),
            Some(_) => Err(self.wrong(key, "a number")),
        }
    }

    /// A string. `None`: the key is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// A list of strings. Empty if the key is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn texts(&self, key: &str) -> Result<&[String]> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Strings(texts)) => Ok(texts),
            Some(_) => Err(self.wrong(key, "a list of strings")),
        }
    }

    /// A list of integers. Empty if the key is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn ints(&self, key: &str) -> Result<&[i64]> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Ints(ints)) => Ok(ints),
            Some(_) => Err(self.wrong(key, "a list of integers")),
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.file
    }
}
