//! Policy gradients of a whole model against TRL in f64, and independent of the split into micro-batches.
use std::collections::HashMap;

use serde_json::Value;
use xtrain::model::rl::{PolicyLoss, PolicyOutput, PolicyRow};
use xtrain::model::{Grads, LogitsProcessing, Model, TrainingExample, objective};
use xtrain::tensor::ops::{LogProb, Target};
use xtrain::tensor::testing::available_gpus;
use xtrain::tensor::{Device, Dtype, Tensor, ThreadSchedule};

use crate::fixtures::{json, model, tensors};

const DIR: &str = "grpo/end_to_end";

/// The prompts and completions of the fixture, without padding.
struct Batch {
    prompts: Vec<Vec<u32>>,
    completions: Vec<Vec<u32>>,
    advantages: Vec<f64>,
    logp: Vec<Vec<f64>>,
    old: Vec<Vec<f64>>,
}

/// A step with the weights of the policy loss.
struct Outcome {
    logp: Vec<Vec<f64>>,
    entropy: Vec<Vec<f64>>,
    output: PolicyOutput,
    loss: f32,
    grads: Vec<Tensor>,
}

fn words(name: &str) -> HashMap<String, (Vec<usize>, Vec<[u8; 8]>)> {
    let read = |(name, shape, bytes): (String, Vec<usize>, Vec<u8>)| {
        (name, (shape, bytes.chunks_exact(8).map(|b| b.try_into().unwrap()).collect()))
    };
    tensors(&format!("{DIR}/{name}")).into_iter().map(read).collect()
}

impl Batch {
    fn read() -> Batch {
        let all = words("tensors.safetensors");
        let rows = |name: &str| -> Vec<Vec<[u8; 8]>> {
            let (shape, values) = &all[name];
            values.chunks(*shape.last().unwrap()).map(<[_]>::to_vec).collect()
        };
        // the values of a row at the positions of its mask
        let masked = |name: &str, mask: &str| -> Vec<Vec<[u8; 8]>> {
            let keep = |(row, mask): (Vec<[u8; 8]>, Vec<[u8; 8]>)| {
                row.into_iter()
                    .zip(mask)
                    .filter(|(_, m)| i64::from_le_bytes(*m) != 0)
                    .map(|(x, _)| x)
                    .collect()
            };
            rows(name).into_iter().zip(rows(mask)).map(keep).collect()
        };
        let ids = |rows: Vec<Vec<[u8; 8]>>| -> Vec<Vec<u32>> {
            rows.iter().map(|row| row.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()).collect()
        };
        let numbers = |row: &Vec<[u8; 8]>| row.iter().map(|b| f64::from_le_bytes(*b)).collect::<Vec<f64>>();
        Batch {
            prompts: ids(masked("prompt_ids", "prompt_mask")),
            completions: ids(masked("completion_ids", "completion_mask")),
            advantages: numbers(&rows("advantages")[0]),
            logp: masked("new_logp", "completion_mask").iter().map(numbers).collect(),
            old: masked("old_logp", "completion_mask").iter().map(numbers).collect(),
        }
    }

    /// The completions as training examples, with these weights.
    fn examples(&self, weights: Option<&PolicyOutput>) -> Vec<TrainingExample> {
        let example = |b: usize| {
            let (prompt, completion) = (&self.prompts[b], &self.completions[b]);
            let mut inputs = [&prompt[..], completion].concat();
            inputs.pop();
            let mut targets = vec![None; prompt.len() - 1];
            targets.extend(completion.iter().enumerate().map(|(t, &id)| {
                let of = |values: &Vec<Vec<f64>>| values[b][t] as f32;
                let (weight, bonus) = weights.map_or((0.0, 0.0), |o| (of(&o.weights), of(&o.bonus)));
                Some(Target { id, weight, bonus })
            }));
            TrainingExample { inputs, targets, ..TrainingExample::default() }
        };
        (0..self.prompts.len()).map(example).collect()
    }

    /// Two passes over the batch, `micro_batch` completions at a time: one for log-probabilities and entropies, one
    /// for the gradients.
    fn step(&self, m: &Model, loss: &PolicyLoss, on_policy: bool, micro_batch: usize) -> Outcome {
        let mut values: Vec<LogProb> = Vec::new();
        for part in self.examples(None).chunks(micro_batch) {
            values.extend(objective::evaluate(m, part, &mut 0.0).unwrap().into_iter().flatten());
        }
        let rows_of = |value: fn(&LogProb) -> f32| -> Vec<Vec<f64>> {
            let mut rest = values.iter().map(|v| f64::from(value(v)));
            self.completions.iter().map(|c| rest.by_ref().take(c.len()).collect()).collect()
        };
        let (logp, entropy) = (rows_of(|v| v.log_prob), rows_of(|v| v.entropy));
        let masks: Vec<Vec<bool>> = logp.iter().map(|row| vec![true; row.len()]).collect();
        let row = |b: usize| PolicyRow {
            old: if on_policy { &logp[b] } else { &self.old[b] },
            reference: Some(&self.old[b]),
            entropy: Some(&entropy[b]),
            ..PolicyRow::on_policy(&logp[b], &masks[b], self.advantages[b])
        };
        let rows: Vec<PolicyRow<'_>> = (0..logp.len()).map(row).collect();
        let output = loss.evaluate(&rows).unwrap();
        let (mut value, mut grads) = (0f32, Grads::zeros(&m.params).unwrap());
        for part in self.examples(Some(&output)).chunks(micro_batch) {
            objective::backward(m, part, LogitsProcessing::default(), &mut value, &mut grads).unwrap();
        }
        Outcome { entropy, output, loss: value, grads: grads.finish().unwrap(), logp }
    }
}

/// The cases of the fixture: the loss, whether it is on-policy, and the reference answer.
fn cases() -> Vec<(PolicyLoss, bool, Value)> {
    let all = json(&format!("{DIR}/ref.json"));
    let read = |c: &Value| {
        let number = |key: &str| c[key].as_f64();
        let loss = PolicyLoss {
            loss_type: c["loss_type"].as_str().unwrap().parse().unwrap(),
            level: c["level"].as_str().unwrap().parse().unwrap(),
            epsilon: number("eps_low").unwrap(),
            epsilon_high: number("eps_high"),
            beta: number("beta").unwrap(),
            bias_corrected_kl: false,
            max_completion_length: c["max_completion_length"].as_u64().map(|n| n as usize),
            ..PolicyLoss::default()
        };
        (loss, c["onpolicy"].as_bool().unwrap_or(false), c.clone())
    };
    let cases: Vec<_> = all["cases"].as_array().unwrap().iter().map(read).collect();
    assert_eq!(cases.len(), 4);
    cases
}

/// Compares losses and all gradients with those of TRL in f64. The worst gradient is 5.3e-7 of the largest off.
fn check_on(device: &Device) {
    let (batch, m) = (Batch::read(), model(&format!("{DIR}/init"), Dtype::F32, device));
    for (loss, on_policy, case) in cases() {
        let name = case["name"].as_str().unwrap();
        let got = batch.step(&m, &loss, on_policy, usize::MAX);
        for (got, want) in got.logp.iter().flatten().zip(batch.logp.iter().flatten()) {
            assert!((got - want).abs() <= 1e-5, "{name}: log-probability {got}, expected {want}");
        }
        let want = case["loss"].as_f64().unwrap();
        assert!((got.output.loss - want).abs() <= 2e-6, "{name}: loss {}, expected {want}", got.output.loss);
        let numbers = |(_, values): &(Vec<usize>, Vec<[u8; 8]>)| -> Vec<f64> {
            values.iter().map(|b| f64::from_le_bytes(*b)).collect()
        };
        let want = words(case["grads_file"].as_str().unwrap());
        let largest = want.values().flat_map(numbers).fold(0f64, |max, g| max.max(g.abs()));
        assert_eq!(got.grads.len(), want.len());
        let mut squares = 0f64;
        let mut worst = 0f64;
        for (p, got) in m.params.iter().zip(&got.grads) {
            let (got, want) = (got.to_vec::<f32>().unwrap(), numbers(&want[p.name()]));
            assert_eq!(got.len(), want.len(), "{name}, {}", p.name());
            for (at, (&got, &want)) in got.iter().zip(&want).enumerate() {
                let off = (f64::from(got) - want).abs() / largest;
                assert!(off <= 1e-5, "{name}, {}, element {at}: {got}, expected {want}", p.name());
                worst = worst.max(off);
                squares += f64::from(got).powi(2);
            }
        }
        let norm = case["grad_norm"].as_f64().unwrap();
        assert!(
            (squares.sqrt() / norm - 1.0).abs() <= 1e-5,
            "{name}: norm {}, expected {norm}",
            squares.sqrt()
        );
        println!("{name} on {device}: gradients within {worst:.1e} of the largest");
    }
}

#[test]
fn policy_gradients_of_a_model_match_trl_in_f64() {
    check_on(&Device::cpu());
    available_gpus(&[ThreadSchedule::Forward]).iter().for_each(check_on);
}

/// The bits of all numbers of a step.
fn bits(o: &Outcome) -> Vec<(&'static str, Vec<u64>)> {
    let f64s = |rows: &[Vec<f64>]| rows.iter().flatten().map(|x| x.to_bits()).collect();
    let grads = o.grads.iter().flat_map(|g| g.to_vec::<f32>().unwrap());
    vec![
        ("log-probability", f64s(&o.logp)),
        ("entropy", f64s(&o.entropy)),
        ("loss", vec![o.output.loss.to_bits(), u64::from(o.loss.to_bits())]),
        ("weight", f64s(&o.output.weights)),
        ("entropy weight", f64s(&o.output.bonus)),
        ("gradient", grads.map(|g| u64::from(g.to_bits())).collect()),
    ]
}

/// Compares a step in one micro-batch with the step one completion at a time, and with two and three. Returns the
/// number of compared values.
pub(crate) fn splits() -> Result<usize, String> {
    let (batch, m) = (Batch::read(), model(&format!("{DIR}/init"), Dtype::F32, &Device::cpu()));
    let mut compared = 0;
    for (loss, on_policy, case) in cases() {
        for (entropy_coef, top_entropy_quantile) in [(0.0, 1.0), (0.01, 0.5)] {
            let loss = PolicyLoss { entropy_coef, top_entropy_quantile, ..loss };
            let together = bits(&batch.step(&m, &loss, on_policy, usize::MAX));
            for micro_batch in 1..=3 {
                let looped = bits(&batch.step(&m, &loss, on_policy, micro_batch));
                for ((what, together), (_, looped)) in together.iter().zip(&looped) {
                    if let Some(at) = (0..together.len()).find(|&i| looped.get(i) != Some(&together[i])) {
                        let (name, want) = (&case["name"], together[at]);
                        let got = looped.get(at).copied().unwrap_or_default();
                        return Err(format!(
                            "gate policy splits, seed of the fixture: {name}, {micro_batch} completions at a time: \
                             {what} {at}: bits {got:016x}, expected {want:016x}"
                        ));
                    }
                    compared += together.len();
                }
            }
        }
    }
    Ok(compared)
}

#[test]
fn clipped_pg_loss_batched_matches_looped() {
    let compared = splits().unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 100_000, "{compared}");
}

#[cfg(feature = "faults")]
#[test]
fn a_micro_batch_total_changes_the_looped_gradient() {
    use xtrain::tensor::faults::{Fault, with};
    let text = with(Fault::MicroBatchSubtotal, splits).unwrap_err();
    assert!(text.contains("gradient"), "{text}");
}
