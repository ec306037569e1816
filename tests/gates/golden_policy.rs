//! The golden lines of windows, of packed documents and of policy gradients.
use xtrain::model::{
    AdamW, Config, Grads, LogitsProcessing, Model, Rows, TrainingExample, normalize_loss_weights, objective,
};
use xtrain::tensor::ops::{LogProb, Target};
use xtrain::tensor::testing::{gpus, times};
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::fixtures::{lines, model, sha};
use crate::golden::{devices, hyper_parameters, logits_of, prompt, weights};

const MODEL: &str = "models/qwen3_tied";

/// Logits of a prompt with a sliding window of seven positions in every layer.
fn windowed(device: &Device, compute: Dtype, i: &str) -> String {
    let m = model(MODEL, compute, device);
    let windows = vec![Some(7); m.config().n_layers];
    let windowed = Model::new(Config { windows, ..m.config().clone() }, m.params).unwrap();
    sha(logits_of(&windowed, &Rows::whole(&[prompt(MODEL, i)])))
}

/// Prompts 2, 3 and 4.
fn documents() -> Vec<Vec<u32>> {
    ["2", "3", "4"].map(|i| prompt(MODEL, i)).into()
}

/// Documents in one training example. Each token except the last of a document predicts its successor.
fn packed(documents: &[Vec<u32>]) -> TrainingExample {
    let mut sample = TrainingExample::default();
    for ids in documents {
        if !sample.inputs.is_empty() {
            sample.starts.push(sample.inputs.len());
        }
        sample.inputs.extend(ids);
        sample.targets.extend(ids[1..].iter().map(|&id| Some(Target { id, weight: 0.0, bonus: 0.0 })));
        sample.targets.push(None);
    }
    sample
}

/// Loss, gradients in the order of the parameters, and the values of the rows with a target.
struct Outcome {
    loss: f32,
    grads: Grads,
    values: Vec<LogProb>,
}

fn outcome(m: &Model, samples: &[TrainingExample], how: LogitsProcessing) -> Outcome {
    let (mut loss, mut grads) = (0f32, Grads::zeros(&m.params).unwrap());
    let values = objective::backward(m, samples, how, &mut loss, &mut grads).unwrap();
    Outcome { loss, grads, values: values.into_iter().flatten().collect() }
}

fn sha_of(grads: Grads) -> String {
    sha(grads.finish().unwrap().iter().flat_map(|g| g.to_vec::<f32>().unwrap()))
}

/// The gradients of the mean cross-entropy of the documents, `together` documents per example.
fn packing(device: &Device, together: usize) -> String {
    let m = model(MODEL, Dtype::F32, device);
    let mut samples: Vec<TrainingExample> = documents().chunks(together).map(packed).collect();
    assert_eq!(normalize_loss_weights(&mut samples), 53);
    sha_of(outcome(&m, &samples, LogitsProcessing::default()).grads)
}

/// The policy loss on prompt 4. Target j has the advantage (j mod 3) - 0.75.
fn policy(m: &Model, top_k: Option<usize>) -> Outcome {
    let mut sample = packed(&[prompt(MODEL, "4")]);
    for (j, target) in sample.targets.iter_mut().flatten().enumerate() {
        let advantage = (j % 3) as f32 - 1.0 + 0.25;
        (target.weight, target.bonus) = (advantage / 29.0, (0.01 / 29.0) as f32);
    }
    let outcome =
        outcome(m, &[sample], LogitsProcessing { temperature: 0.8, top_k, ..LogitsProcessing::default() });
    assert_eq!(outcome.values.len(), 29);
    outcome
}

/// The value of a golden line, computed.
fn answer(name: &str, device: &Device) -> String {
    let of_policy = |line: &str, compute, top_k| {
        let Outcome { loss, grads, values } = policy(&model(MODEL, compute, device), top_k);
        match line {
            "loss" => format!("{:08x}", loss.to_bits()),
            "entropy" => sha(values.iter().map(|v| v.entropy)),
            "grads" => sha_of(grads),
            _ => panic!("unknown golden line {name}"),
        }
    };
    match name.split_once('/').unwrap() {
        ("W", i) => windowed(device, Dtype::F32, i),
        ("WB", i) => windowed(device, Dtype::BF16, i),
        ("P", "logits") => sha(logits_of(&model(MODEL, Dtype::F32, device), &Rows::whole(&documents()))),
        ("P", "grads") => packing(device, 3),
        ("P", "grads3") => packing(device, 1),
        ("R", line) => of_policy(line, Dtype::F32, None),
        ("RB", line) => of_policy(line, Dtype::BF16, None),
        ("R3", line) => of_policy(line, Dtype::F32, Some(20)),
        ("O", "weights") => {
            let mut m = model(MODEL, Dtype::F32, device);
            let grads = policy(&m, None).grads.finish().unwrap();
            let _ = AdamW::new(hyper_parameters(), &m.params)
                .unwrap()
                .step(&mut m.params, &grads, 0.003)
                .unwrap();
            sha(weights(&m))
        }
        _ => panic!("unknown golden line {name}"),
    }
}

/// The golden lines that a device does not reproduce.
fn differing(device: &Device) -> Vec<String> {
    let all = lines("windows_packing_policy.txt");
    assert_eq!(all.len(), 19);
    all.into_iter().filter(|(name, want)| answer(name, device) != *want).map(|(name, _)| name).collect()
}

#[test]
fn every_golden_line_of_windows_packing_and_policy_is_reproduced() {
    for device in devices() {
        assert_eq!(differing(&device), [""; 0], "on {device}");
    }
}

/// The f32 lines. In bf16, a GPU has the bits of its tensor cores.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_gpu_has_the_golden_lines_of_windows_packing_and_policy_in_f32() {
    // one window, and the packed documents; all lines in the longer suite
    let usual = ["W/3", "P/logits", "P/grads", "R/loss"];
    for device in gpus(&[ThreadSchedule::Random(6)]) {
        let mut checked = 0;
        for (name, want) in lines("windows_packing_policy.txt") {
            let bf16 = name.starts_with("WB/") || name.starts_with("RB/");
            if !bf16 && (times(0, 1) == 1 || usual.contains(&&*name)) {
                assert_eq!(answer(&name, &device), want, "{name} on {device}");
                checked += 1;
            }
        }
        println!("golden windows, packing and policy on {device}: {checked} lines, 0 differ");
        assert_eq!(checked as u64, times(usual.len() as u64, 13), "on {device}");
    }
}

#[cfg(feature = "faults")]
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_fault_of_a_kernel_changes_the_golden_lines() {
    use xtrain::tensor::faults::{Fault, with};
    let device = xtrain::tensor::testing::emulated(ThreadSchedule::Forward);
    for (name, fault) in [("W/3", Fault::NextKeyAttended), ("P/grads", Fault::LastLaneNotSummed)] {
        let want = lines("windows_packing_policy.txt").into_iter().find(|line| line.0 == name).unwrap().1;
        assert_ne!(with(fault, || answer(name, &device)), want, "{name} with the fault {fault}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn faults_of_windows_and_of_packing_change_their_golden_lines() {
    use xtrain::tensor::faults::{Fault, with};
    let device = Device::cpu();
    let seen = with(Fault::WindowOffByOne, || differing(&device));
    assert_eq!(seen, ["W/3", "W/4", "W/long", "WB/3", "WB/4", "WB/long"]);
    assert_eq!(with(Fault::CrossDocumentAttention, || differing(&device)), ["P/grads"]);
}
