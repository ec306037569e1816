//! The table of known keys, and the check of a layer's values against it.
use std::collections::BTreeMap;

use toml::{Table, Value};

use super::familiar::familiar_grpo_key;
use super::seed::{seed_of, seed_value};
use super::{Error, GrpoSection, PRESETS, Result, RunConfig, absent, familiar_key, nearest};
use crate::model::tasks;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Seed,
    Number,
    Bool,
    String,
    StringList,
    NumberList,
}

impl Kind {
    fn of(value: &Value) -> Kind {
        match value {
            Value::Integer(_) => Kind::Integer,
            Value::Float(_) => Kind::Number,
            Value::Boolean(_) => Kind::Bool,
            Value::Array(_) => Kind::StringList,
            Value::String(_) | Value::Datetime(_) | Value::Table(_) => Kind::String,
        }
    }

    fn want(self) -> &'static str {
        match self {
            Kind::Integer => "a whole number of at least 0",
            Kind::Seed => "a whole number from 0 to 2^64 - 1 (a string above 2^63 - 1)",
            Kind::Number => "a number",
            Kind::Bool => "true or false",
            Kind::String => "a string",
            Kind::StringList => "a list of strings",
            Kind::NumberList => "a list of numbers",
        }
    }

    /// Converts the value to this type, or returns it unchanged as an error. An integer is accepted as a number, and
    /// a single string as a list of one string.
    fn accept(self, value: Value) -> Result<Value, Value> {
        match (self, value) {
            (Kind::Integer, Value::Integer(n)) if n >= 0 => Ok(Value::Integer(n)),
            // 1e3
            (Kind::Integer, Value::Float(x)) if x.fract() == 0.0 && (0.0..9e15).contains(&x) => {
                Ok(Value::Integer(x as i64))
            }
            (Kind::Seed, value) => seed_of(&value).map(seed_value).ok_or(value),
            (Kind::Number, Value::Float(x)) => Ok(Value::Float(x)),
            (Kind::Number, Value::Integer(n)) => Ok(Value::Float(n as f64)),
            (Kind::Bool, Value::Boolean(b)) => Ok(Value::Boolean(b)),
            (Kind::String, Value::String(s)) => Ok(Value::String(s)),
            (Kind::StringList, Value::String(s)) => Ok(Value::Array(vec![Value::String(s)])),
            (Kind::StringList, Value::Array(list)) if list.iter().all(Value::is_str) => {
                Ok(Value::Array(list))
            }
            (Kind::NumberList, Value::Array(list)) => {
                let number = |value: &Value| match value {
                    Value::Float(x) => Some(Value::Float(*x)),
                    Value::Integer(n) => Some(Value::Float(*n as f64)),
                    _ => None,
                };
                list.iter().map(number).collect::<Option<_>>().map(Value::Array).ok_or(Value::Array(list))
            }
            (_, value) => Err(value),
        }
    }
}

/// Keys that were renamed: the old name, which is still accepted, and the new one.
pub(super) const RENAMED: [(&str, &str); 1] = [("train.recompute", "train.gradient_checkpointing")];

/// Keys outside `[grpo]` that every run of `xtrain grpo` reads.
pub(crate) const SHARED: [&str; 5] =
    ["train.init", "train.seed", "train.dtype", "train.gradient_checkpointing", "train.shards"];

/// The keys of a configuration and their types, taken from the default configuration.
#[derive(Debug)]
pub(crate) struct KnownKeys {
    kinds: BTreeMap<String, Kind>,
}

impl KnownKeys {
    pub(crate) fn new() -> KnownKeys {
        let mut kinds = BTreeMap::new();
        for (section, keys) in tree(&RunConfig { grpo: Some(GrpoSection::default()), ..RunConfig::default() })
        {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let kind = match key.as_str() {
                    "seed" => Kind::Seed,
                    "reward_weights" => Kind::NumberList,
                    _ => Kind::of(value),
                };
                kinds.insert(format!("{section}.{key}"), kind);
            }
        }
        KnownKeys { kinds }
    }

    /// All keys with their sections, in alphabetical order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// Whether the value of the key is a string.
    pub(super) fn is_text(&self, key: &str) -> bool {
        self.kinds.get(key) == Some(&Kind::String)
    }

    /// Whether the value of the key is a number that need not be whole.
    pub(super) fn is_number(&self, key: &str) -> bool {
        self.kinds.get(key) == Some(&Kind::Number)
    }

    /// The current name of a key.
    pub(super) fn current<'a>(&self, key: &'a str) -> &'a str {
        RENAMED.iter().find(|(old, _)| *old == key).map_or(key, |(_, new)| new)
    }

    /// A short name of the key's type, for the reference page.
    #[cfg(test)]
    pub(crate) fn type_name(&self, key: &str) -> &'static str {
        match self.kinds[key] {
            Kind::Integer | Kind::Seed => "integer",
            Kind::Number => "number",
            Kind::Bool => "boolean",
            Kind::String => "string",
            Kind::StringList => "list of strings",
            Kind::NumberList => "list of numbers",
        }
    }

    /// Checks a value against its key and converts it to the key's type.
    ///
    /// # Errors
    /// The key is unknown, the value has another type, or the key does not accept the name.
    pub(super) fn check(&self, place: &str, key: &str, value: Value) -> Result<Value> {
        let (place, name) = (place.to_string(), key.to_string());
        let Some(&kind) = self.kinds.get(key) else {
            if self.is_section(key) {
                let want = "a section with keys, such as --set train.steps=500 or [train] in a file";
                return Err(Error::WrongType { place, key: name, want, got: show(&value) });
            }
            return Err(Error::UnknownKey { place, key: name, nearest: self.suggestion(key) });
        };
        let value = match kind.accept(value) {
            Ok(value) => value,
            Err(value) => {
                return Err(Error::WrongType { place, key: name, want: kind.want(), got: show(&value) });
            }
        };
        match (value.as_str(), names(key)) {
            (Some(got), Some(mut names)) if !names.contains(&got) => {
                let nearest = nearest(got, names.iter().copied().filter(|name| !name.is_empty()));
                let (got, nearest) = (got.to_string(), nearest.map(ToString::to_string));
                names.retain(|name| !name.is_empty());
                Err(Error::UnknownName { place, key: name, got, want: names.join(", "), nearest })
            }
            _ => Ok(value),
        }
    }

    /// The key that is probably meant by an unknown one. `None`: none is similar.
    fn suggestion(&self, key: &str) -> Option<String> {
        if let Some(name) = key.strip_prefix("grpo.") {
            return self.suggestion_for_grpo(name);
        }
        let same_name = |known: &&str| is_named(known, key);
        // Of two keys that are equally similar, the one outside [grpo] is suggested.
        let keys = |in_grpo: bool| self.keys().filter(move |key| key.starts_with("grpo.") == in_grpo);
        let similar = || nearest(key, keys(false).chain(keys(true)));
        let known = keys(false).find(same_name).or_else(|| familiar_key(key));
        known.or_else(|| absent(key).map_or_else(similar, |_| None)).map(ToString::to_string)
    }

    /// [`suggestion`](Self::suggestion) for the key `name` of `[grpo]`. It is a key that `xtrain grpo` reads: most of
    /// the others are refused there.
    fn suggestion_for_grpo(&self, name: &str) -> Option<String> {
        let shared = SHARED.iter().find(|key| is_named(key, name)).map(ToString::to_string);
        let names = self.keys().filter_map(|key| key.strip_prefix("grpo."));
        let similar = || nearest(name, names).map(|name| format!("grpo.{name}"));
        let known = self.familiar_in_grpo(name).or(shared);
        known.or_else(|| absent(name).map_or_else(similar, |_| None))
    }

    /// The key of `[grpo]` that another program calls `name`. `None`: there is none.
    pub(crate) fn familiar_in_grpo(&self, name: &str) -> Option<String> {
        familiar_grpo_key(name).filter(|key| self.kinds.contains_key(key))
    }

    /// Whether this is the name of a section.
    pub(super) fn is_section(&self, key: &str) -> bool {
        self.keys().any(|known| known.split_once('.').is_some_and(|(section, _)| section == key))
    }
}

/// Whether `name` is that of the key without its section.
fn is_named(key: &str, name: &str) -> bool {
    key.split_once('.').is_some_and(|(_, last)| last == name)
}

/// The names that a key accepts. `None`: any string.
pub(crate) fn names(key: &str) -> Option<Vec<&'static str>> {
    match key {
        "model.preset" => Some(PRESETS.iter().map(|preset| preset.name).chain([""]).collect()),
        "train.schedule" | "grpo.schedule" => {
            Some(vec!["cosine", "linear", "wsd", "wsd-cosine", "wsd-sqrt", "constant"])
        }
        "train.dtype" | "grpo.ref_dtype" => Some(vec!["f32", "bf16"]),
        "train.task" => Some(vec!["lm", "sft"]),
        "data.packing" => Some(vec!["stream", "documents"]),
        "train.order" => Some(vec!["random", "shuffled"]),
        "grpo.task" => Some(tasks::NAMES.iter().copied().chain([""]).collect()),
        "grpo.loss_type" => Some(vec!["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]),
        "grpo.importance_sampling_level" => Some(vec!["token", "sequence"]),
        "grpo.scale_rewards" => Some(vec!["group", "batch", "none"]),
        "grpo.advantage_baseline" => Some(vec!["group_mean", "leave_one_out"]),
        "grpo.multi_objective_aggregation" => Some(vec!["sum_then_normalize", "normalize_then_sum"]),
        _ => None,
    }
}

/// The configuration as a TOML table of sections.
pub(crate) fn tree(config: &RunConfig) -> Table {
    Table::try_from(config).expect("every field is a TOML type")
}

/// Formats a value for an error message: its type and its text, cut at 60 characters.
fn show(value: &Value) -> String {
    if let Value::String(text) = value
        && is_too_large(text)
    {
        return format!("{}, which is above the largest integer, 2^63 - 1", cut(text));
    }
    let kind = match value {
        Value::Integer(_) => "the integer",
        Value::Float(_) => "the number",
        Value::Boolean(_) => "the boolean",
        Value::String(_) => "the string",
        Value::Array(_) => "the list",
        Value::Table(_) => return "a table".to_string(),
        Value::Datetime(_) => "the date",
    };
    format!("{kind} {}", cut(&value.to_string()))
}

/// The first 60 characters of a text, with three dots if it is longer.
fn cut(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    cut + dots
}

/// Whether this is a whole number that no TOML integer holds; `--set` keeps it as a string.
fn is_too_large(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accepted_name_can_be_deserialized() {
        let known = KnownKeys::new();
        for key in known.keys() {
            for name in names(key).into_iter().flatten() {
                let grpo = Some(GrpoSection::default());
                let mut all = tree(&RunConfig { grpo, ..RunConfig::default() });
                let (section, last) = key.split_once('.').unwrap();
                all[section][last] = Value::String(name.to_string());
                let _: RunConfig = all.try_into().unwrap();
            }
        }
    }

    #[test]
    fn a_key_of_grpo_leads_to_one_that_grpo_reads() {
        let known = KnownKeys::new();
        for (name, want) in [
            ("max_grad_norm", Some("grpo.clip")),
            ("lr", Some("grpo.learning_rate")),
            ("max_steps", Some("grpo.steps")),
            ("save_steps", Some("grpo.save_every")),
            ("eval_steps", Some("grpo.eval_every")),
            ("batch_size", Some("grpo.prompts_per_step")),
            ("save_total_limit", Some("grpo.keep")),
            ("reward_funcs", Some("grpo.reward")),
            ("num_generation", Some("grpo.num_generations")),
            ("epz", Some("grpo.eps")),
            ("seed", Some("train.seed")),
            ("gradient_checkpointing", Some("train.gradient_checkpointing")),
            // keys of the base model of a task
            ("load_best_model_at_end", None),
            ("block_size", None),
            ("vocab_size", None),
            ("patience", None),
            ("optim", None),
            ("foo", None),
            ("", None),
        ] {
            assert_eq!(known.suggestion(&format!("grpo.{name}")).as_deref(), want, "{name}");
        }
        assert!(SHARED.iter().all(|key| known.kinds.contains_key(*key)));
        assert_eq!(known.suggestion("train.max_grad_norm").as_deref(), Some("train.clip"));
        assert_eq!(known.suggestion("lr").as_deref(), Some("train.learning_rate"));
    }

    #[test]
    fn every_key_has_a_section_and_the_type_of_its_default() {
        let known = KnownKeys::new();
        assert!(known.keys().all(|key| key.split('.').count() == 2));
        assert_eq!(known.kinds["train.steps"], Kind::Integer);
        assert_eq!(known.kinds["train.seed"], Kind::Seed);
        assert_eq!(known.kinds["train.learning_rate"], Kind::Number);
        assert_eq!(known.kinds["model.qk_norm"], Kind::Bool);
        assert_eq!(known.kinds["data.files"], Kind::StringList);
        assert_eq!(known.kinds["train.schedule"], Kind::String);
    }
}
