//! The bits that two implementations of docs/numerics.md, written apart, agreed on.
use xtrain::model::{AdamW, Eager, Grads, Model, NoCache, OptimConfig, Rows, Sample, objective};
use xtrain::tensor::ops::Target;
use xtrain::tensor::{Device, Dtype, Simd};

use crate::fixtures::{golden, json, model, sha, tensors};

fn ids(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

/// Every instruction set that this machine has.
fn devices() -> impl Iterator<Item = Device> {
    Simd::available().map(|simd| Device::cpu_with(2, simd))
}

fn logits(model: &Model, seq: &[u32]) -> Vec<f32> {
    let rows = Rows::whole(&[seq]);
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&rows).unwrap(), &rows).unwrap();
    model.logits(&hidden).unwrap().data().unwrap().to_vec()
}

/// The prompts of a fixture, the long one followed by its greedy tokens.
fn prompts(dir: &str) -> Vec<(String, Vec<u32>)> {
    let r = json(&format!("{dir}/ref.json"));
    let mut all: Vec<(String, Vec<u32>)> =
        r["prompts"].as_array().unwrap().iter().enumerate().map(|(i, p)| (i.to_string(), ids(p))).collect();
    all.push(("long".into(), [ids(&r["long"]["prompt"]), ids(&r["long"]["greedy"])].concat()));
    all
}

#[test]
fn logits_have_the_golden_bits() {
    for device in devices() {
        let m = model("models/qwen3_tied", Dtype::F32, &device);
        let b = model("models/qwen3_tied", Dtype::BF16, &device);
        for (i, seq) in prompts("models/qwen3_tied") {
            assert_eq!(
                sha(logits(&m, &seq)),
                golden("models.txt", &format!("F/qwen3_tied/{i}")),
                "f32 {device} {i}"
            );
            assert_eq!(sha(logits(&b, &seq)), golden("models.txt", &format!("B/{i}")), "bf16 {device} {i}");
        }
    }
}

/// The samples of step `t`: each row of the batch, its unpadded part.
fn batch(step: usize) -> Vec<Sample> {
    let file = tensors("train/pretrain_qwen3_tied/batches.safetensors");
    let get = |name: &str| -> (usize, Vec<i64>) {
        let (_, shape, bytes) = file.iter().find(|t| t.0 == format!("step{step}.{name}")).unwrap();
        (shape[1], bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect())
    };
    let ((width, ids), (_, labels), (_, mask)) = (get("input_ids"), get("labels"), get("attention_mask"));
    let mut samples = Vec::new();
    for r in 0..ids.len() / width {
        let at = r * width..(r + 1) * width;
        let n = mask[at.clone()].iter().filter(|&&m| m == 1).count();
        let at = at.start..at.start + n;
        let next = |t: usize| labels.get(t + 1).copied().filter(|&l| t + 1 < at.end && l != -100);
        let target = |t| next(t).map(|l| Target { id: l as u32, weight: 0.0, bonus: 0.0 });
        samples.push(Sample {
            inputs: ids[at.clone()].iter().map(|&i| i as u32).collect(),
            targets: at.clone().map(target).collect(),
        });
    }
    let n: usize = samples.iter().map(|s| s.targets.iter().flatten().count()).sum();
    let weight = (1.0 / n as f64) as f32;
    samples.iter_mut().for_each(|s| s.targets.iter_mut().flatten().for_each(|t| t.weight = weight));
    samples
}

/// Trains twenty steps; returns `(loss, norm)` of each and the hash of the final weights.
fn train(device: &Device, compute: Dtype, micro: usize) -> (Vec<(u32, u32)>, String) {
    let r = json("train/pretrain_qwen3_tied/ref.json");
    let hp = |key: &str| r["hp"][key].as_f64().unwrap();
    let cfg = OptimConfig {
        beta1: hp("beta1"),
        beta2: hp("beta2"),
        eps: hp("eps"),
        weight_decay: hp("wd"),
        clip: hp("clip"),
    };
    let mut m = model("train/pretrain_qwen3_tied/init", compute, device);
    let mut opt = AdamW::new(cfg, &m.params).unwrap();
    let mut curve = Vec::new();
    for step in 0..20 {
        let (mut loss, mut grads) = (0f32, Grads::zeros(&m.params).unwrap());
        for part in batch(step).chunks(micro) {
            objective::backward(&m, part, 1.0, (&mut loss, &mut grads)).unwrap();
        }
        let lr = r["lr_per_step"][step].as_f64().unwrap();
        let norm = opt.step(&mut m.params, &grads.finish().unwrap(), lr).unwrap();
        curve.push((loss.to_bits(), norm.to_bits()));
    }
    let weights = m.params.iter().flat_map(|p| p.value().data::<f32>().unwrap().to_vec());
    (curve, sha(weights))
}

#[track_caller]
fn check_training(device: &Device, compute: Dtype, (file, name): (&str, &str)) {
    for (micro, line) in [(usize::MAX, "weights"), (1, "micro")] {
        let (curve, weights) = train(device, compute, micro);
        let what = format!("{compute} {device} {line}");
        for (i, (loss, norm)) in curve.into_iter().enumerate() {
            assert_eq!(
                format!("{loss:08x}"),
                golden(file, &format!("{name}/loss/{i}")),
                "{what}, loss of step {i}"
            );
            assert_eq!(
                format!("{norm:08x}"),
                golden(file, &format!("{name}/norm/{i}")),
                "{what}, norm of step {i}"
            );
        }
        assert_eq!(weights, golden(file, &format!("{name}/{line}")), "{what}");
    }
}

#[test]
fn twenty_steps_of_training_have_the_golden_bits() {
    for device in devices() {
        check_training(&device, Dtype::F32, ("training.txt", "T"));
        check_training(&device, Dtype::BF16, ("training_bf16.txt", "TB"));
    }
}

#[test]
fn logits_are_those_of_transformers_in_f64_within_the_tolerance_that_its_own_f32_asks_for() {
    let (dir, device) = ("models/qwen3_tied", Device::cpu());
    let m = model(dir, Dtype::F32, &device);
    // fifteen times the worst error of transformers' own f32 run: ref.json says so
    let tolerance = json(&format!("{dir}/ref.json"))["tolerance"]["logits_f32_abs"].as_f64().unwrap();
    let answers = tensors(&format!("{dir}/ref.safetensors"));
    let mut compared = 0;
    for (i, seq) in prompts(dir).into_iter().filter(|p| p.0 != "long") {
        let (_, shape, bytes) = answers.iter().find(|t| t.0 == format!("p{i}.logits_f64")).unwrap();
        let want = bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()));
        let got = logits(&m, &seq);
        assert_eq!(got.len(), shape.iter().product::<usize>(), "prompt {i}");
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert!(
                (f64::from(*got) - want).abs() <= tolerance,
                "prompt {i}, logit {at}: {got} against {want}"
            );
            compared += 1;
        }
    }
    assert!(compared >= 50 * 512, "{compared} logits compared");
}

#[test]
fn twenty_steps_of_training_follow_pytorch_in_f64() {
    let (curve, _) = train(&Device::cpu(), Dtype::F32, usize::MAX);
    let r = json("train/pretrain_qwen3_tied/ref.json");
    for (step, (loss, norm)) in curve.into_iter().enumerate() {
        let want = |key: &str| r["f64"][step][key].as_f64().unwrap();
        let (loss, norm) = (f64::from(f32::from_bits(loss)), f64::from(f32::from_bits(norm)));
        // eighteen times the distance of PyTorch's own f32 losses from f64, twenty-eight times that of its norms
        assert!((loss - want("loss")).abs() <= 1e-5, "loss of step {step}: {loss}");
        assert!((norm / want("grad_norm") - 1.0).abs() <= 1e-5, "norm of step {step}: {norm}");
    }
}
