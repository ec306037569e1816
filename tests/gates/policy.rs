//! Advantages and policy losses against TRL, in f64 and with f32 inputs.
use std::collections::HashMap;

use serde_json::Value;
use xtrain::model::rl::{
    AdvantageOptions, Baseline, ImportanceSamplingLevel, PolicyLoss, PolicyOutput, PolicyRow,
    RewardAggregation, SamplerCorrection, SamplerCorrectionMode, ScaleRewards, advantages,
};
use xtrain::tensor::ops::{self, LossRows, Samples, Target, Weight};
use xtrain::tensor::{Device, Dtype, Tensor};

use crate::fixtures::{json, tensors};

/// The number of compared values, or the first difference.
type Checked = Result<usize, String>;

/// The tolerance in f64, relative to numbers above 1.
const F64: f64 = 1e-12;
/// The tolerance with inputs and weights rounded to f32.
const F32: f64 = 1e-6;
/// The tolerance of shares of clipped ratios, which TRL averages in f32.
const SHARES: f64 = 1e-6;

/// Values of `[B, T]`.
type Rows = Vec<Vec<f64>>;

/// The operands of a step.
#[derive(Debug, Clone, Default)]
struct Step {
    logp: Rows,
    old: Rows,
    reference: Rows,
    /// Empty: without a sampler.
    sampler: Rows,
    entropy: Rows,
    mask: Vec<Vec<bool>>,
    advantages: Vec<f64>,
}

/// A case and its reference answer.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    loss: PolicyLoss,
    step: Step,
    /// The tokens that `dapo` divides by. `None`: those of the step.
    step_tokens: Option<f64>,
    /// TRL's loss and gradient are divided by this number of micro-batches.
    micro_batches: f64,
    want_loss: f64,
    want_gradient: Rows,
    want_metrics: HashMap<String, f64>,
}

impl Step {
    /// With every operand rounded to f32.
    fn rounded(&self) -> Step {
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

    fn rows(&self) -> Vec<PolicyRow<'_>> {
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

fn differ<T>(what: impl std::fmt::Display) -> Result<T, String> {
    Err(format!("gate policy, seed of the fixtures: {what}"))
}

/// Compares two numbers; the tolerance is relative above 1.
fn compare(what: &str, got: f64, want: f64, tolerance: f64) -> Checked {
    if (got - want).abs() <= tolerance * want.abs().max(1.0) {
        return Ok(1);
    }
    differ(format!("{what}: {got:e}, expected {want:e}"))
}

impl Case {
    fn evaluate(&self, step: &Step) -> Result<PolicyOutput, String> {
        let rows = step.rows();
        let output = match self.step_tokens {
            Some(tokens) => self.loss.evaluate_part(&rows, tokens),
            None => self.loss.evaluate(&rows),
        };
        output.or_else(|e| differ(format!("{}: {e}", self.name)))
    }

    /// Compares loss, gradient and metrics with the reference.
    fn check(&self) -> Checked {
        let output = self.evaluate(&self.step)?;
        let mut compared = compare(&self.name, output.loss / self.micro_batches, self.want_loss, F64)?;
        compared += self.check_gradient(&output, F64, |w| w)?;
        let mut named: HashMap<_, _> = output.metrics.named().into_iter().collect();
        named.insert("entropy_coef", self.loss.entropy_coef);
        for (name, &want) in &self.want_metrics {
            let what = format!("{}, metric {name}", self.name);
            let Some(&got) = named.get(name.as_str()) else { return differ(format!("{what} is missing")) };
            compared += compare(&what, got, want, if name.contains("clip") { SHARES } else { F64 })?;
        }
        Ok(compared)
    }

    /// Compares loss and gradient of operands that are rounded to f32, with weights that are rounded to f32.
    fn check_f32(&self) -> Checked {
        let output = self.evaluate(&self.step.rounded())?;
        let compared = compare(&self.name, output.loss / self.micro_batches, self.want_loss, F32)?;
        Ok(compared + self.check_gradient(&output, F32, |w| f64::from(w as f32))?)
    }

    fn check_gradient(&self, output: &PolicyOutput, tolerance: f64, round: impl Fn(f64) -> f64) -> Checked {
        let mut compared = 0;
        for (b, (got, want)) in output.weights.iter().zip(&self.want_gradient).enumerate() {
            for (t, (&w, &want)) in got.iter().zip(want).enumerate() {
                let what = format!("{}, weight of token {t} of completion {b}", self.name);
                compared += compare(&what, round(w) / self.micro_batches, -want, tolerance)?;
                if !self.step.mask[b][t] && w.to_bits() != 0 {
                    return differ(format!("{what}: {w:e} at a masked token"));
                }
            }
        }
        Ok(compared)
    }
}

fn f64_of(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn level(name: &str) -> ImportanceSamplingLevel {
    name.parse().unwrap()
}

fn metrics(value: &Value) -> HashMap<String, f64> {
    value.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.as_f64().unwrap())).collect()
}

/// The f64 and i64 tensors of `grpo/tensors.safetensors` as rows; a vector is one row.
fn tensor_rows() -> HashMap<String, Rows> {
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
            case.loss.loss_type = xtrain::model::rl::LossType::Cispo;
            case.loss.epsilon_high = Some(f64::INFINITY);
            case.step.old.clone_from(&case.step.logp);
        }
        case
    };
    all["cases"].as_object().unwrap().iter().map(read).collect()
}

fn list(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Every case of both files.
fn cases() -> Vec<Case> {
    let (small, trl) = (small_cases(), trl_cases());
    assert_eq!((small.len(), trl.len()), (76, 38));
    [small, trl].concat()
}

/// Advantages by the formulas of TRL, with the factor n / (n - 1) of a variance in f64, or rounded to f32.
///
/// TRL divides two integer tensors, which gives f32 also in its f64 runs: its standard deviations are off by up to
/// 2e-8. So ours are compared with these in f64, and TRL's with these in f32.
struct Formulas {
    rounded: bool,
}

impl Formulas {
    fn std(&self, values: &[f64]) -> f64 {
        let n = values.len() as f64;
        if n < 2.0 {
            return 0.0;
        }
        let factor = if self.rounded { f64::from((n / (n - 1.0)) as f32) } else { n / (n - 1.0) };
        let mean = mean(values);
        (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n * factor).sqrt()
    }

    /// The values minus their mean, divided by their standard deviation + 1e-4.
    fn normalized(&self, values: &[Option<f64>]) -> Vec<Option<f64>> {
        let all: Vec<f64> = values.iter().copied().flatten().collect();
        let (mean, std) = (mean(&all), self.std(&all));
        values.iter().map(|x| x.map(|x| (x - mean) / (std + 1e-4))).collect()
    }

    fn advantages(&self, rewards: &[Vec<Option<f64>>], options: &AdvantageOptions) -> Vec<f64> {
        let weighted = |row: &Vec<Option<f64>>| {
            let terms = row.iter().zip(&options.weights).filter_map(|(r, w)| r.map(|r| r * w));
            row.iter().any(Option::is_some).then(|| terms.sum::<f64>())
        };
        let groups = rewards.chunks(options.group);
        let values: Vec<Option<f64>> = if options.aggregation == RewardAggregation::NormalizeThenSum {
            let in_group = |group: &[Vec<Option<f64>>]| -> Vec<Option<f64>> {
                let column = |f: usize| self.normalized(&group.iter().map(|r| r[f]).collect::<Vec<_>>());
                let columns: Vec<_> = (0..options.weights.len()).map(column).collect();
                (0..group.len()).map(|b| weighted(&columns.iter().map(|c| c[b]).collect())).collect()
            };
            self.normalized(&groups.flat_map(in_group).collect::<Vec<_>>())
        } else {
            let rewards: Vec<Option<f64>> = rewards.iter().map(weighted).collect();
            let step = self.std(&rewards.iter().copied().flatten().collect::<Vec<_>>());
            let in_group = |group: &[Option<f64>]| -> Vec<Option<f64>> {
                let all: Vec<f64> = group.iter().copied().flatten().collect();
                let (mean, scale) = match options.scale {
                    ScaleRewards::Group => (mean(&all), self.std(&all) + 1e-4),
                    ScaleRewards::Batch => (mean(&all), step + 1e-4),
                    ScaleRewards::None => (mean(&all), 1.0),
                };
                group.iter().map(|r| r.map(|r| (r - mean) / scale)).collect()
            };
            rewards.chunks(options.group).flat_map(in_group).collect()
        };
        values.into_iter().map(|a| a.unwrap_or(0.0)).collect()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The advantages of both files.
fn check_advantages() -> Checked {
    let mut compared = 0;
    let mut list_of = |what: &str, got: &[f64], want: &[f64]| -> Result<(), String> {
        if got.len() != want.len() {
            return differ(format!("{what}: {} values, expected {}", got.len(), want.len()));
        }
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            compared += compare(&format!("{what}, {at}"), got, want, F64)?;
        }
        Ok(())
    };
    let error = |e: xtrain::model::rl::RlError| format!("gate policy, seed of the fixtures: {e}");
    let (exact, rounded) = (Formulas { rounded: false }, Formulas { rounded: true });

    let all = json("grpo/trl_1.16.json");
    let rewards: Vec<Vec<Option<f64>>> = serde_json::from_value(all["rewards_per_func"].clone()).unwrap();
    let modes = all["advantage_modes"].as_object().unwrap();
    assert_eq!(modes.len(), 4);
    for (mode, want) in modes {
        let mut options = AdvantageOptions::new(4, list(&all["reward_weights"]));
        match mode.as_str() {
            "normalize_then_sum" => options.aggregation = RewardAggregation::NormalizeThenSum,
            mode => options.scale = mode.parse().unwrap(),
        }
        let got = advantages(&rewards, &options).map_err(error)?;
        list_of(mode, &got.values, &exact.advantages(&rewards, &options))?;
        list_of(
            &format!("TRL, {mode}"),
            &rounded.advantages(&rewards, &options),
            &list(&want["advantages"]),
        )?;
        let share = f64_of(&want["frac_reward_zero_std"]).unwrap();
        list_of(&format!("{mode}, frac_reward_zero_std"), &[got.frac_reward_zero_std], &[share])?;
    }

    let named = tensor_rows();
    for (shape, group) in [("main", 4), ("small", 2)] {
        let of = |name: &str| &named[&format!("{shape}.{name}")][0];
        let rewards: Vec<Vec<Option<f64>>> = of("rewards").iter().map(|&r| vec![Some(r)]).collect();
        for scale in ScaleRewards::ALL {
            let options = AdvantageOptions { scale: *scale, ..AdvantageOptions::new(group, vec![1.0]) };
            let got = advantages(&rewards, &options).map_err(error)?;
            list_of(&format!("{shape}, {scale}"), &got.values, &exact.advantages(&rewards, &options))?;
            let want = of(&format!("adv_{scale}"));
            list_of(&format!("TRL, {shape}, {scale}"), &rounded.advantages(&rewards, &options), want)?;
            let size = if *scale == ScaleRewards::Batch { rewards.len() } else { group };
            let std_by = |formulas: &Formulas| -> Vec<f64> {
                of("rewards").chunks(size).flat_map(|r| vec![formulas.std(r); size]).collect()
            };
            let std = match scale {
                ScaleRewards::Batch => vec![got.reward.std.unwrap(); size],
                _ => got.group_std.iter().flat_map(|&std| vec![std; group]).collect(),
            };
            list_of(&format!("{shape}, std of {scale}"), &std, &std_by(&exact))?;
            let want = of(&format!("reward_std_{scale}"));
            list_of(&format!("TRL, {shape}, std of {scale}"), &std_by(&rounded), want)?;
        }
        let (scale, baseline) = (ScaleRewards::None, Baseline::LeaveOneOut);
        let options = AdvantageOptions { scale, baseline, ..AdvantageOptions::new(group, vec![1.0]) };
        let got = advantages(&rewards, &options).map_err(error)?;
        list_of(&format!("{shape}, leave-one-out"), &got.values, of("adv_rloo"))?;
    }
    Ok(compared)
}

/// The whole gate. Returns the number of compared values.
pub(crate) fn over() -> Checked {
    let mut compared = check_advantages()?;
    for case in cases() {
        compared += case.check()? + case.check_f32()?;
    }
    Ok(compared)
}

#[test]
fn every_policy_loss_gradient_advantage_and_metric_matches_trl() {
    let compared = over().unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 15_000, "{compared}");
}

/// The cases cover every loss type, level and correction, and every option has a value other than its default.
#[test]
fn every_option_occurs_in_a_case() {
    use xtrain::model::rl::LossType;
    let (cases, defaults) = (cases(), PolicyLoss::default());
    let any = |what: &str, condition: &dyn Fn(&PolicyLoss) -> bool| {
        assert!(cases.iter().any(|c| condition(&c.loss)), "no case has {what}");
    };
    for t in LossType::ALL {
        any(&t.to_string(), &|l| l.loss_type == *t);
    }
    for level in ImportanceSamplingLevel::ALL {
        any(&level.to_string(), &|l| l.level == *level);
    }
    for mode in SamplerCorrectionMode::ALL {
        any(&mode.to_string(), &|l| l.sampler_correction.is_some_and(|c| c.mode == *mode));
    }
    any("epsilon", &|l| l.epsilon != defaults.epsilon);
    any("epsilon_high", &|l| l.epsilon_high() != l.epsilon);
    any("delta", &|l| l.delta.is_some());
    any("beta with the bias correction", &|l| l.beta > 0.0 && l.bias_corrected_kl);
    any("beta without the bias correction", &|l| l.beta > 0.0 && !l.bias_corrected_kl);
    any("entropy_coef", &|l| l.entropy_coef > 0.0);
    any("top_entropy_quantile", &|l| l.top_entropy_quantile < 1.0);
    any("off_policy_mask_threshold", &|l| l.off_policy_mask_threshold.is_some());
}

/// Logits divided by a temperature have the log-probabilities and entropies of PyTorch in f64, within f32's rounding.
#[test]
fn log_probabilities_at_a_temperature_match_pytorch() {
    let device = Device::cpu();
    let check = |logits: &[f64], ids: &[f64], temperature: f32, want: &[f64], entropy: &[f64]| {
        let (n, v) = (ids.len(), logits.len() / ids.len());
        // with the identity as head, the logits are the hidden states
        let identity: Vec<f32> = (0..v * v).map(|i| if i % (v + 1) == 0 { 1.0 } else { 0.0 }).collect();
        let head = Weight::new(&Tensor::new(&device, &[v, v], identity).unwrap(), Dtype::F32).unwrap();
        let x = Tensor::new(&device, &[n, v], logits.iter().map(|&z| z as f32).collect()).unwrap();
        let target = |&id: &f64| Some(Target { id: id as u32, weight: 1.0, bonus: 0.0 });
        let targets: Vec<_> = ids.iter().map(target).collect();
        let samples = Samples::of_lengths([n]);
        let rows = LossRows { temperature, ..LossRows::new(&targets, &samples) };
        let values = ops::cross_entropy(&x, &head, &rows, &mut 0.0).unwrap();
        for (at, value) in values.into_iter().enumerate() {
            let value = value.unwrap();
            compare("log-probability", value.log_prob.into(), want[at], 2.0 * F32).unwrap();
            if let Some(&want) = entropy.get(at) {
                compare("entropy", value.entropy.into(), want, 2.0 * F32).unwrap();
            }
        }
    };
    let all = json("grpo/trl_1.16.json");
    let c = &all["logp_from_logits"];
    let logits: Vec<Vec<f64>> = serde_json::from_value(c["logits"].clone()).unwrap();
    check(&logits.concat(), &list(&c["ids"]), 0.7, &list(&c["logp"]), &list(&c["entropy"]));
    let named = tensor_rows();
    for shape in ["main", "small"] {
        let of = |name: &str| named[&format!("{shape}.{name}")].concat();
        let (logits, ids) = (of("new_logits"), of("completion_ids"));
        check(&logits, &ids, 1.0, &of("new_logp"), &of("entropy"));
        check(&logits, &ids, 0.7, &of("new_logp_temperature_0.7"), &[]);
        check(&logits, &ids, 1.3, &of("new_logp_temperature_1.3"), &[]);
    }
}
