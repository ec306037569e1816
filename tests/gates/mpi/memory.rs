//! The estimate of memory counts what several processes need.
use super::{launcher, mpirun};
use crate::{memory_grpo, memory_train};

/// Compares the estimate of the memory of `xtrain train` with the peak of two processes.
fn memory_of_training() -> Result<(), String> {
    let two = || launcher(2);
    memory_train::compared(2, [4, 2], &[], two)
}

/// The same of `xtrain grpo`.
fn memory_of_grpo() -> Result<(), String> {
    memory_grpo::of_two(|dir, args| mpirun(dir, 2, args).output().unwrap())
}

#[test]
fn the_estimate_of_training_counts_the_exchange() {
    memory_of_training().unwrap();
}

#[test]
fn the_estimate_of_grpo_counts_the_exchange_and_the_own_cache() {
    memory_of_grpo().unwrap();
}

#[test]
#[cfg(feature = "faults")]
fn an_estimate_with_another_exchange_or_cache_is_found() {
    use xtrain::tensor::faults::{self, Fault};
    for (fault, gate, sign) in [
        (Fault::ExchangeNotInEstimate, memory_of_training as fn() -> Result<(), String>, '-'),
        (Fault::ExchangeNotInEstimate, memory_of_grpo, '-'),
        (Fault::CacheOfAllProcesses, memory_of_grpo, '+'),
    ] {
        let found = faults::with(fault, gate).expect_err("the fault");
        assert!(found.contains(&format!(" bytes: {sign}")), "{fault}: {found}");
    }
}
