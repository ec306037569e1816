//! The part of a configuration that a checkpoint records: the keys on which the results of a run depend.
use toml::{Table, Value};

use super::check::tree;
use super::resolve::flat;
use super::{Error, Resolved, Result, RunConfig};

/// Keys that are not recorded: no weight and no metric depends on them, they add metrics only, `data.json` has a digest
/// of the file, or, for the reward programs, the command may name another place. Their number is recorded as
/// [`REWARD_PROGRAMS`].
const NOT_RECORDED: [&str; 24] = [
    "data.files",
    "data.tokenizer",
    "data.val_files",
    "grpo.eval_prompts",
    "grpo.keep",
    "grpo.micro_batch",
    "grpo.preallocate",
    "grpo.prompts",
    "grpo.reward",
    "grpo.reward_dir",
    "grpo.reward_processes",
    "grpo.reward_timeout",
    "grpo.save_every",
    "grpo.show_every",
    "grpo.verify_every",
    "train.gradient_checkpointing",
    "train.init",
    "train.keep",
    "train.keep_best",
    "train.micro_batch",
    "train.sample_every",
    "train.save_every",
    "train.stats_every",
    "model.preset",
];

/// The number of reward programs in the section `grpo` of a record.
const REWARD_PROGRAMS: &str = "reward_programs";

/// A key whose value is not the recorded one.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyDifference {
    /// The key, with its section.
    pub key: String,
    /// The recorded value.
    pub recorded: Value,
    /// The value of the configuration.
    pub found: Value,
}

/// The recorded keys of a configuration, as TOML.
pub fn record(config: &RunConfig) -> String {
    let mut all = tree(config);
    all.remove("sample");
    for key in NOT_RECORDED {
        let (section, last) = key.split_once('.').expect("every key has a section");
        if let Some(Value::Table(values)) = all.get_mut(section) {
            values.remove(last);
        }
    }
    if let (Some(count), Some(Value::Table(grpo))) = (reward_programs(config), all.get_mut("grpo")) {
        grpo.insert(REWARD_PROGRAMS.to_string(), count);
    }
    all.retain(|_, values| values.as_table().is_some_and(|values| !values.is_empty()));
    toml::to_string(&all).expect("every field is a TOML type")
}

/// The keys of a record whose values in `config` are others. Keys that an earlier version did not record are not
/// compared.
///
/// # Errors
/// The text is not a record. `place` names it.
pub fn differences(place: &str, record: &str, config: &RunConfig) -> Result<Vec<KeyDifference>> {
    let recorded: Table = record.parse().map_err(|error: toml::de::Error| Error::Syntax {
        place: place.to_string(),
        reason: error.message().replace('\n', ", "),
    })?;
    let mut found = flat(config);
    found.extend(reward_programs(config).map(|count| (format!("grpo.{REWARD_PROGRAMS}"), count)));
    let mut differences = Vec::new();
    for (section, values) in recorded {
        for (key, recorded) in values.as_table().into_iter().flatten() {
            let key = format!("{section}.{key}");
            let found = found.get(&key).cloned().unwrap_or(Value::String("none".to_string()));
            if found != *recorded {
                differences.push(KeyDifference { key, recorded: recorded.clone(), found });
            }
        }
    }
    Ok(differences)
}

fn reward_programs(config: &RunConfig) -> Option<Value> {
    config.grpo.as_ref().map(|grpo| Value::Integer(grpo.reward.len() as i64))
}

/// The keys whose values differ.
pub(crate) fn differing(old: &RunConfig, new: &RunConfig) -> Vec<String> {
    let old = flat(old);
    flat(new).into_iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(key, _)| key).collect()
}

/// The configuration with the recorded values.
///
/// # Errors
/// A recorded key or value is unknown to this version.
pub fn restored(place: &str, resolved: &Resolved, differences: &[KeyDifference]) -> Result<Resolved> {
    let mut all = tree(&resolved.config);
    for KeyDifference { key, recorded, .. } in differences {
        let (section, last) = key.split_once('.').expect("every key has a section");
        if let Some(Value::Table(values)) = all.get_mut(section) {
            values.insert(last.to_string(), recorded.clone());
        }
    }
    let config = all.try_into().map_err(|error: toml::de::Error| Error::Syntax {
        place: place.to_string(),
        reason: error.message().replace('\n', ", "),
    })?;
    Ok(Resolved { config, derived: resolved.derived.clone() })
}
