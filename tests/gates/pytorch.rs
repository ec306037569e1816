//! Training against PyTorch in f64: losses, gradients, weights, learning rates.
use std::collections::HashMap;

use xtrain::model::{
    Decay, Grads, LogitsProcessing, Model, Schedule, TrainingExample, normalize_loss_weights, objective,
};
use xtrain::tensor::{Device, Dtype};

use crate::fixtures::{f32s, json, model, tensors};
use crate::golden::{PRETRAIN, SFT, batch, rows, train};

/// Four micro-batches of 4, 14, 24 and 26 targets.
const ACCUMULATION: &str = "train/grad_accum";

/// The tensors of a file, by name.
fn named(file: &str) -> HashMap<String, Vec<f32>> {
    tensors(file).into_iter().map(|(name, _, bytes)| (name, f32s(&bytes))).collect()
}

/// Loss and gradients of micro-batches whose loss weights are already normalized.
fn gradients(m: &Model, parts: &[Vec<TrainingExample>]) -> (f32, Grads) {
    let (mut loss, mut grads) = (0f32, Grads::zeros(&m.params).unwrap());
    for part in parts {
        objective::backward(m, part, LogitsProcessing::default(), &mut loss, &mut grads).unwrap();
    }
    (loss, grads)
}

/// Checks that each gradient is within 1e-5 of PyTorch's in f64, relative to the largest. PyTorch's own f32 gradients
/// are within 6e-7.
#[track_caller]
fn check_gradients(case: &str, m: &Model, grads: Grads, want: &HashMap<String, Vec<f32>>) {
    let largest = want.values().flatten().fold(0f32, |max, g| max.max(g.abs()));
    let grads = grads.finish().unwrap();
    assert_eq!(grads.len(), want.len());
    for (p, got) in m.params.iter().zip(grads) {
        let (got, want) = (got.data::<f32>().unwrap(), &want[p.name()]);
        assert_eq!(got.len(), want.len(), "{case}, {}", p.name());
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            let off = (got - want).abs();
            assert!(off <= 1e-5 * largest, "{case}, {}, element {at}: got {got}, want {want}", p.name());
        }
    }
}

#[test]
fn twenty_steps_follow_pytorch_in_f64() {
    for case in [PRETRAIN, SFT] {
        let (curve, _) = train(case, &Device::cpu(), Dtype::F32, 20, usize::MAX);
        let r = json(&format!("{case}/ref.json"));
        for (step, (loss, norm)) in curve.into_iter().enumerate() {
            let want = |key: &str| r["f64"][step][key].as_f64().unwrap();
            let (loss, norm) = (f64::from(f32::from_bits(loss)), f64::from(f32::from_bits(norm)));
            // eighteen times the error of PyTorch's own f32 losses against f64, twenty-eight times that of its norms
            assert!((loss - want("loss")).abs() <= 1e-5, "{case}: loss of step {step}: {loss}");
            assert!((norm / want("grad_norm") - 1.0).abs() <= 1e-5, "{case}: norm of step {step}: {norm}");
        }
    }
}

#[test]
fn first_gradients_and_final_weights_match_pytorch_in_f64() {
    for case in [PRETRAIN, SFT] {
        let device = Device::cpu();
        let m = model(&format!("{case}/init"), Dtype::F32, &device);
        let (_, grads) = gradients(&m, &[batch(case, 0)]);
        check_gradients(case, &m, grads, &named(&format!("{case}/grads_step0.safetensors")));

        let (_, got) = train(case, &device, Dtype::F32, 20, usize::MAX);
        let want = named(&format!("{case}/weights_after_20.safetensors"));
        let want: Vec<f32> = m.params.iter().flat_map(|p| want[p.name()].clone()).collect();
        let squares: f64 = got.iter().zip(&want).map(|(got, want)| f64::from(got - want).powi(2)).sum();
        let rms = (squares / want.len() as f64).sqrt();
        // thirty times the error of PyTorch's own f32 run
        assert!(got.len() == want.len() && rms <= 1e-6, "{case}: weights after 20 steps: RMS {rms}");
    }
}

#[test]
fn unequal_micro_batches_weight_their_tokens_as_in_pytorch() {
    let r = json(&format!("{ACCUMULATION}/ref.json"));
    let m = model(&format!("{ACCUMULATION}/init"), Dtype::F32, &Device::cpu());
    let parts: Vec<Vec<TrainingExample>> =
        (0..4).map(|at| rows(ACCUMULATION, &format!("micro{at}"))).collect();
    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
    let mut all: Vec<TrainingExample> = parts.into_iter().flatten().collect();
    assert_eq!(normalize_loss_weights(&mut all) as u64, r["total_targets"].as_u64().unwrap());
    let mut left = all.into_iter();
    let parts: Vec<Vec<TrainingExample>> = sizes.iter().map(|&n| left.by_ref().take(n).collect()).collect();

    let (loss, grads) = gradients(&m, &parts);
    let off = |key: &serde_json::Value| (f64::from(loss) - key.as_f64().unwrap()).abs();
    assert!(off(&r["loss_token_mean"]) <= 1e-5, "{loss}");
    assert!(off(&r["wrong_mean_of_means"]["loss"]) > 1e-2, "{loss}");
    check_gradients(ACCUMULATION, &m, grads.clone(), &named(&format!("{ACCUMULATION}/grads.safetensors")));
    let squares = |g: &xtrain::tensor::Tensor| -> f64 {
        g.data::<f32>().unwrap().iter().map(|g| f64::from(*g).powi(2)).sum()
    };
    let norm = grads.finish().unwrap().iter().map(squares).sum::<f64>().sqrt();
    assert!((norm / r["grad_norm"].as_f64().unwrap() - 1.0).abs() <= 1e-5, "{norm}");
}

/// The schedules of transformers that exist here too agree to the last bit. The cosines of libm that occur here are
/// the nearest f64, as ours are (one in 600 of all its cosines is not). Transformers starts its warm-up at 0, which
/// wastes a step; our rate at a warm-up step is the rate of their next step. Beyond the end, their cosine rises again
/// and ours stays at the minimum.
#[test]
fn learning_rates_equal_those_of_transformers() {
    let all = json("train/schedules.json");
    let mut checked = 0;
    for theirs in all["schedules"].as_array().unwrap() {
        let rates: Vec<f64> = serde_json::from_value(theirs["lr_at_step"].clone()).unwrap();
        let kwarg = |key: &str| theirs["kwargs"][key].as_f64().unwrap();
        let (decay, initial, min, fall) = match theirs["hf_name"].as_str().unwrap() {
            "linear" => (Decay::Linear, 0.0, 0.0, 0.0),
            "cosine" => (Decay::Cosine, 0.0, 0.0, 0.0),
            "constant_with_warmup" => (Decay::Constant, 0.0, 0.0, 0.0),
            "cosine_with_min_lr" => (Decay::Cosine, 0.0, kwarg("min_lr_rate"), 0.0),
            // its warm-up starts at its minimum
            "warmup_stable_decay" => {
                let min = kwarg("min_lr_ratio");
                (Decay::WsdCosine, min, min, kwarg("num_decay_steps"))
            }
            other => panic!("unknown schedule {other}"),
        };
        let number = |key: &str| theirs[key].as_u64().unwrap();
        let (warmup, steps) = (number("warmup"), number("total"));
        let peak = theirs["base_lr"].as_f64().unwrap();
        let ours = Schedule {
            decay,
            warmup_start_lr: initial,
            lr: peak,
            min_lr: min,
            warmup_steps: warmup,
            steps,
            decay_steps: fall as u64,
        };
        let all = rates.len() as u64;
        for step in 0..if decay == Decay::Cosine { steps + 1 } else { all } {
            let same = if step < warmup { step + 1 } else { step };
            assert_eq!(ours.rate(step), rates[same as usize], "{decay} at {step}");
            checked += 1;
        }
    }
    assert_eq!(checked, 2 * 26 + 3 * 28);
}
