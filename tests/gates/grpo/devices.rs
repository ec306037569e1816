//! The files of a run are the same on every instruction set and, in f32, on a GPU.
use std::sync::Arc;

use xtrain::config::{RunConfig, TrainSection};
use xtrain::grpo::Error;
use xtrain::model::comm::Communicator;
use xtrain::run::RunDir;
#[cfg(feature = "faults")]
use xtrain::tensor::testing::available_gpus;
use xtrain::tensor::testing::{checked_simds, gpus};
use xtrain::tensor::{Device, Simd, ThreadSchedule};

use super::{Compared, Files, Scratch, Setup, assert_equal, compare, config, files, run, run_as};
use crate::shards::on_each;

/// The files of a run, or the error that stopped it.
pub(crate) fn files_on(name: &str, config: &RunConfig, device: &Device) -> Result<Files, Error> {
    let dir = Scratch::new(name);
    run(config, &Setup::on(device.clone()), &dir.0)?;
    Ok(files(&dir.0))
}

/// Compares the files of a run on every instruction set with those of portable code. Returns the number of compared
/// bytes.
fn any_instruction_set(dtype: &str) -> Result<usize, String> {
    let keys =
        [&format!("train.dtype={dtype}"), "grpo.beta=0.05", "grpo.top_p=0.9", "grpo.entropy_coef=0.01"];
    let (config, mut compared) = (config(&keys), 0);
    let on = |simd: Simd| {
        let files = files_on(&format!("simd-{dtype}-{simd}"), &config, &Device::cpu_with(2, simd));
        files.map_err(|e| format!("gate grpo, seed 0: {simd}, {dtype}: {e}"))
    };
    let want = on(Simd::Portable)?;
    for simd in checked_simds()?.into_iter().filter(|simd| *simd != Simd::Portable) {
        compared += compare(&format!("{simd}, {dtype}"), &want, &on(simd)?)?;
        println!("{dtype}: the files of {simd} are those of portable code");
    }
    Ok(compared)
}

/// [`any_instruction_set`] in f32, for the faults of one instruction set.
#[cfg(feature = "faults")]
pub(crate) fn in_f32() -> Result<usize, String> {
    any_instruction_set("f32")
}

#[test]
fn the_files_of_a_run_do_not_depend_on_the_instruction_set() {
    for dtype in ["f32", "bf16"] {
        any_instruction_set(dtype).unwrap_or_else(|difference| panic!("{difference}"));
    }
}

/// A run of two steps that the emulator finishes in seconds.
pub(crate) fn two_steps() -> RunConfig {
    config(&[
        "model.n_layers=1",
        "model.dim=32",
        "model.head_dim=16",
        "grpo.steps=2",
        "grpo.prompts_per_step=2",
        "grpo.num_generations=3",
        "grpo.max_completion_length=5",
        "grpo.beta=0.05",
        "grpo.eval_every=0",
    ])
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn two_steps_on_a_gpu_have_the_files_of_the_cpu() {
    let (config, devices) = (two_steps(), gpus(&[ThreadSchedule::Forward]));
    let want = files_on("gpu-cpu", &config, &Device::cpu()).unwrap();
    for device in &devices {
        let what = device.to_string();
        assert_equal(&what, &want, &files_on(&format!("gpu-{what}"), &config, device).unwrap());
        println!("two steps of GRPO: the files of {what} are those of the CPU");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn two_steps_on_two_gpus_have_the_files_of_one_cpu() {
    let config = RunConfig { train: TrainSection { shards: 2, ..two_steps().train }, ..two_steps() };
    let want = files_on("gpus-cpu", &config, &Device::cpu()).unwrap();
    let pairs = gpus(&[ThreadSchedule::Forward]).into_iter().zip(gpus(&[ThreadSchedule::Forward]));
    for devices in pairs.map(|(first, second)| [first, second]) {
        let dir = Scratch::new("gpus-two");
        let run = RunDir::create(&dir.0, &config.to_toml()).unwrap();
        let ends = on_each(2, |process| {
            let setup = Setup::on(devices[process.rank()].clone());
            run_as(&config, &setup, &run, (None, Compared::default()), Arc::new(process))
        });
        for end in ends {
            let _ = end.unwrap();
        }
        let what = format!("two of {}", devices[0]);
        assert_equal(&what, &want, &files(&dir.0));
        println!("two steps of GRPO: the files of {what} are those of one CPU");
    }
}

/// Each comparison fails with a fault of its device.
#[cfg(feature = "faults")]
#[test]
fn a_fault_of_a_device_changes_the_files() {
    use xtrain::tensor::faults::{self, Fault};

    let config = two_steps();
    let want = files_on("fault-none", &config, &Device::cpu()).unwrap();
    let devices = available_gpus(&[ThreadSchedule::Forward]);
    let faulty = devices.iter().map(|device| (Fault::GpuNormWithoutEps, device));
    for (fault, device) in faulty.chain([(Fault::RngIgnoresSequenceId, &Device::cpu())]) {
        let found = faults::with(fault, || files_on(&format!("fault-{fault}"), &config, device));
        let difference = match found {
            Ok(found) => compare("with a fault", &want, &found).expect_err("a fault that was not found"),
            Err(error) => error.to_string(),
        };
        println!("{fault} on {device}: {difference}");
    }
}
