//! Every planted fault makes its gate fail.
mod caught;
mod elsewhere;

use xtrain::tensor::faults::{self, Fault};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, ThreadSchedule};

use self::caught::{CAUGHT, ON_LINUX};
use self::elsewhere::CAUGHT_ELSEWHERE;
use crate::{focused, invariance, resume, training};

/// Number of cases within which the invariance gate must find a fault.
const WITHIN: u64 = 150;

/// The gate that finds a fault.
#[derive(Debug, Clone, Copy)]
enum Gate {
    /// The random invariance gate.
    Invariance,
    /// The gate for micro-batches.
    Splits,
    /// The gate for resumed runs.
    Resume,
    /// The gate for packed documents.
    Packing,
    /// A small gate. `the_gates_pass_without_a_fault` runs it without its fault.
    Focused(fn() -> focused::Checked),
    /// A small gate that needs a GPU or the emulator.
    Gpu(fn(&Device) -> focused::Checked),
    /// A gate that another test runs without the fault.
    Test(fn() -> focused::Checked),
    /// A gate that needs a GPU or the emulator and that another test runs without the fault.
    GpuTest(fn(&Device) -> focused::Checked),
    /// A test of commands, and a part of the message with which it fails. The program that it starts has the fault.
    Command(fn(), &'static str),
}

/// Runs a test that panics if it fails.
fn failure(test: fn(), part: &str) -> Result<usize, String> {
    let Some(text) = xtrain::tensor::testing::failure(test) else { return Ok(1) };
    assert!(text.contains(part), "the test failed for another reason than {part:?}: {text}");
    Err(format!("gate of commands, seed 0: {text}"))
}

/// Runs a gate with its fault; returns the difference that the gate reports.
fn found_by(fault: Fault, gate: Gate) -> Result<String, String> {
    let missed = |n: String| format!("{fault} was not found: {n}");
    let training = |found: Result<usize, training::Difference>| match found {
        Ok(n) => Err(missed(format!("{n} values are equal"))),
        Err(training::Difference(text)) => Ok(text),
    };
    match gate {
        Gate::Invariance => match invariance::under(fault, WITHIN) {
            Ok(counts) => Err(missed(counts.to_string())),
            Err(difference) => Ok(difference.to_string()),
        },
        Gate::Splits => training(faults::with(fault, || training::over(12, |run| training::splits(run, 2)))),
        Gate::Resume => training(faults::with(fault, || resume::over(4))),
        Gate::Packing => training(faults::with(fault, || training::over(2, training::packed))),
        Gate::Gpu(gate) | Gate::GpuTest(gate) => {
            let devices = gpus(&[ThreadSchedule::Forward]);
            let mut found = Vec::new();
            for device in &devices {
                match faults::with(fault, || gate(device)) {
                    Ok(n) => return Err(missed(format!("{n} values are equal on {device}"))),
                    Err(difference) => found.push(difference),
                }
            }
            Ok(format!(
                "gate {fault}, seed {}, on {} devices: {}",
                focused::SEED,
                devices.len(),
                found.join("; ")
            ))
        }
        Gate::Command(test, part) => match faults::with(fault, || failure(test, part)) {
            Ok(_) => Err(missed("its test passes".into())),
            Err(text) => Ok(text),
        },
        Gate::Focused(gate) | Gate::Test(gate) => match faults::with(fault, gate) {
            Ok(n) => Err(missed(format!("{n} values are equal"))),
            Err(text) => Ok(text),
        },
    }
}

/// Checks every listed fault whose gate needs a GPU, or every other one.
fn find_all(on_gpu: bool) {
    for &(fault, gate) in CAUGHT {
        if matches!(gate, Gate::Gpu(_) | Gate::GpuTest(_)) == on_gpu {
            let text = found_by(fault, gate).unwrap_or_else(|e| panic!("{e}"));
            println!("{fault}: {text}");
            assert!(text.contains("gate ") && text.contains("seed "), "{text}");
        }
    }
}

#[test]
fn every_planted_fault_is_listed() {
    // the faults of kernels are found by the gates of xtrain-tensor (gates/planted.rs)
    for &fault in Fault::ALL.iter().filter(|fault| !Fault::IN_KERNELS.contains(fault)) {
        if CAUGHT_ELSEWHERE.contains(&fault) {
            continue;
        }
        if cfg!(not(target_os = "linux")) && ON_LINUX.contains(&fault) {
            println!("{fault}: NOT RUN, its gate needs Linux");
            continue;
        }
        let what = fault.description();
        assert!(CAUGHT.iter().any(|c| c.0 == fault), "no gate is listed for the fault {fault} ({what})");
    }
}

#[test]
fn every_planted_fault_is_found_by_its_gate() {
    find_all(false);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn every_planted_fault_of_a_gpu_is_found_by_its_gate() {
    find_all(true);
}

#[test]
fn the_gates_pass_without_a_fault() {
    training::over(2, |run| training::splits(run, 2)).unwrap();
    training::over(2, training::packed).unwrap();
    resume::over(4).unwrap();
    for (fault, gate) in CAUGHT {
        if let Gate::Focused(gate) = gate {
            gate().unwrap_or_else(|e| panic!("without the fault {fault}: {e}"));
        }
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_gates_of_a_gpu_pass_without_a_fault() {
    for (fault, gate) in CAUGHT {
        if let Gate::Gpu(gate) = gate {
            gpus(&[ThreadSchedule::Forward]).iter().for_each(|device| {
                gate(device).unwrap_or_else(|e| panic!("without the fault {fault}: {e}"));
            });
        }
    }
}
