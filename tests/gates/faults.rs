//! Every planted fault has a gate that was seen red.
use xtrain::tensor::faults::{self, FAULTS};
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
const CAUGHT: &[(&str, Gate)] = &[
    ("dropped-cache-write", Gate::Invariance),
    ("page-off-by-one", Gate::Invariance),
    ("position-off-by-one", Gate::Invariance),
    ("prefix-of-other-tokens", Gate::Test(|| prefixes::over(0..60).map(|[rows, ..]| rows as usize))),
    ("shared-random-state", Gate::Invariance),
    ("reversed-sum-for-one-row", Gate::Invariance),
    ("mask-off-by-one", Gate::Invariance),
    ("window-off-by-one", Gate::Invariance),
    ("fork-not-seen", Gate::Invariance),
    ("sampler-shared-state", Gate::Invariance),
    ("greedy-last-of-equal-maxima", Gate::Own(own::ties)),
    ("sampler-f32-running-sum", Gate::Own(own::ranges)),
    ("micro-batch-total-added", Gate::Splits),
    ("index-list-not-renewed", Gate::Gpu(own::lists)),
    ("graph-with-old-arguments", Gate::Gpu(own::graphs)),
    ("lists-of-the-turn-before", Gate::GpuTest(ahead::over)),
    ("norm-after-a-sum-without-eps", Gate::GpuTest(gpu::many_rows)),
    ("surplus-token-kept", Gate::GpuTest(ahead::over)),
    ("shared-buffer-written", Gate::Gpu(own::sharing)),
    ("recompute-from-another-layer", Gate::Splits),
    ("first-piece-comes-last", Gate::Test(opened::long)),
    ("denormal-of-a-table-lost", Gate::Test(opened::tiny)),
    ("one-accumulator-for-a-tied-table", Gate::Splits),
    ("documents-see-each-other", Gate::Packing),
    ("window-joins-its-documents", Gate::Test(|| packing::over(4).map_err(|e| e.0))),
    ("vocabulary-chunk-starts-anew", Gate::Own(own::vocabulary)),
    ("resume-forgets-the-optimizer", Gate::Resume),
    ("resume-forgets-the-step", Gate::Resume),
    ("resume-forgets-the-random-state", Gate::Resume),
    // The sign of a zero is lost in the sum of the next product: logits cannot show it.
    ("padding-loses-zero-sign", Gate::Own(own::zero)),
    ("checkpoint-name-not-synced", Gate::Own(own::power_cuts)),
    ("checkpoint-rename-before-sync", Gate::Own(own::power_cuts)),
];

/// What the gate says of the fault.
fn seen(fault: &str, gate: Gate) -> Result<String, String> {
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
    assert!(FAULTS.len() >= 12);
    for (fault, what) in FAULTS {
        let listed = CAUGHT.iter().find(|c| c.0 == *fault);
        let (_, gate) = listed.unwrap_or_else(|| panic!("no gate is listed for the fault {fault} ({what})"));
        let text = seen(fault, *gate).unwrap_or_else(|e| panic!("{e}"));
        println!("{fault}: {text}");
        assert!(text.contains("gate ") && text.contains("seed "), "{text}");
    }
    for (fault, _) in CAUGHT {
        assert!(FAULTS.iter().any(|f| f.0 == *fault), "{fault} is listed here and planted nowhere");
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
