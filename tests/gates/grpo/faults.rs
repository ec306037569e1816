//! Each fault of a step stops the run with its own error.
use xtrain::decode::{EngineOptions, KvKind};
use xtrain::grpo::Error;
use xtrain::rewards::CompletionIndex;
use xtrain::tensor::faults::{self, Fault};

use super::{Scratch, Setup, config, run};

/// A run of two steps with top-p and pages of 4 positions. Returns the number of compared tokens.
fn two_steps(name: &str, keys: &[&str]) -> Result<usize, Error> {
    let dir = Scratch::new(name);
    let engine = EngineOptions { kv: KvKind::Paged { page: 4 }, ..EngineOptions::default() };
    let setup = Setup { engine, ..Setup::threads(2) };
    let keys = [&["grpo.top_p=0.9", "grpo.steps=2", "grpo.eval_every=0"], keys].concat();
    run(&config(&keys), &setup, &dir.0).map(|compared| compared.tokens as usize)
}

/// The comparison of two steps, for the faults of a step.
pub(crate) fn steps() -> Result<usize, String> {
    two_steps("steps", &[]).map_err(|error| format!("gate grpo, seed 0: {error}"))
}

/// Two steps on each batch: the second one is a step on a reused batch.
pub(crate) fn iterations() -> Result<usize, String> {
    let keys = ["grpo.num_iterations=2"];
    two_steps("iterations", &keys).map_err(|error| format!("gate grpo, seed 0: {error}"))
}

#[test]
fn each_fault_of_a_step_stops_the_run_with_its_own_error() {
    let error = |fault: Fault, keys: &[&str]| {
        let name = format!("{fault}-{}", keys.len());
        faults::with(fault, || two_steps(&name, keys)).expect_err("a fault that was not found")
    };
    // With a reference model, the kept sets of all completions are stored before the update.
    let reference: &[&str] = &["grpo.beta=0.05"];
    for keys in [&[][..], reference] {
        assert!(two_steps(&format!("no-fault-{}", keys.len()), keys).unwrap() > 100);
        let weights = error(Fault::WeightsChangeBeforeUpdate, keys);
        let Error::WeightsChanged { step: 1, policy, found } = &weights else { panic!("{weights}") };
        assert!(
            policy.starts_with("sha256:") && found.starts_with("sha256:") && policy != found,
            "{weights}"
        );
        let tokens = error(Fault::CompletionRetokenized, keys);
        assert!(matches!(tokens, Error::TokensChanged { .. }), "{tokens}");
        let filters = error(Fault::UpdateForgetsTopP, keys);
        let Error::FiltersDiffer { want, found } = &filters else { panic!("{filters}") };
        assert!(want.contains("top_p: Some(0.9)") && found.contains("top_p: None"), "{filters}");
        let neighbor = error(Fault::RewardOfTheNeighbor, keys);
        let Error::RewardOrder { want, found, .. } = &neighbor else { panic!("{neighbor}") };
        let at = |prompt, completion| CompletionIndex { prompt, completion };
        assert_eq!((*want, *found), (at(0, 0), at(3, 3)), "{neighbor}");
        for stale in [Fault::PageOffByOne, Fault::DroppedCacheWrite] {
            let page = error(stale, keys);
            assert!(matches!(page, Error::Mismatch { .. }), "{stale}: {page}");
        }
    }
    // The values of a step on a reused batch, computed with its weights during the pass or in a pass before it.
    for keys in [
        &["grpo.num_iterations=2"][..],
        &["grpo.num_iterations=2", "grpo.importance_sampling_level=sequence"],
    ] {
        assert!(two_steps(&format!("no-fault-reused-{}", keys.len()), keys).unwrap() > 50);
        let unstable = error(Fault::ValuesChangeAfterWeights, keys);
        assert!(matches!(unstable, Error::Unstable { .. }), "{unstable}");
    }
    // The comparison over the whole vocabulary precedes the update.
    let page = error(Fault::PageOffByOne, &["grpo.verify_every=1", "grpo.beta=0", "grpo.top_k=0"]);
    assert!(matches!(page, Error::Verify { step: 1, .. }), "{page}");
}
