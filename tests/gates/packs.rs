//! Each matrix is packed once per direction and optimizer update.
use xtrain::decode::{EngineOptions, Request, generate};
use xtrain::model::{ActivationCheckpointing, Config, Model};
use xtrain::tensor::{Device, Dtype, Simd};

use crate::gpu::{config, samples, trainer_of};

/// Three updates, with rollouts before each and several micro-batches. Counts the packed matrices. Returns the number
/// of compared counts.
pub(crate) fn over() -> Result<usize, String> {
    let mut compared = 0;
    for (dtype, tied) in [(Dtype::F32, true), (Dtype::F32, false), (Dtype::BF16, true), (Dtype::BF16, false)]
    {
        for checkpointing in [ActivationCheckpointing::Off, ActivationCheckpointing::PerLayer] {
            for rollouts in [0, 2] {
                let what = format!("{dtype}, tied {tied}, {checkpointing:?}, {rollouts} rollouts");
                compared += updates(&config(tied), dtype, checkpointing, rollouts)
                    .map_err(|e| format!("gate packs, seed 5: {what}: {e}"))?;
            }
        }
    }
    Ok(compared)
}

/// The counts of three updates of one model.
fn updates(
    cfg: &Config,
    dtype: Dtype,
    checkpointing: ActivationCheckpointing,
    rollouts: usize,
) -> Result<usize, String> {
    let device = Device::cpu_with(2, Simd::detect());
    let model = Model::init(cfg, dtype, &device, 5).map_err(|e| e.to_string())?;
    // q, k, v, o, gate, up and down of each layer, and the head
    let matrices = 7 * cfg.n_layers as u64 + 1;
    let mut trainer = trainer_of(model);
    trainer.checkpointing = checkpointing;
    let packed = || device.packed_matrices().expect("a CPU");
    for step in 0..3 {
        let before = packed();
        for seed in 0..rollouts {
            let requests =
                (0..3).map(|id| Request { id, ..Request::sampled(&[1, 2, 3], 4, 1.0, seed as u64) });
            generate(&trainer.model, requests.collect(), EngineOptions::default())
                .map_err(|e| e.to_string())?;
        }
        let (forward, want) = (packed() - before, if rollouts > 0 { matrices } else { 0 });
        if forward != want {
            return Err(format!("update {step}: {forward} matrices packed by rollouts, expected {want}"));
        }
        trainer.step(samples(step), 1).map_err(|e| e.to_string())?;
        let all = packed() - before;
        if all != 2 * matrices {
            return Err(format!("update {step}: {all} matrices packed, expected {}", 2 * matrices));
        }
    }
    Ok(6)
}

#[test]
fn each_matrix_is_packed_once_per_direction_and_update() {
    let compared = over().unwrap_or_else(|e| panic!("{e}"));
    println!("packs: {compared} counts compared");
}
