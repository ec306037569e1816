//! Advantages and policy losses against TRL, in f64 and with f32 inputs.
use std::collections::HashMap;

use xtrain::model::rl::{ImportanceSamplingLevel, LossType, PolicyLoss, PolicyOutput, SamplerCorrectionMode};
use xtrain::tensor::ops::{self, LossRows, Samples, Target, Weight};
use xtrain::tensor::{Device, Dtype, Tensor};

use crate::fixtures::json;

mod cases;
mod rewards;

use cases::{Case, Step, cases, list, tensor_rows};
use rewards::check_advantages;

/// The number of compared values, or the first difference.
type Checked = Result<usize, String>;

/// The tolerance in f64, relative to numbers above 1.
const F64: f64 = 1e-12;
/// The tolerance with inputs and weights rounded to f32.
const F32: f64 = 1e-6;
/// The tolerance of shares of clipped ratios, which TRL averages in f32.
const SHARES: f64 = 1e-6;

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
