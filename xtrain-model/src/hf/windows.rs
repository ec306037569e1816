//! Sliding windows in a `config.json`.
use serde_json::{Value, json};
use xtrain_tensor::faults::{self, Fault};

use super::fields::{flag, refuse, size};
use crate::config::Config;
use crate::error::Result;

/// The default of `sliding_window` if the field is absent. An explicit `null` means no window.
const DEFAULT_WINDOW: usize = 4096;
/// The default of `max_window_layers`.
const DEFAULT_FIRST_LAYER: usize = 28;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Which layers of a family have a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowRule {
    /// Llama: no layer.
    Never,
    /// Qwen: if `use_sliding_window` is set, the layers listed in `layer_types`, or those from `max_window_layers`
    /// on.
    Switched,
    /// Mistral: all layers, unless `sliding_window` is null.
    Always,
}

/// Reads the windows of the layers. Empty: no layer has a window.
pub(super) fn read(json: &Value, rule: WindowRule, n_layers: usize) -> Result<Vec<Option<usize>>> {
    let switched = match flag(json, "use_sliding_window") {
        Err(_) if faults::on(Fault::SlidingWindowFlagUnchecked) => false,
        switched => switched?,
    };
    let on = match rule {
        WindowRule::Never if switched => return refuse("use_sliding_window", "false in this family", "true"),
        WindowRule::Never => false,
        WindowRule::Switched => switched,
        WindowRule::Always => true,
    };
    let window = match json.get("sliding_window") {
        _ if !on => None,
        None => Some(DEFAULT_WINDOW),
        Some(Value::Null) => None,
        Some(value) => match value.as_u64().and_then(|w| usize::try_from(w).ok()).filter(|&w| w > 0) {
            Some(window) => Some(window),
            None => return refuse("sliding_window", "a positive integer or null", value),
        },
    };
    let first = match rule {
        WindowRule::Never | WindowRule::Always => 0,
        WindowRule::Switched => size(json, "max_window_layers", Some(DEFAULT_FIRST_LAYER))?,
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
        Value::Array(types) => return refuse("layer_types", "one type per layer", types.len()),
        other => return refuse("layer_types", "a list", other),
    };
    if rule == WindowRule::Always && window.is_some() && windows.contains(&None) {
        // transformers' Mistral ignores `layer_types` and gives every layer the window
        let want = "sliding_attention for each layer in this family";
        return refuse("layer_types", want, &json["layer_types"]);
    }
    Ok(if windows.iter().all(Option::is_none) { Vec::new() } else { windows })
}

/// Writes the fields that [`read`] reads. Fails for windows that the family does not support.
pub(super) fn write(json: &mut Value, rule: WindowRule, cfg: &Config) -> Result<()> {
    let window = cfg.windows.iter().copied().flatten().next();
    let windows: Vec<Option<usize>> = (0..cfg.n_layers).map(|layer| cfg.window(layer)).collect();
    let got = || format!("{windows:?}");
    if windows.iter().flatten().any(|&w| Some(w) != window) {
        return refuse("sliding_window", "the same window in all layers with a window", got());
    }
    match rule {
        WindowRule::Never if window.is_some() => {
            return refuse("sliding_window", "none in this family", got());
        }
        WindowRule::Never => {}
        WindowRule::Always if window.is_some() && windows.contains(&None) => {
            return refuse("sliding_window", "one for each layer in this family", got());
        }
        WindowRule::Always => json["sliding_window"] = json!(window),
        WindowRule::Switched => {
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
