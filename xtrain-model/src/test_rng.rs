//! Random numbers of tests.
use xtrain_tensor::rng::{PhiloxRng, Purpose};

/// The generator of test case `seed`.
pub(crate) fn rng(seed: u64) -> PhiloxRng {
    PhiloxRng::new(seed, 0, Purpose::Prompts)
}
