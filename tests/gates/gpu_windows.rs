//! Sliding windows on a GPU: rollouts and training steps have the bits of the CPU.
use xtrain::decode::KvKind;
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, ThreadSchedule};
use xtrain::verify::{RequestedSetting, Setting, prompts, requests, verify};

use crate::fixtures::model;
use crate::gpu::{compare, config, run, trainer_of};

/// The windows of two layers in training. The longest example has 70 positions: a window of 69 hides one.
const WINDOWS: [[Option<usize>; 2]; 2] = [[Some(7), None], [Some(69), Some(64)]];

/// Rollouts of the Mistral fixture, whose layers have a window of 7. In f32 they are compared with the training
/// forward pass on the CPU, in bf16 with that of the device.
fn rollouts(device: &Device, compute: Dtype) -> Result<usize, String> {
    let model = model("models/mistral_window", compute, device);
    let requests = requests(&prompts(&model, 2, 2, 9), 9, 2);
    let requested = RequestedSetting { threads: 1, kv: KvKind::Paged { page: 4 }, chunk: Some(9) };
    let verdicts = verify(&model, &requests, &requested, &mut |_| ()).map_err(|e| e.to_string())?;
    match verdicts.iter().find(|v| !v.holds()) {
        None => Ok(verdicts.iter().map(|v| v.values as usize).sum()),
        Some(bad) => {
            let first =
                bad.first.as_ref().map_or("other rows were computed".to_string(), ToString::to_string);
            let Setting { kv, chunk, batch, .. } = &bad.setting;
            Err(format!(
                "mistral_window in {compute}, {kv}, chunk {chunk:?}, batch {batch}, on {device}: {first}"
            ))
        }
    }
}

/// Three training steps with these windows, compared with the CPU.
fn training(device: &Device, windows: [Option<usize>; 2], micro: usize) -> Result<usize, String> {
    let cfg = Config { windows: windows.to_vec(), ..config(false) };
    let of = |device: &Device| Model::init(&cfg, Dtype::F32, device, 5).map(trainer_of);
    let failed = |e: xtrain::model::Error| e.to_string();
    let want = run(&mut of(&Device::cpu()).map_err(failed)?, 3);
    let got = run(&mut of(device).map_err(failed)?, micro);
    compare(&got, &want, &format!("training with windows {windows:?} on {device}"))
}

/// The whole gate. Returns the number of compared values.
pub(crate) fn over(device: &Device) -> Result<usize, String> {
    let failed = |e: String| format!("gate GPU windows, seed 2: {e}");
    let mut compared = training(device, WINDOWS[0], 1).map_err(failed)?;
    compared += training(device, WINDOWS[1], 2).map_err(failed)?;
    compared += rollouts(device, Dtype::F32).map_err(failed)?;
    Ok(compared + rollouts(device, Dtype::BF16).map_err(failed)?)
}

#[test]
fn windows_on_a_gpu_have_the_bits_of_the_cpu() {
    for device in gpus(&[ThreadSchedule::Random(12)]) {
        let n = over(&device).unwrap_or_else(|e| panic!("{e}"));
        println!("windows on {device}: {n} values compared, 0 differ");
        assert!(n > 50_000, "{n}");
    }
}
