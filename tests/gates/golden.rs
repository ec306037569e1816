//! Golden bits: two independent implementations of docs/numerics.md agreed on them.
use xtrain::model::{
    AdamW, Eager, Grads, KvStore, KvView, LogitsProcessing, Model, NoCache, OptimConfig, Result, Rows,
    TrainingExample, normalize_loss_weights, objective,
};
use xtrain::tensor::ops::Target;
use xtrain::tensor::testing::{assert_bits_eq, gpus, simds, times};
use xtrain::tensor::{Device, Dtype, Tensor, ThreadSchedule};

use crate::fixtures::{f32s, golden, json, lines, model, sha, tensors};

/// Pre-training of a tied qwen3.
pub(crate) const PRETRAIN: &str = "train/pretrain_qwen3_tied";
/// Fine-tuning of an untied llama: padded rows, loss on some tokens only.
pub(crate) const SFT: &str = "train/sft_llama_untied";

fn ids(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

/// The reference, and a device for every instruction set of this machine.
pub(crate) fn devices() -> impl Iterator<Item = Device> {
    [Device::reference()].into_iter().chain(simds().into_iter().map(|simd| Device::cpu_with(2, simd)))
}

pub(crate) fn logits(model: &Model, seq: &[u32]) -> Vec<f32> {
    logits_of(model, &Rows::whole(&[seq]))
}

/// The logits of all rows, in one pass without a cache.
pub(crate) fn logits_of(model: &Model, rows: &Rows) -> Vec<f32> {
    let hidden = model.forward(&mut Eager, &mut NoCache::new(rows).unwrap(), rows).unwrap();
    model.logits(&hidden).unwrap().to_vec().unwrap()
}

/// The prompts of a fixture. The long prompt includes its greedy tokens.
pub(crate) fn prompts(dir: &str) -> Vec<(String, Vec<u32>)> {
    let r = json(&format!("{dir}/ref.json"));
    let mut all: Vec<(String, Vec<u32>)> =
        r["prompts"].as_array().unwrap().iter().enumerate().map(|(i, p)| (i.to_string(), ids(p))).collect();
    all.push(("long".into(), [ids(&r["long"]["prompt"]), ids(&r["long"]["greedy"])].concat()));
    all
}

/// The prompt with this name.
pub(crate) fn prompt(dir: &str, name: &str) -> Vec<u32> {
    prompts(dir).into_iter().find(|p| p.0 == name).unwrap_or_else(|| panic!("{dir} has no prompt {name}")).1
}

/// The KV cache after a prompt: for each layer the rotated keys, then the values, head by head.
pub(crate) fn cache(model: &Model, seq: &[u32]) -> Vec<f32> {
    struct Watched<'a>(NoCache<Tensor>, &'a mut Vec<Tensor>);
    impl KvStore<Eager> for Watched<'_> {
        fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
            self.1.extend([k.clone(), v.clone()]);
            KvStore::<Eager>::extend(&mut self.0, layer, k, v, rows)
        }
    }
    let (rows, mut seen) = (Rows::whole(&[seq]), Vec::new());
    let mut store = Watched(NoCache::new(&rows).unwrap(), &mut seen);
    let _ = model.forward(&mut Eager, &mut store, &rows).unwrap();
    let head = |t: &Tensor, h: usize| -> Vec<f32> {
        let (heads, hd) = (t.shape()[1], t.shape()[2]);
        let values = t.read::<f32>().unwrap();
        let row = |n: usize| values[(n * heads + h) * hd..][..hd].to_vec();
        (0..t.shape()[0]).flat_map(row).collect()
    };
    seen.iter().flat_map(|t| (0..t.shape()[1]).flat_map(|h| head(t, h)).collect::<Vec<_>>()).collect()
}

#[test]
fn every_golden_line_of_models_is_reproduced() {
    let lines = lines("models.txt");
    for device in devices() {
        for (name, want) in &lines {
            let got = match name.split('/').collect::<Vec<_>>()[..] {
                ["F", m, i] => {
                    let m = format!("models/{m}");
                    sha(logits(&model(&m, Dtype::F32, &device), &prompt(&m, i)))
                }
                ["B", i] => {
                    let m = "models/qwen3_tied";
                    sha(logits(&model(m, Dtype::BF16, &device), &prompt(m, i)))
                }
                ["K", m] => {
                    let m = format!("models/{m}");
                    sha(cache(&model(&m, Dtype::F32, &device), &prompt(&m, "2")))
                }
                _ => panic!("unknown golden line {name}"),
            };
            assert_eq!(got, *want, "{name} on {device}");
        }
    }
    assert_eq!(lines.len(), 41);
}

/// The longer suite checks every f32 line. The test command checks the caches, one prompt of each model, and three of
/// the twenty steps.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_gpu_has_the_golden_bits_in_f32() {
    gpus(&[ThreadSchedule::Random(5)]).iter().for_each(golden_on);
}

fn golden_on(device: &Device) {
    let (mut checked, usual) = (0, times(1, 100) == 1);
    for (name, want) in lines("models.txt") {
        let got = match name.split('/').collect::<Vec<_>>()[..] {
            ["F", m, i] if i == "0" || !usual => {
                let m = format!("models/{m}");
                sha(logits(&model(&m, Dtype::F32, device), &prompt(&m, i)))
            }
            ["K", m] => {
                let m = format!("models/{m}");
                sha(cache(&model(&m, Dtype::F32, device), &prompt(&m, "2")))
            }
            _ => continue,
        };
        assert_eq!(got, want, "{name} on {device}");
        checked += 1;
    }
    let steps = times(3, 20) as usize;
    for (case, line) in [(PRETRAIN, "T"), (SFT, "Tsft")] {
        let (curve, _) = train(case, device, Dtype::F32, steps, 2);
        for (i, (loss, norm)) in curve.into_iter().enumerate() {
            let want = |what: &str| golden("training.txt", &format!("{line}/{what}/{i}"));
            let got = [loss, norm].map(|bits| format!("{bits:08x}"));
            assert_eq!(got, [want("loss"), want("norm")], "{line} on {device}, step {i}");
            checked += 2;
        }
    }
    println!("golden on {device}: {checked} lines, 0 differ");
    assert!(checked >= 20, "{checked} lines checked");
}

#[test]
fn every_tensor_of_the_golden_file_is_reproduced() {
    let device = Device::cpu();
    let (dir, mut checked) = ("models/qwen3_tied", 0);
    for (name, _, bytes) in tensors("golden_bits/qwen3_tied.safetensors") {
        let want = f32s(&bytes);
        let got = match name.split('.').collect::<Vec<_>>()[..] {
            [p, "logits"] => logits(&model(dir, Dtype::F32, &device), &prompt(dir, &p[1..])),
            [p, "logits_bf16_cpu"] => logits(&model(dir, Dtype::BF16, &device), &prompt(dir, &p[1..])),
            [p, "kv"] => cache(&model(dir, Dtype::F32, &device), &prompt(dir, &p[1..])),
            ["train", "grads_step0"] => {
                let m = model(&format!("{PRETRAIN}/init"), Dtype::F32, &device);
                let (mut loss, mut grads) = (0f32, Grads::zeros(&m.params).unwrap());
                let processing = LogitsProcessing::default();
                objective::backward(&m, &batch(PRETRAIN, 0), processing, &mut loss, &mut grads).unwrap();
                let all = grads.finish().unwrap();
                all.iter().flat_map(|g| g.data::<f32>().unwrap().to_vec()).collect()
            }
            ["train", "weights_after_1"] => train(PRETRAIN, &device, Dtype::F32, 1, usize::MAX).1,
            ["train", "weights_after_20"] => train(PRETRAIN, &device, Dtype::F32, 20, usize::MAX).1,
            _ => panic!("unknown golden tensor {name}"),
        };
        assert_bits_eq(&got, &want, &name);
        checked += 1;
    }
    assert_eq!(checked, 14);
}

/// The training examples of a step.
pub(crate) fn batch(case: &str, step: usize) -> Vec<TrainingExample> {
    let mut samples = rows(case, &format!("step{step}"));
    normalize_loss_weights(&mut samples);
    samples
}

/// The unpadded rows of a named batch.
pub(crate) fn rows(case: &str, batch: &str) -> Vec<TrainingExample> {
    let file = tensors(&format!("{case}/batches.safetensors"));
    let get = |name: &str| -> (usize, Vec<i64>) {
        let (_, shape, bytes) = file.iter().find(|t| t.0 == format!("{batch}.{name}")).unwrap();
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
        samples.push(TrainingExample {
            inputs: ids[at.clone()].iter().map(|&i| i as u32).collect(),
            targets: at.clone().map(target).collect(),
            ..TrainingExample::default()
        });
    }
    samples
}

/// The fixture's hyper-parameters.
pub(crate) fn hyper_parameters() -> OptimConfig {
    let r = json(&format!("{PRETRAIN}/ref.json"));
    let hp = |key: &str| r["hp"][key].as_f64().unwrap();
    OptimConfig {
        beta1: hp("beta1"),
        beta2: hp("beta2"),
        eps: hp("eps"),
        weight_decay: hp("wd"),
        clip: hp("clip"),
    }
}

/// All weights, in the order of the parameters.
pub(crate) fn weights(model: &Model) -> Vec<f32> {
    model.params.iter().flat_map(|p| p.value().unwrap().to_vec::<f32>().unwrap()).collect()
}

/// Trains `steps` steps in micro-batches of `micro` examples. Returns `(loss, norm)` of each step and the final
/// weights.
pub(crate) fn train(
    case: &str,
    device: &Device,
    compute: Dtype,
    steps: usize,
    micro: usize,
) -> (Vec<(u32, u32)>, Vec<f32>) {
    let r = json(&format!("{case}/ref.json"));
    let mut m = model(&format!("{case}/init"), compute, device);
    let mut opt = AdamW::new(hyper_parameters(), &m.params).unwrap();
    let mut curve = Vec::new();
    for step in 0..steps {
        let (mut loss, mut grads) = (0f32, Grads::zeros(&m.params).unwrap());
        for part in batch(case, step).chunks(micro) {
            objective::backward(&m, part, LogitsProcessing::default(), &mut loss, &mut grads).unwrap();
        }
        let lr = r["lr_per_step"][step].as_f64().unwrap();
        let norm = opt.step(&mut m.params, &grads.finish().unwrap(), lr).unwrap().norm;
        curve.push((loss.to_bits(), norm.to_bits()));
    }
    (curve, weights(&m))
}

#[track_caller]
fn check_training(case: &str, device: &Device, compute: Dtype, file: &str, name: &str) {
    // losses, norms, weights, and weights with micro-batches: no line of the file is left unchecked
    let expected = lines(file).iter().filter(|line| line.0.starts_with(&format!("{name}/"))).count();
    assert_eq!(expected, 42);
    for (micro, line) in [(usize::MAX, "weights"), (1, "micro")] {
        let (curve, weights) = train(case, device, compute, 20, micro);
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
        assert_eq!(sha(weights), golden(file, &format!("{name}/{line}")), "{what}");
    }
}

#[test]
fn twenty_steps_of_training_have_the_golden_bits() {
    for device in devices() {
        check_training(PRETRAIN, &device, Dtype::F32, "training.txt", "T");
        check_training(SFT, &device, Dtype::F32, "training.txt", "Tsft");
        check_training(PRETRAIN, &device, Dtype::BF16, "training_bf16.txt", "TB");
    }
}
