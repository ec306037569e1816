//! One layer of a configuration: a file, or a flag.
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::check::Known;
use super::{Error, Result};

/// Bytes of a configuration file, at most.
const MOST: u64 = 1 << 20;

/// Where values come from.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Layer {
    /// A TOML file.
    File(PathBuf),
    /// TOML that is part of the program, under the name it has in errors.
    BuiltIn {
        /// Its name.
        name: &'static str,
        /// The TOML.
        text: &'static str,
    },
    /// The text after `--set`: `section.key=value`, the value as in TOML, bare words as strings.
    Set(String),
    /// A flag that stands for a key.
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
    /// The values of this layer, each held against the known keys.
    pub(super) fn leaves(&self, known: &Known) -> Result<Vec<Leaf>> {
        match self {
            Layer::File(path) => text_of(path, &read(path)?, known),
            Layer::BuiltIn { name, text } => text_of(Path::new(name), text, known),
            Layer::Set(text) => Ok(vec![set(text, known)?]),
            Layer::Flag { flag, key, value } => {
                Ok(vec![((*key).to_string(), known.check(flag, key, value.clone())?)])
            }
        }
    }
}

fn set(text: &str, known: &Known) -> Result<Leaf> {
    let place = format!("--set {text}");
    let Some((key, raw)) = text.split_once('=') else {
        return Err(Error::Syntax { place, what: "expected section.key=value".to_string() });
    };
    let (key, raw) = (key.trim(), raw.trim());
    let bare = || Value::String(raw.to_string());
    let value = match raw.parse::<Value>() {
        Ok(value) if value.is_str() || !known.is_text(key) => value,
        // a number that TOML has no integer for stays a string
        _ => bare(),
    };
    Ok((key.to_string(), known.check(&place, key, value)?))
}

fn text_of(path: &Path, text: &str, known: &Known) -> Result<Vec<Leaf>> {
    let syntax = |error: toml::de::Error| Error::Syntax {
        place: place(path, text, error.span().map(|span| span.start)),
        what: error.message().replace('\n', ", "),
    };
    let mut leaves = Vec::new();
    walk("", text.parse::<Table>().map_err(syntax)?, &mut |key, value| {
        let empty_section = value.is_table() && known.is_section(key);
        if empty_section {
            return Ok(());
        }
        let at = offset(text, key);
        leaves.push((key.to_string(), known.check(&place(path, text, at), key, value)?));
        Ok(())
    })?;
    Ok(leaves)
}

fn read(path: &Path) -> Result<String> {
    let fail = |source: io::Error| Error::Read { path: path.to_path_buf(), source };
    let bad = |what: &str| Error::Syntax { place: path.display().to_string(), what: what.to_string() };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(fail)?;
    if bytes.len() as u64 > MOST {
        return Err(bad("a configuration file has at most 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| bad("not UTF-8 text"))
}

/// Calls `leaf` with every key that does not hold a table with keys of its own.
fn walk(above: &str, table: Table, leaf: &mut dyn FnMut(&str, Value) -> Result<()>) -> Result<()> {
    for (name, value) in table {
        let key = if above.is_empty() { name } else { format!("{above}.{name}") };
        match value {
            Value::Table(inner) if !inner.is_empty() => walk(&key, inner, leaf)?,
            value => leaf(&key, value)?,
        }
    }
    Ok(())
}

/// `FILE:LINE`, or `FILE` where the offset is not known.
fn place(path: &Path, text: &str, offset: Option<usize>) -> String {
    match offset.and_then(|offset| text.get(..offset)) {
        Some(before) => format!("{}:{}", path.display(), 1 + before.matches('\n').count()),
        None => path.display().to_string(),
    }
}

/// Where a dotted key stands in a TOML text.
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
