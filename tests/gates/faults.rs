//! Every planted fault makes its gate fail.
use xtrain::tensor::faults::{self, Fault};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, ThreadSchedule};

use crate::{
    focused, gpu, invariance, kept_sets, multi_step, open_for_inference, packing, prefix_cache, resume,
    training,
};

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
}

/// Each fault and the gate that finds it.
const CAUGHT: &[(Fault, Gate)] = &[
    (xtrain::tensor::faults::Fault::DroppedCacheWrite, Gate::Invariance),
    (xtrain::tensor::faults::Fault::PageOffByOne, Gate::Invariance),
    (xtrain::tensor::faults::Fault::PositionOffByOne, Gate::Invariance),
    (
        xtrain::tensor::faults::Fault::PrefixOfOtherTokens,
        Gate::Test(|| prefix_cache::over(0..60).map(|[rows, ..]| rows as usize)),
    ),
    (xtrain::tensor::faults::Fault::SharedRandomState, Gate::Invariance),
    (xtrain::tensor::faults::Fault::ReversedSumForOneRow, Gate::Invariance),
    (xtrain::tensor::faults::Fault::MaskOffByOne, Gate::Invariance),
    (xtrain::tensor::faults::Fault::WindowOffByOne, Gate::Invariance),
    (xtrain::tensor::faults::Fault::ForkNotSeen, Gate::Invariance),
    (xtrain::tensor::faults::Fault::SamplerSharedState, Gate::Invariance),
    (xtrain::tensor::faults::Fault::GreedyLastOfEqualMaxima, Gate::Focused(focused::ties)),
    (xtrain::tensor::faults::Fault::SamplerF32RunningSum, Gate::Focused(focused::ranges)),
    (xtrain::tensor::faults::Fault::MicroBatchTotalAdded, Gate::Splits),
    (xtrain::tensor::faults::Fault::IndexListNotRenewed, Gate::Gpu(focused::lists)),
    (xtrain::tensor::faults::Fault::GraphWithOldArguments, Gate::Gpu(focused::graphs)),
    (xtrain::tensor::faults::Fault::ListsOfTheTurnBefore, Gate::GpuTest(multi_step::over)),
    (xtrain::tensor::faults::Fault::NormAfterASumWithoutEps, Gate::GpuTest(gpu::many_rows)),
    (xtrain::tensor::faults::Fault::SurplusTokenKept, Gate::GpuTest(multi_step::over)),
    (xtrain::tensor::faults::Fault::SharedBufferWritten, Gate::Gpu(focused::sharing)),
    (xtrain::tensor::faults::Fault::RecomputeFromAnotherLayer, Gate::Splits),
    (xtrain::tensor::faults::Fault::FirstPieceComesLast, Gate::Test(open_for_inference::long_tables)),
    (xtrain::tensor::faults::Fault::DenormalOfATableLost, Gate::Test(open_for_inference::denormals)),
    (xtrain::tensor::faults::Fault::OneAccumulatorForATiedTable, Gate::Splits),
    (xtrain::tensor::faults::Fault::DocumentsSeeEachOther, Gate::Packing),
    (
        xtrain::tensor::faults::Fault::WindowJoinsItsDocuments,
        Gate::Test(|| packing::over(4).map_err(|e| e.0)),
    ),
    (xtrain::tensor::faults::Fault::VocabularyChunkStartsAnew, Gate::Focused(focused::vocabulary)),
    (xtrain::tensor::faults::Fault::ResumeForgetsTheOptimizer, Gate::Resume),
    (xtrain::tensor::faults::Fault::ResumeForgetsTheStep, Gate::Resume),
    (xtrain::tensor::faults::Fault::ResumeForgetsTheRandomState, Gate::Resume),
    // The sum of the next product drops the sign of a zero: logits cannot show this fault.
    (xtrain::tensor::faults::Fault::PaddingLosesZeroSign, Gate::Focused(focused::zero)),
    (xtrain::tensor::faults::Fault::CheckpointNameNotSynced, Gate::Focused(focused::power_cuts)),
    (xtrain::tensor::faults::Fault::CheckpointRenameBeforeSync, Gate::Focused(focused::power_cuts)),
    (xtrain::tensor::faults::Fault::LossTopPStopsEarly, Gate::Focused(focused::kept_sets)),
    (xtrain::tensor::faults::Fault::LossMinPIsStrict, Gate::Focused(focused::kept_sets)),
    (xtrain::tensor::faults::Fault::GivenKeptSetIgnored, Gate::Test(|| kept_sets::over(&Device::cpu(), 9))),
    (xtrain::tensor::faults::Fault::LossForgetsMinP, Gate::Test(|| kept_sets::over(&Device::cpu(), 9))),
];

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
            if devices.is_empty() {
                return Ok(format!("gate {fault}, seed {}: NOT RUN, no GPU and no emulator", focused::SEED));
            }
            let missed = devices.iter().find_map(|device| faults::with(fault, || gate(device)).ok());
            match missed {
                Some(n) => Err(format!("{fault} was not found: {n} values are equal")),
                None => Ok(format!("gate {fault}, seed {}, on {} devices", focused::SEED, devices.len())),
            }
        }
        Gate::Focused(gate) | Gate::Test(gate) => match faults::with(fault, gate) {
            Ok(n) => Err(missed(format!("{n} values are equal"))),
            Err(text) => Ok(text),
        },
    }
}

#[test]
fn every_planted_fault_is_found_by_its_gate() {
    for &fault in Fault::ALL {
        let listed = CAUGHT.iter().find(|c| c.0 == fault);
        let what = fault.description();
        let (_, gate) = listed.unwrap_or_else(|| panic!("no gate is listed for the fault {fault} ({what})"));
        let text = found_by(fault, *gate).unwrap_or_else(|e| panic!("{e}"));
        println!("{fault}: {text}");
        assert!(text.contains("gate ") && text.contains("seed "), "{text}");
    }
}

#[test]
fn the_gates_pass_without_a_fault() {
    training::over(2, |run| training::splits(run, 2)).unwrap();
    training::over(2, training::packed).unwrap();
    resume::over(4).unwrap();
    for (fault, gate) in CAUGHT {
        if let Gate::Gpu(gate) = gate {
            gpus(&[ThreadSchedule::Forward]).iter().for_each(|device| {
                gate(device).unwrap_or_else(|e| panic!("without the fault {fault}: {e}"));
            });
        }
        if let Gate::Focused(gate) = gate {
            gate().unwrap_or_else(|e| panic!("without the fault {fault}: {e}"));
        }
    }
}
