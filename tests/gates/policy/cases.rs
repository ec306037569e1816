//! The cases of the fixtures: operands, options and the values of TRL.
use std::collections::HashMap;

use serde_json::Value;
use xtrain::model::rl::{
    ImportanceSamplingLevel, LossType, PolicyLoss, PolicyRow, SamplerCorrection, SamplerCorrectionMode,
};

use crate::fixtures::{json, tensors};

/// Values of `[B, T]`.
pub(super) type Rows = Vec<Vec<f64>>;

/// The operands of a step.
#[derive(Debug, Clone, Default)]
pub(super) struct Step {
    pub(super) logp: Rows,
    pub(super) old: Rows,
    pub(super) reference: Rows,
    /// Empty: without a sampler.
    pub(super) sampler: Rows,
    pub(super) entropy: Rows,
    pub(super) mask: Vec<Vec<bool>>,
    pub(super) advantages: Vec<f64>,
}

/// A case and its reference answer.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) loss: PolicyLoss,
    pub(super) step: Step,
    /// The tokens that `dapo` divides by. `None`: those of the step.
    pub(super) step_tokens: Option<f64>,
    /// TRL's loss and gradient are divided by this number of micro-batches.
    pub(super) micro_batches: f64,
    pub(super) want_loss: f64,
    pub(super) want_gradient: Rows,
    pub(super) want_metrics: HashMap<String, f64>,
}

impl Step {
    /// With every operand rounded to f32.
    pub(super) fn rounded(&self) -> Step {
        let all =
            |rows: &Rows| rows.iter().map(|row| row.iter().map(|&x| f64::from(x as f32)).collect()).collect();
        Step {
            logp: all(&self.logp),
            old: all(&self.old),
            reference: all(&self.reference),
            sampler: all(&self.sampler),
            entropy: all(&self.entropy),
            mask: self.mask.clone(),
            advantages: self.advantages.iter().map(|&a| f64::from(a as f32)).collect(),
        }
    }

    pub(super) fn rows(&self) -> Vec<PolicyRow<'_>> {
        let row = |b: usize| PolicyRow {
            logp: &self.logp[b],
            old: &self.old[b],
            reference: Some(&self.reference[b]),
            sampler: self.sampler.get(b).map(Vec::as_slice),
            entropy: Some(&self.entropy[b]),
            mask: &self.mask[b],
            advantage: self.advantages[b],
            truncated: false,
        };
        (0..self.logp.len()).map(row).collect()
    }
}

pub(super) fn f64_of(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn level(name: &str) -> ImportanceSamplingLevel {
    name.parse().unwrap()
}

fn metrics(value: &Value) -> HashMap<String, f64> {
    value.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.as_f64().unwrap())).collect()
}

/// The f64 and i64 tensors of `grpo/tensors.safetensors` as rows; a vector is one row.
pub(super) fn tensor_rows() -> HashMap<String, Rows> {
    let read = |(name, shape, bytes): (String, Vec<usize>, Vec<u8>)| {
        let integer = name.ends_with("mask") || name.ends_with("_ids");
        let number = |b: &[u8]| {
            let b: [u8; 8] = b.try_into().unwrap();
            if integer { i64::from_le_bytes(b) as f64 } else { f64::from_le_bytes(b) }
        };
        let values: Vec<f64> = bytes.chunks_exact(8).map(number).collect();
        (name, values.chunks(*shape.last().unwrap()).map(<[f64]>::to_vec).collect())
    };
    tensors("grpo/tensors.safetensors").into_iter().map(read).collect()
}

fn masks(rows: &Rows) -> Vec<Vec<bool>> {
    rows.iter().map(|row| row.iter().map(|m| *m != 0.0).collect()).collect()
}

/// The cases of `cases.json`.
fn small_cases() -> Vec<Case> {
    let (all, named) = (json("grpo/cases.json"), tensor_rows());
    let read = |c: &Value| {
        let text = |key: &str| c[key].as_str().unwrap();
        let number = |key: &str| f64_of(&c[key]);
        let rows = |name: &str| named[&format!("{}.{name}", text("shape"))].clone();
        let old = rows("old_logp");
        let (mask, is_vespo) = (masks(&rows("mask")), text("loss_type") == "vespo");
        // exp(old - sampler) is the ratio of the fixture, to the rounding of the logarithm
        let sampler_of = |(b, ratios): (usize, Vec<f64>)| -> Vec<f64> {
            let mut logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
            if is_vespo {
                // TRL adds the ratios of padding, which are 1 in its runs but not in the fixture
                logs[0] += (1..logs.len()).filter(|&t| !mask[b][t]).map(|t| logs[t]).sum::<f64>();
            }
            old[b].iter().zip(logs).map(|(old, log)| old - log).collect()
        };
        let sampler: Rows =
            rows("importance_sampling_ratio").into_iter().enumerate().map(sampler_of).collect();
        let corrected = is_vespo || c["is_ratio"].as_bool().unwrap_or(false);
        let mode = SamplerCorrectionMode::TokenMask;
        let unbounded = SamplerCorrection { mode, min: None, max: None };
        Case {
            name: text("id").into(),
            loss: PolicyLoss {
                loss_type: text("loss_type").parse().unwrap(),
                level: level(text("level")),
                epsilon: number("eps_low").unwrap(),
                epsilon_high: number("eps_high"),
                delta: number("delta"),
                beta: number("beta").unwrap(),
                bias_corrected_kl: c["bias_kl"].as_bool().unwrap_or(false),
                top_entropy_quantile: number("top_entropy_quantile").unwrap_or(1.0),
                off_policy_mask_threshold: number("off_policy_mask_threshold"),
                max_completion_length: c["max_completion_length"].as_u64().map(|n| n as usize),
                sampler_correction: corrected.then_some(unbounded),
                ..PolicyLoss::default()
            },
            step: Step {
                logp: named[text("new_logp_tensor")].clone(),
                old,
                reference: rows("ref_logp"),
                sampler: if corrected { sampler } else { Vec::new() },
                entropy: rows("entropy"),
                mask,
                advantages: named[text("advantages_tensor")][0].clone(),
            },
            step_tokens: None,
            micro_batches: 1.0,
            want_loss: number("loss").unwrap(),
            want_gradient: named[text("grad_tensor")].clone(),
            want_metrics: metrics(&c["trl_metrics"]),
        }
    };
    all["cases"].as_array().unwrap().iter().map(read).collect()
}

/// The cases of `trl_1.16.json`.
fn trl_cases() -> Vec<Case> {
    let all = json("grpo/trl_1.16.json");
    let rows = |value: &Value| -> Rows { serde_json::from_value(value.clone()).unwrap() };
    let read = |(name, c): (&String, &Value)| {
        let args = c["args"].as_object().unwrap();
        let number = |key: &str| args.get(key).and_then(f64_of);
        let text = |key: &str| args.get(key).and_then(Value::as_str);
        let known = [
            "loss_type",
            "old_given",
            "beta",
            "bias_kl",
            "eps",
            "eps_high",
            "delta",
            "level",
            "vllm",
            "gas",
            "spg",
            "ent_coef",
            "topq",
            "offp",
            "advantage",
        ];
        assert!(
            args.keys().all(|key| known.contains(&key.as_str())),
            "{name}: an unknown option in {args:?}"
        );
        let on_policy = args.get("old_given") == Some(&Value::Bool(false));
        let correction = text("vllm").map(|mode| SamplerCorrection {
            mode: mode.parse().unwrap(),
            min: None,
            max: Some(3.0),
        });
        let defaults = PolicyLoss::default();
        let logp = rows(&all["logp"]);
        let mask = masks(&rows(&all["mask"]));
        let tokens = mask.iter().flatten().filter(|m| **m).count() as f64;
        let mut case = Case {
            name: name.clone(),
            loss: PolicyLoss {
                loss_type: text("loss_type").map_or(defaults.loss_type, |t| t.parse().unwrap()),
                level: text("level").map_or(defaults.level, level),
                epsilon: number("eps").unwrap_or(defaults.epsilon),
                epsilon_high: number("eps_high"),
                delta: number("delta"),
                beta: number("beta").unwrap_or(0.0),
                bias_corrected_kl: args.get("bias_kl").is_none_or(|b| b.as_bool().unwrap()),
                entropy_coef: number("ent_coef").unwrap_or(0.0),
                top_entropy_quantile: number("topq").unwrap_or(1.0),
                off_policy_mask_threshold: number("offp"),
                max_completion_length: all["L"].as_u64().map(|n| n as usize),
                sampler_correction: correction,
                ..defaults
            },
            step: Step {
                old: if on_policy { logp.clone() } else { rows(&all["old_logp"]) },
                logp,
                reference: rows(&all["ref_logp"]),
                sampler: if correction.is_some() { rows(&all["sampling_logp"]) } else { Vec::new() },
                entropy: rows(&all["entropy"]),
                mask,
                advantages: list(&all["advantage_modes"][text("advantage").unwrap_or("group")]["advantages"]),
            },
            step_tokens: None,
            micro_batches: number("gas").unwrap_or(1.0),
            want_loss: f64_of(&c["loss"]).unwrap(),
            want_gradient: rows(&c["grad_logp"]),
            want_metrics: metrics(&c["metrics"]),
        };
        if let (Some(gas), Some(steps)) = (number("gas"), number("spg")) {
            // TRL sees the generation batch of this many tokens, in `steps` micro-batches, `gas` to an optimizer step
            let batch = tokens * steps;
            (case.step_tokens, case.micro_batches) = (Some(batch / (steps / gas)), 1.0);
        }
        if name == "nanochat" {
            // -A l: the ratio of cispo on-policy is 1
            case.loss.loss_type = LossType::Cispo;
            case.loss.epsilon_high = Some(f64::INFINITY);
            case.step.old.clone_from(&case.step.logp);
        }
        case
    };
    all["cases"].as_object().unwrap().iter().map(read).collect()
}

pub(super) fn list(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Every case of both files.
pub(super) fn cases() -> Vec<Case> {
    let (small, trl) = (small_cases(), trl_cases());
    assert_eq!((small.len(), trl.len()), (76, 38));
    [small, trl].concat()
}
