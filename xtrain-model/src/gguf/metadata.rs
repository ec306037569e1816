//! The metadata of a GGUF file: values under names.
use std::path::{Path, PathBuf};

use crate::checkpoint::{CheckpointError, Result};

/// A value of the metadata. Numbers are widened.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each is its name")]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Strings(Vec<String>),
}

/// The values of a file, in its order, each name once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    /// The file, for errors.
    pub file: PathBuf,
    /// Names and values.
    pub values: Vec<(String, Value)>,
}

impl Metadata {
    /// The value of that name.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// An error about a value.
    pub(super) fn bad(&self, key: &str, want: &str, got: impl ToString) -> CheckpointError {
        CheckpointError::Key {
            file: self.file.clone(),
            key: key.into(),
            want: want.into(),
            got: got.to_string(),
        }
    }

    /// An error about a value that is of another type, or is missing.
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

    /// A whole number; none where it is absent.
    ///
    /// # Errors
    /// A value of another type, or a negative one.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Int(n)) if *n >= 0 => Ok(Some(*n as usize)),
            Some(_) => Err(self.wrong(key, "a whole number")),
        }
    }

    /// A whole number that has to be there.
    ///
    /// # Errors
    /// As [`Metadata::size`], or when it is absent.
    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "a whole number"))
    }

    /// A number; none where it is absent.
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

    /// A text; none where it is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    /// A list of texts; empty where it is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn texts(&self, key: &str) -> Result<&[String]> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Strings(texts)) => Ok(texts),
            Some(_) => Err(self.wrong(key, "a list of texts")),
        }
    }

    /// A list of whole numbers; empty where it is absent.
    ///
    /// # Errors
    /// A value of another type.
    pub fn ints(&self, key: &str) -> Result<&[i64]> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Ints(ints)) => Ok(ints),
            Some(_) => Err(self.wrong(key, "a list of whole numbers")),
        }
    }

    /// The name of the file.
    pub fn path(&self) -> &Path {
        &self.file
    }
}
