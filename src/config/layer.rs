//! One layer of a configuration: a file or a flag.
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::check::KnownKeys;
use super::{Error, Result};
use crate::model::data::DataError;
use crate::tensor::faults::{self, Fault};

/// Maximum size of a configuration file, in bytes. That of a run names every data file by its absolute path.
const MAX_FILE_BYTES: u64 = 1 << 24;

/// A source of configuration values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Layer {
    /// A TOML file.
    File(PathBuf),
    /// TOML embedded in the program.
    BuiltIn {
        /// Its name in error messages.
        name: &'static str,
        /// The TOML text.
        text: &'static str,
    },
    /// The argument of `--set`: `section.key=value`. The value is TOML; a bare word is a string.
    Set(String),
    /// A flag that sets one key.
    Flag {
        /// The flag, as it was typed.
        flag: &'static str,
        /// The key that it sets.
        key: &'static str,
        /// Its value.
        value: Value,
    },
}

/// A checked value and its key.
pub(super) type Leaf = (String, Value);

impl Layer {
    /// A count of a flag. One above the largest integer of TOML is above the limit of its key, too.
    pub(crate) fn count(flag: &'static str, key: &'static str, n: NonZeroUsize) -> Layer {
        let ignored = faults::on(Fault::LargeCountsIgnored);
        let largest = if ignored { 1 } else { i64::MAX };
        Layer::Flag { flag, key, value: Value::Integer(i64::try_from(n.get()).unwrap_or(largest)) }
    }

    /// A flag that sets a key to a string.
    pub(crate) fn string(flag: &'static str, key: &'static str, value: impl Into<String>) -> Layer {
        Layer::Flag { flag, key, value: Value::String(value.into()) }
    }

    /// The keys and values of this layer.
    ///
    /// # Errors
    /// As [`RunConfig::load`](super::RunConfig::load) for this layer.
    pub(crate) fn values(&self) -> Result<Vec<(String, Value)>> {
        self.leaves(&KnownKeys::new())
    }

    /// `FILE:LINE` of `key`. `None`: this layer is no file, or its text has another name for the key.
    pub(super) fn place_of(&self, key: &str) -> Option<String> {
        let in_file = |path: &Path, text: &str| Some(place(path, text, Some(offset(text, key)?)));
        match self {
            Layer::File(path) => in_file(path, &read(path).ok()?),
            Layer::BuiltIn { name, text } => in_file(Path::new(name), text),
            Layer::Set(_) | Layer::Flag { .. } => None,
        }
    }

    /// The values of this layer, each checked against the known keys.
    pub(super) fn leaves(&self, known: &KnownKeys) -> Result<Vec<Leaf>> {
        match self {
            Layer::File(path) => parse_file(path, &read(path)?, known),
            Layer::BuiltIn { name, text } => parse_file(Path::new(name), text, known),
            Layer::Set(text) => Ok(vec![parse_set(text, known)?]),
            Layer::Flag { flag, key, value } => {
                Ok(vec![((*key).to_string(), known.check(flag, key, value.clone())?)])
            }
        }
    }
}

fn parse_set(text: &str, known: &KnownKeys) -> Result<Leaf> {
    let place = format!("--set {text}");
    let Some((key, raw)) = text.split_once('=') else {
        return Err(Error::Syntax { place, reason: "expected section.key=value".to_string() });
    };
    let (key, raw) = (known.current(key.trim()), raw.trim());
    let bare = || Value::String(raw.to_string());
    let value = match raw.parse::<Value>() {
        Ok(value) if value.is_str() || !known.is_text(key) => value,
        // TOML has no `.5`, no `1.` and no integer beyond 64 bits
        _ if known.is_number(key) => raw.parse().map_or_else(|_| bare(), Value::Float),
        // A number too large for a TOML integer stays a string.
        _ => bare(),
    };
    Ok((key.to_string(), known.check(&place, key, value)?))
}

fn parse_file(path: &Path, text: &str, known: &KnownKeys) -> Result<Vec<Leaf>> {
    let syntax = |error: toml::de::Error| Error::Syntax {
        place: place(path, text, error.span().map(|span| span.start)),
        reason: in_words(error.message()),
    };
    let mut leaves = Vec::new();
    walk("", text.parse::<Table>().map_err(syntax)?, &mut |key, value| {
        let empty_section = value.is_table() && known.is_section(key);
        if empty_section {
            return Ok(());
        }
        let place = place(path, text, offset(text, key));
        let current = known.current(key);
        if leaves.iter().any(|(name, _): &Leaf| name == current) {
            let reason = format!("{current} is set twice; `{key}` is another name of it");
            return Err(Error::Syntax { place, reason });
        }
        leaves.push((current.to_string(), known.check(&place, current, value)?));
        Ok(())
    })?;
    Ok(leaves)
}

/// A message of the TOML parser. Those about numbers name Rust types.
fn in_words(message: &str) -> String {
    let large = message.starts_with("invalid type: integer") || message == "integer number overflowed";
    if large { "expected a number of at most 2^63 - 1".to_string() } else { message.replace('\n', ", ") }
}

fn read(path: &Path) -> Result<String> {
    let fail = |source: io::Error| Error::Read { path: path.to_path_buf(), source };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = "expected a configuration file of at most 16 MiB".to_string();
        return Err(Error::Syntax { place: path.display().to_string(), reason });
    }
    String::from_utf8(bytes).map_err(|error| Error::NotText(DataError::not_text(path, &error)))
}

/// Calls `leaf` with every key whose value is not a non-empty table.
fn walk(prefix: &str, table: Table, leaf: &mut dyn FnMut(&str, Value) -> Result<()>) -> Result<()> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) if !inner.is_empty() => walk(&key, inner, leaf)?,
            value => leaf(&key, value)?,
        }
    }
    Ok(())
}

/// `FILE:LINE`, or `FILE` if the offset is unknown.
fn place(path: &Path, text: &str, offset: Option<usize>) -> String {
    match offset.and_then(|offset| text.get(..offset)) {
        Some(before) => format!("{}:{}", path.display(), 1 + before.matches('\n').count()),
        None => path.display().to_string(),
    }
}

/// The byte offset of a dotted key in a TOML text.
fn offset(text: &str, key: &str) -> Option<usize> {
    fn find<'a>(table: &'a DeTable<'a>, name: &str) -> Option<(usize, &'a Spanned<DeValue<'a>>)> {
        let (at, value) = table.iter().find(|(at, _)| at.get_ref() == name)?;
        Some((at.span().start, value))
    }
    let table = DeTable::parse(text).ok()?.into_inner();
    let mut parts = key.split('.');
    let (mut at, mut value) = find(&table, parts.next()?)?;
    for part in parts {
        (at, value) = find(value.get_ref().as_table()?, part)?;
    }
    Some(at)
}
