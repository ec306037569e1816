//! The configuration that a resumed run continues with.
use toml::Value;

use crate::cli::exit::{CliError, Exit};
use crate::config::check::tree;
use crate::config::{GrpoSection, RunConfig};

/// The keys that a resume may change: no weight, no metric and no completion depends on them. `grpo.reward` names the
/// same programs at other places.
const MAY_CHANGE: [&str; 9] = [
    "grpo.reward",
    "grpo.reward_processes",
    "grpo.reward_timeout",
    "grpo.micro_batch",
    "grpo.preallocate",
    "grpo.verify_every",
    "grpo.show_every",
    "grpo.save_every",
    "grpo.keep",
];

/// Rejects a configuration with which the run would end with other files than without the interruption.
pub(super) fn check_changes(old: &RunConfig, new: &RunConfig) -> Result<(), CliError> {
    let programs = |config: &RunConfig| config.grpo.as_ref().map(|grpo: &GrpoSection| grpo.reward.len());
    let same_programs = programs(old) == programs(new);
    let may_change = |key: &str| MAY_CHANGE.contains(&key) && (key != "grpo.reward" || same_programs);
    let refused: Vec<String> = differing(old, new).into_iter().filter(|key| !may_change(key)).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let message = format!("--resume cannot change {}", refused.join(", "));
    let hint = format!(
        "only {} can change, and grpo.reward only in the commands, not in their number; start a new run for other \
         changes",
        MAY_CHANGE.join(", ")
    );
    Err(CliError::new(Exit::Usage, message).hint(hint))
}

/// The keys whose values differ.
fn differing(old: &RunConfig, new: &RunConfig) -> Vec<String> {
    let (old, new) = (tree(old), tree(new));
    let value = |config: &toml::Table, section: &str, key: &str| -> Option<Value> {
        config.get(section)?.as_table()?.get(key).cloned()
    };
    let mut keys = Vec::new();
    for (section, values) in &new {
        for key in values.as_table().into_iter().flat_map(|table| table.keys()) {
            if value(&old, section, key) != value(&new, section, key) {
                keys.push(format!("{section}.{key}"));
            }
        }
    }
    keys
}
