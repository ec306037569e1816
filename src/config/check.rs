//! The table of known keys, and a layer's values held against it.
use std::collections::BTreeMap;

use toml::{Table, Value};

use super::seed::{seed_of, seed_value};
use super::{Error, PRESETS, Result, RunConfig, nearest};

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Seed,
    Number,
    Flag,
    Text,
    Texts,
}

impl Kind {
    fn of(value: &Value) -> Kind {
        match value {
            Value::Integer(_) => Kind::Whole,
            Value::Float(_) => Kind::Number,
            Value::Boolean(_) => Kind::Flag,
            Value::Array(_) => Kind::Texts,
            Value::String(_) | Value::Datetime(_) | Value::Table(_) => Kind::Text,
        }
    }

    fn want(self) -> &'static str {
        match self {
            Kind::Whole => "a whole number from 0",
            Kind::Seed => "a whole number from 0 to 2^64 - 1 (above 2^63 - 1 as a string)",
            Kind::Number => "a number",
            Kind::Flag => "true or false",
            Kind::Text => "a string",
            Kind::Texts => "a list of strings",
        }
    }

    /// The value as this kind holds it, or the value back. A whole number is a number, and one string is
    /// a list of one.
    fn accept(self, value: Value) -> Result<Value, Value> {
        match (self, value) {
            (Kind::Whole, Value::Integer(n)) if n >= 0 => Ok(Value::Integer(n)),
            (Kind::Seed, value) => seed_of(&value).map(seed_value).ok_or(value),
            (Kind::Number, Value::Float(x)) => Ok(Value::Float(x)),
            (Kind::Number, Value::Integer(n)) => Ok(Value::Float(n as f64)),
            (Kind::Flag, Value::Boolean(b)) => Ok(Value::Boolean(b)),
            (Kind::Text, Value::String(s)) => Ok(Value::String(s)),
            (Kind::Texts, Value::String(s)) => Ok(Value::Array(vec![Value::String(s)])),
            (Kind::Texts, Value::Array(list)) if list.iter().all(Value::is_str) => Ok(Value::Array(list)),
            (_, value) => Err(value),
        }
    }
}

/// The keys that a configuration has, taken from its default.
#[derive(Debug)]
pub(super) struct Known {
    kinds: BTreeMap<String, Kind>,
}

impl Known {
    pub(super) fn new() -> Known {
        let mut kinds = BTreeMap::new();
        for (section, keys) in tree(&RunConfig::default()) {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let kind = if key == "seed" { Kind::Seed } else { Kind::of(value) };
                kinds.insert(format!("{section}.{key}"), kind);
            }
        }
        Known { kinds }
    }

    /// Every key with its section, in alphabetical order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// Whether the key holds a string.
    pub(super) fn is_text(&self, key: &str) -> bool {
        self.kinds.get(key) == Some(&Kind::Text)
    }

    /// The value as its key holds it.
    ///
    /// # Errors
    /// A key that is not known, a value of another type, a name that the key does not accept.
    pub(super) fn check(&self, place: &str, key: &str, value: Value) -> Result<Value> {
        let place = || place.to_string();
        let Some(&kind) = self.kinds.get(key) else {
            if self.is_section(key) {
                return Err(Error::WrongType {
                    place: place(),
                    key: key.into(),
                    want: "a section",
                    got: show(&value),
                });
            }
            let nearest = nearest(key, self.keys()).expect("the default has keys").to_string();
            return Err(Error::UnknownKey { place: place(), key: key.into(), nearest });
        };
        let value = kind.accept(value).map_err(|value| Error::WrongType {
            place: place(),
            key: key.into(),
            want: kind.want(),
            got: show(&value),
        })?;
        match (value.as_str(), names(key)) {
            (Some(got), Some(names)) if !names.contains(&got) => {
                let nearest = nearest(got, names.iter().copied()).expect("a choice has names").to_string();
                let want =
                    names.iter().filter(|name| !name.is_empty()).copied().collect::<Vec<_>>().join(", ");
                Err(Error::UnknownName { place: place(), key: key.into(), got: got.into(), want, nearest })
            }
            _ => Ok(value),
        }
    }

    /// Whether keys stand under this name.
    pub(super) fn is_section(&self, key: &str) -> bool {
        self.keys().any(|known| known.split_once('.').is_some_and(|(section, _)| section == key))
    }
}

/// The names that a key accepts, where it does not accept every string.
fn names(key: &str) -> Option<Vec<&'static str>> {
    match key {
        "model.preset" => Some(PRESETS.iter().map(|preset| preset.name).chain([""]).collect()),
        "train.schedule" => Some(vec!["cosine", "linear", "wsd", "wsd-cosine", "wsd-sqrt", "constant"]),
        "train.dtype" => Some(vec!["f32", "bf16"]),
        "train.task" => Some(vec!["lm", "sft"]),
        "data.packing" => Some(vec!["stream", "documents"]),
        "train.order" => Some(vec!["random", "shuffled"]),
        _ => None,
    }
}

/// A configuration as TOML sections.
pub(super) fn tree(config: &RunConfig) -> Table {
    Table::try_from(config).expect("every field is a TOML type")
}

/// A value as an error shows it: its type and its text, cut at 60 characters.
fn show(value: &Value) -> String {
    let kind = match value {
        Value::Integer(_) => "the whole number",
        Value::Float(_) => "the number",
        Value::Boolean(_) => "the flag",
        Value::String(_) => "the string",
        Value::Array(_) => "the list",
        Value::Table(_) => return "a section".to_string(),
        Value::Datetime(_) => "the date",
    };
    let text = value.to_string();
    let cut: String = text.chars().take(60).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("{kind} {cut}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_a_key_accepts_can_be_read() {
        let known = Known::new();
        for key in known.keys() {
            for name in names(key).into_iter().flatten() {
                let mut all = tree(&RunConfig::default());
                let (section, last) = key.split_once('.').unwrap();
                all[section][last] = Value::String(name.to_string());
                let _: RunConfig = all.try_into().unwrap();
            }
        }
    }

    #[test]
    fn every_key_has_a_section_and_a_kind_of_its_own() {
        let known = Known::new();
        assert!(known.keys().all(|key| key.split('.').count() == 2));
        assert_eq!(known.kinds["train.steps"], Kind::Whole);
        assert_eq!(known.kinds["train.seed"], Kind::Seed);
        assert_eq!(known.kinds["train.learning_rate"], Kind::Number);
        assert_eq!(known.kinds["model.qk_norm"], Kind::Flag);
        assert_eq!(known.kinds["data.files"], Kind::Texts);
        assert_eq!(known.kinds["train.schedule"], Kind::Text);
    }
}
