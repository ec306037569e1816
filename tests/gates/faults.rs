//! Every planted fault has a gate that was seen red.
use xtrain::tensor::faults::{self, Fault};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Schedule};

use crate::{ahead, gpu, invariance, opened, own, packing, prefixes, resume, training};

/// Cases within which the gate of invariance must see a fault.
const WITHIN: u64 = 150;

/// Who sees a fault.
#[derive(Debug, Clone, Copy)]
enum Gate {
    /// The random gate of invariance.
    Invariance,
    /// The gate of micro-batches.
    Splits,
    /// The gate of resumed runs.
    Resume,
    /// The gate of packed documents.
    Packing,
    /// A small gate, which is run without its fault below.
    Own(fn() -> own::Seen),
    /// The same on a GPU, where there is one or an emulator.
    Gpu(fn(&Device) -> own::Seen),
    /// What is a test elsewhere.
    Test(fn() -> own::Seen),
    /// The same on a GPU.
    GpuTest(fn(&Device) -> own::Seen),
}

/// Each fault and the gate that catches it.
const CAUGHT: &[(Fault, Gate)] = &[
    (xtrain::tensor::faults::Fault::DroppedCacheWrite, Gate::Invariance),
    (xtrain::tensor::faults::Fault::PageOffByOne, Gate::Invariance),
    (xtrain::tensor::faults::Fault::PositionOffByOne, Gate::Invariance),
    (
        xtrain::tensor::faults::Fault::PrefixOfOtherTokens,
        Gate::Test(|| prefixes::over(0..60).map(|[rows, ..]| rows as usize)),
    ),
    (xtrain::tensor::faults::Fault::SharedRandomState, Gate::Invariance),
    (xtrain::tensor::faults::Fault::ReversedSumForOneRow, Gate::Invariance),
    (xtrain::tensor::faults::Fault::MaskOffByOne, Gate::Invariance),
    (xtrain::tensor::faults::Fault::WindowOffByOne, Gate::Invariance),
    (xtrain::tensor::faults::Fault::ForkNotSeen, Gate::Invariance),
    (xtrain::tensor::faults::Fault::SamplerSharedState, Gate::Invariance),
    (xtrain::tensor::faults::Fault::GreedyLastOfEqualMaxima, Gate::Own(own::ties)),
    (xtrain::tensor::faults::Fault::SamplerF32RunningSum, Gate::Own(own::ranges)),
    (xtrain::tensor::faults::Fault::MicroBatchTotalAdded, Gate::Splits),
    (xtrain::tensor::faults::Fault::IndexListNotRenewed, Gate::Gpu(own::lists)),
    (xtrain::tensor::faults::Fault::GraphWithOldArguments, Gate::Gpu(own::graphs)),
    (xtrain::tensor::faults::Fault::ListsOfTheTurnBefore, Gate::GpuTest(ahead::over)),
    (xtrain::tensor::faults::Fault::NormAfterASumWithoutEps, Gate::GpuTest(gpu::many_rows)),
    (xtrain::tensor::faults::Fault::SurplusTokenKept, Gate::GpuTest(ahead::over)),
    (xtrain::tensor::faults::Fault::SharedBufferWritten, Gate::Gpu(own::sharing)),
    (xtrain::tensor::faults::Fault::RecomputeFromAnotherLayer, Gate::Splits),
    (xtrain::tensor::faults::Fault::FirstPieceComesLast, Gate::Test(opened::long)),
    (xtrain::tensor::faults::Fault::DenormalOfATableLost, Gate::Test(opened::tiny)),
    (xtrain::tensor::faults::Fault::OneAccumulatorForATiedTable, Gate::Splits),
    (xtrain::tensor::faults::Fault::DocumentsSeeEachOther, Gate::Packing),
    (
        xtrain::tensor::faults::Fault::WindowJoinsItsDocuments,
        Gate::Test(|| packing::over(4).map_err(|e| e.0)),
    ),
    (xtrain::tensor::faults::Fault::VocabularyChunkStartsAnew, Gate::Own(own::vocabulary)),
    (xtrain::tensor::faults::Fault::ResumeForgetsTheOptimizer, Gate::Resume),
    (xtrain::tensor::faults::Fault::ResumeForgetsTheStep, Gate::Resume),
    (xtrain::tensor::faults::Fault::ResumeForgetsTheRandomState, Gate::Resume),
    // The sign of a zero is lost in the sum of the next product: logits cannot show it.
    (xtrain::tensor::faults::Fault::PaddingLosesZeroSign, Gate::Own(own::zero)),
    (xtrain::tensor::faults::Fault::CheckpointNameNotSynced, Gate::Own(own::power_cuts)),
    (xtrain::tensor::faults::Fault::CheckpointRenameBeforeSync, Gate::Own(own::power_cuts)),
];

/// What the gate says of the fault.
fn seen(fault: Fault, gate: Gate) -> Result<String, String> {
    let missed = |n: String| format!("{fault} was not seen: {n}");
    let training = |found: Result<usize, training::Difference>| match found {
        Ok(n) => Err(missed(format!("{n} values are the same"))),
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
            let devices = gpus(&[Schedule::Forward]);
            if devices.is_empty() {
                return Ok(format!(
                    "gate {fault}, seed {}: NOT RUN, there is no GPU to run it on",
                    own::SEED
                ));
            }
            let missed = devices.iter().find_map(|device| faults::with(fault, || gate(device)).ok());
            match missed {
                Some(n) => Err(format!("{fault} was not seen: {n} values are right")),
                None => Ok(format!("gate {fault}, seed {}, on {} devices", own::SEED, devices.len())),
            }
        }
        Gate::Own(gate) | Gate::Test(gate) => match faults::with(fault, gate) {
            Ok(n) => Err(missed(format!("{n} values are right"))),
            Err(text) => Ok(text),
        },
    }
}

#[test]
fn every_planted_fault_is_seen_by_its_gate() {
    for &fault in Fault::ALL {
        let listed = CAUGHT.iter().find(|c| c.0 == fault);
        let what = fault.description();
        let (_, gate) = listed.unwrap_or_else(|| panic!("no gate is listed for the fault {fault} ({what})"));
        let text = seen(fault, *gate).unwrap_or_else(|e| panic!("{e}"));
        println!("{fault}: {text}");
        assert!(text.contains("gate ") && text.contains("seed "), "{text}");
    }
}

#[test]
fn the_gates_are_green_without_a_fault() {
    training::over(2, |run| training::splits(run, 2)).unwrap();
    training::over(2, training::packed).unwrap();
    resume::over(4).unwrap();
    for (fault, gate) in CAUGHT {
        if let Gate::Gpu(gate) = gate {
            gpus(&[Schedule::Forward]).iter().for_each(|device| {
                gate(device).unwrap_or_else(|e| panic!("{fault} is off: {e}"));
            });
        }
        if let Gate::Own(gate) = gate {
            gate().unwrap_or_else(|e| panic!("{fault} is off: {e}"));
        }
    }
}
