//! Sliding windows in a `config.json`: which layers have one.
use serde_json::{Value, json};

use super::fields::refuse;
use crate::config::Config;
use crate::error::Result;

/// The window of a family's config that does not say it (an explicit `null` is none).
const ABSENT: usize = 4096;
/// The first layer with a window where a config does not say it.
const FIRST: usize = 28;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// How a family says which layers have a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Llama: none has.
    Never,
    /// Qwen: where `use_sliding_window` is set, those that `layer_types` names, or those from
    /// `max_window_layers` on.
    Switched,
    /// Mistral: all have, unless `sliding_window` is null.
    Always,
}

/// The windows of the layers; empty where no layer has one.
///
/// # Errors
/// Layer types that are unknown, not one for each layer, or sliding without a window.
pub(super) fn read(json: &Value, rule: Rule, n_layers: usize) -> Result<Vec<Option<usize>>> {
    let switched = match &json["use_sliding_window"] {
        Value::Null => false,
        Value::Bool(on) => *on,
        other => return refuse("use_sliding_window", "true or false", other),
    };
    let on = match rule {
        Rule::Never if switched => return refuse("use_sliding_window", "false in this family", "true"),
        Rule::Never => false,
        Rule::Switched => switched,
        Rule::Always => true,
    };
    let window = match json.get("sliding_window") {
        _ if !on => None,
        None => Some(ABSENT),
        Some(Value::Null) => None,
        Some(value) => match value.as_u64().and_then(|w| usize::try_from(w).ok()).filter(|&w| w > 0) {
            Some(window) => Some(window),
            None => return refuse("sliding_window", "a whole number from 1, or null", value),
        },
    };
    let first = match (&json["max_window_layers"], rule) {
        (_, Rule::Never | Rule::Always) => 0,
        (Value::Null, _) => FIRST,
        (value, _) => match value.as_u64() {
            Some(layer) => usize::try_from(layer).unwrap_or(usize::MAX),
            None => return refuse("max_window_layers", "a whole number", value),
        },
    };
    let windows: Vec<Option<usize>> = match &json["layer_types"] {
        Value::Null => (0..n_layers).map(|layer| window.filter(|_| layer >= first)).collect(),
        Value::Array(types) if types.len() == n_layers => {
            let of = |kind: &Value| match (kind.as_str(), window) {
                (Some(FULL), _) => Ok(None),
                (Some(SLIDING), Some(window)) => Ok(Some(window)),
                (Some(SLIDING), None) => refuse("layer_types", "full_attention without a window", kind),
                _ => refuse("layer_types", "full_attention or sliding_attention", kind),
            };
            types.iter().map(of).collect::<Result<_>>()?
        }
        Value::Array(types) => return refuse("layer_types", "one type for each layer", types.len()),
        other => return refuse("layer_types", "a list", other),
    };
    if rule == Rule::Always && window.is_some() && windows.contains(&None) {
        // transformers' Mistral gives every layer the window, whatever it says here
        return refuse(
            "layer_types",
            "sliding_attention for each layer in this family",
            &json["layer_types"],
        );
    }
    Ok(if windows.iter().all(Option::is_none) { Vec::new() } else { windows })
}

/// Adds what [`read`] reads.
///
/// # Errors
/// Windows that the family cannot have.
pub(super) fn write(json: &mut Value, rule: Rule, cfg: &Config) -> Result<()> {
    let window = cfg.windows.iter().copied().flatten().next();
    let windows: Vec<Option<usize>> = (0..cfg.n_layers).map(|layer| cfg.window(layer)).collect();
    let got = || format!("{windows:?}");
    if windows.iter().flatten().any(|&w| Some(w) != window) {
        return refuse("sliding_window", "one window for all layers that have one", got());
    }
    match rule {
        Rule::Never if window.is_some() => {
            return refuse("sliding_window", "none in this family", got());
        }
        Rule::Never => {}
        Rule::Always if window.is_some() && windows.contains(&None) => {
            return refuse("sliding_window", "one for each layer in this family", got());
        }
        Rule::Always => json["sliding_window"] = json!(window),
        Rule::Switched => {
            let first = windows.iter().position(Option::is_some).unwrap_or(cfg.n_layers);
            let name = |w: &Option<usize>| if w.is_some() { SLIDING } else { FULL };
            json["use_sliding_window"] = json!(window.is_some());
            json["sliding_window"] = json!(window);
            json["max_window_layers"] = json!(first);
            json["layer_types"] = json!(windows.iter().map(name).collect::<Vec<_>>());
        }
    }
    Ok(())
}
