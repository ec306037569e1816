//! RoPE scaling in a `config.json`: `rope_parameters` (transformers 5) or `rope_scaling` (transformers 4).
use serde_json::{Value, json};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{RopeScaling, Truncate, Yarn};

use super::fields::{only, refuse};
use crate::config::Config;
use crate::error::{Error, Result};

/// The default base of the frequencies.
const THETA: f64 = 10_000.0;
/// The `rope_type` of a table of divisors, and the field that holds it.
const DIVISORS: &str = "divisors";
/// The supported values of `rope_type`.
const KINDS: &str = "default, linear, llama3 or yarn";
/// Maximum number of pairs of a head.
const MAX_PAIRS: usize = 128;

/// Reads the base and the scaling of the frequencies.
pub(super) fn read(json: &Value, max_positions: usize) -> Result<(f64, RopeScaling)> {
    for field in ["rope_parameters", "rope_scaling"] {
        if !json[field].is_object() {
            only(json, field, "an object", |_| false)?;
        }
    }
    let none = Value::Null;
    let (new, old) = (&json["rope_parameters"], &json["rope_scaling"]);
    let rope = [new, old].into_iter().find(|v| v.is_object()).unwrap_or(&none);
    only(json, "partial_rotary_factor", "1", |v| v.as_f64() == Some(1.0))?;
    only(rope, "partial_rotary_factor", "1", |v| v.as_f64() == Some(1.0))?;
    only(json, "original_max_position_embeddings", "a number", Value::is_number)?;
    let theta = theta([new, old, json])?;
    let scaling = |rope| scaling(rope, &json["original_max_position_embeddings"], max_positions);
    let rule = scaling(rope)?;
    if new.is_object() && old.is_object() && scaling(old)? != rule {
        return refuse("rope_scaling", "null or the rule of rope_parameters", old);
    }
    Ok((theta, rule))
}

/// The base: the `rope_theta` of the objects that have one.
fn theta(objects: [&Value; 3]) -> Result<f64> {
    const FIELD: &str = "rope_theta";
    let mut found: Option<f64> = None;
    for value in objects.into_iter().map(|object| &object[FIELD]).filter(|value| !value.is_null()) {
        let Some(theta) = value.as_f64() else { return refuse(FIELD, "a number", value) };
        match found {
            Some(first) if first != theta => {
                let want = "one number in rope_parameters, rope_scaling and at the top level";
                return refuse(FIELD, want, format!("{first} and {theta}"));
            }
            _ => found = Some(theta),
        }
    }
    Ok(found.unwrap_or(THETA))
}

/// Rejects an object without `rope_type` that has other fields than a rule without scaling.
fn require_no_rule(rope: &Value) -> Result<()> {
    let allowed = |field: &str| ["rope_theta", "partial_rotary_factor"].contains(&field);
    let fields = rope.as_object().into_iter().flatten();
    match fields.into_iter().find(|(field, value)| !allowed(field) && !value.is_null()) {
        Some((field, _)) => refuse("rope_type", KINDS, format!("none, next to the field {field}")),
        None => Ok(()),
    }
}

fn scaling(rope: &Value, original: &Value, max_positions: usize) -> Result<RopeScaling> {
    let optional = |field: &'static str| match &rope[field] {
        Value::Null => Ok(None),
        value => value.as_f64().map_or_else(|| refuse(field, "a number", value), |number| Ok(Some(number))),
    };
    let required = |field| optional(field)?.map_or_else(|| refuse(field, "a number", "none"), Ok);
    let original = || {
        let named = optional("original_max_position_embeddings")?;
        let ignored = faults::on(Fault::OriginalPositionsOfModelIgnored);
        let of_model = original.as_f64().filter(|_| !ignored);
        match (named, of_model) {
            (Some(named), Some(of_model))
                if named != of_model && !faults::on(Fault::OriginalPositionsMayDiffer) =>
            {
                refuse("original_max_position_embeddings", "the number of the rule of RoPE", of_model)
            }
            _ => Ok::<f64, Error>(named.or(of_model).unwrap_or(max_positions as f64)),
        }
    };
    let kind = match (&rope["rope_type"], &rope["type"]) {
        (Value::Null, Value::Null) => return require_no_rule(rope).map(|()| RopeScaling::Default),
        (Value::Null, kind) | (kind, _) => kind,
    };
    match kind.as_str() {
        Some("default") => Ok(RopeScaling::Default),
        Some("linear") => Ok(RopeScaling::Linear { factor: required("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: required("factor")?,
            low: required("low_freq_factor")?,
            high: required("high_freq_factor")?,
            original: original()?,
        }),
        Some("yarn") => {
            let original = original()?;
            let factor = optional("factor")?.unwrap_or(max_positions as f64 / original);
            let scales = (optional("mscale")?, optional("mscale_all_dim")?);
            if let (Some(some), Some(all)) = scales
                && some != 0.0
                && all != 0.0
            {
                return refuse("mscale", "absent", some);
            }
            Ok(RopeScaling::Yarn(Yarn {
                factor,
                original,
                beta_fast: optional("beta_fast")?.filter(|&b| b != 0.0).unwrap_or(32.0),
                beta_slow: optional("beta_slow")?.filter(|&b| b != 0.0).unwrap_or(1.0),
                attention: optional("attention_factor")?,
                truncate: match &rope["truncate"] {
                    Value::Null | Value::Bool(true) => Truncate::Whole,
                    Value::Bool(false) => Truncate::Exact,
                    other => return refuse("truncate", "true or false", other),
                },
            }))
        }
        Some(DIVISORS) => divisors(rope),
        _ => refuse("rope_type", KINDS, kind),
    }
}

/// The divisors of [`RopeScaling::Divisors`]: finite f32, at most one for each pair of the largest head.
fn divisors(rope: &Value) -> Result<RopeScaling> {
    const WANT: &str = "a list of one f32 for each pair of a head";
    let max = if faults::on(Fault::DivisorLimitExclusive) { MAX_PAIRS - 1 } else { MAX_PAIRS };
    let Some(list) = rope[DIVISORS].as_array().filter(|list| list.len() <= max) else {
        return refuse(DIVISORS, WANT, "no such list");
    };
    let divisor = |value: &Value| match value.as_f64().map(|x| x as f32) {
        Some(x) if x.is_finite() => Ok(x),
        _ => refuse(DIVISORS, WANT, value),
    };
    Ok(RopeScaling::Divisors(list.iter().map(divisor).collect::<Result<_>>()?))
}

/// The value of `rope_parameters`, including the base. A table of divisors has a `rope_type` of its own, `divisors`,
/// which other programs reject: they would compute other logits.
pub(super) fn write(cfg: &Config) -> Value {
    let mut rope = match &cfg.rope_scaling {
        RopeScaling::Default => json!({"rope_type": "default"}),
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": whole(*original),
        }),
        RopeScaling::Yarn(yarn) => {
            let mut json = json!({
                "rope_type": "yarn",
                "factor": yarn.factor,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "original_max_position_embeddings": whole(yarn.original),
                "truncate": yarn.truncate == Truncate::Whole,
            });
            if let Some(attention) = yarn.attention {
                json["attention_factor"] = json!(attention);
            }
            json
        }
        // f64 represents each divisor exactly
        RopeScaling::Divisors(table) => json!({
            "rope_type": DIVISORS,
            DIVISORS: table.iter().copied().map(f64::from).collect::<Vec<f64>>(),
        }),
    };
    rope["rope_theta"] = json!(cfg.rope_theta);
    rope
}

/// A number of positions. Integers are written without a fraction.
fn whole(positions: f64) -> Value {
    if positions.fract() == 0.0 && positions < 9e15 { json!(positions as u64) } else { json!(positions) }
}
