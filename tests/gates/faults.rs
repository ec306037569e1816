//! Every planted fault has a gate that was seen red.
use xtrain::tensor::faults::{self, FAULTS};

use crate::{invariance, training};

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
    /// A test inside a crate, by its name, and the text that holds it.
    Inside(&'static str, &'static str),
}

/// Each fault and the gate that catches it.
const CAUGHT: &[(&str, Gate)] = &[
    ("dropped-cache-write", Gate::Invariance),
    ("page-off-by-one", Gate::Invariance),
    ("position-off-by-one", Gate::Invariance),
    ("prefix-of-other-tokens", Gate::Inside("prefixes", include_str!("prefixes.rs"))),
    ("shared-random-state", Gate::Invariance),
    ("reversed-sum-for-one-row", Gate::Invariance),
    ("mask-off-by-one", Gate::Invariance),
    (
        "greedy-last-of-equal-maxima",
        Gate::Inside("ties", include_str!("../../xtrain-decode/src/sampler/tests/choices.rs")),
    ),
    (
        "sampler-f32-running-sum",
        Gate::Inside("failures", include_str!("../../xtrain-decode/src/sampler/tests/draws.rs")),
    ),
    ("sampler-shared-state", Gate::Invariance),
    ("micro-batch-total-added", Gate::Splits),
    ("one-accumulator-for-a-tied-table", Gate::Splits),
    ("resume-forgets-the-optimizer", Gate::Resume),
    ("resume-forgets-the-step", Gate::Resume),
    ("resume-forgets-the-random-state", Gate::Resume),
    // The sign of a zero is lost in the sum of the next product: logits cannot show it.
    ("padding-loses-zero-sign", Gate::Inside("zero", include_str!("../../xtrain-tensor/src/gates/zero.rs"))),
    (
        "checkpoint-name-not-synced",
        Gate::Inside("power cuts", include_str!("../../xtrain-model/src/checkpoint/tests/power_cuts.rs")),
    ),
    (
        "checkpoint-rename-before-sync",
        Gate::Inside("power cuts", include_str!("../../xtrain-model/src/checkpoint/tests/power_cuts.rs")),
    ),
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
        Gate::Splits => training(faults::with(fault, || training::over(12, |run| training::splits(run, 1)))),
        Gate::Resume => training(faults::with(fault, || training::over(2, training::resumed))),
        Gate::Inside(test, text) if text.contains(&format!("with(\"{fault}\"")) => {
            Ok(format!("seen by the crate's own gate ({test})"))
        }
        Gate::Inside(test, _) => Err(missed(format!("no test switches it on ({test})"))),
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
        if !matches!(gate, Gate::Inside(..)) {
            assert!(text.contains("gate ") && text.contains("seed "), "{text}");
        }
    }
    for (fault, _) in CAUGHT {
        assert!(FAULTS.iter().any(|f| f.0 == *fault), "{fault} is listed here and planted nowhere");
    }
}

#[test]
fn the_gates_are_green_without_a_fault() {
    training::over(2, |run| training::splits(run, 1)).unwrap();
    training::over(2, training::resumed).unwrap();
}
