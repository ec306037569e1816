//! Planted faults: each gate is seen red with a fault that is switched on in the code that ships.
//!
//! A place that can go wrong asks [`on`]; without the cargo feature `faults` the answer is a constant
//! `false`, and nothing of it is compiled. With it, a test switches one fault on for the duration of a
//! closure:
//!
//! ```
//! # #[cfg(feature = "faults")]
//! xtrain_tensor::faults::with("greedy-last-of-equal-maxima", || {
//!     assert!(xtrain_tensor::faults::on("greedy-last-of-equal-maxima"));
//! });
//! ```
//!
//! The switch belongs to the thread, so tests that run beside it stay sound. Who hands work to other
//! threads takes [`current`] along and runs the work inside [`Carried::enter`], as the pool of a device does.

/// Every fault that can be switched on: name, and what goes wrong.
pub const FAULTS: &[(&str, &str)] = &[
    ("sampler-f32-running-sum", "the token is drawn by a running sum of f32 probabilities"),
    ("greedy-last-of-equal-maxima", "greedy takes the last of equal largest logits"),
    ("sampler-shared-state", "the address of a draw leaves out the sequence's id"),
    ("reversed-sum-for-one-row", "a linear of one row sums its inputs backwards"),
    ("mask-off-by-one", "a row of an attention does not see its own position"),
    ("window-off-by-one", "a row of an attention sees one position more than its window"),
    ("fork-not-seen", "rows whose first page is one are taken to share all their keys"),
    ("documents-see-each-other", "the documents packed in a sample are one sequence"),
    ("window-joins-its-documents", "packed data does not say where the documents of a window begin"),
    ("index-list-not-renewed", "a GPU takes a list of indices for another one of its length"),
    ("graph-with-old-arguments", "a graph of kernels runs again with the arguments of the step before"),
    ("lists-of-the-turn-before", "a GPU that runs ahead keeps the positions and slots of its first step"),
    ("norm-after-a-sum-without-eps", "a GPU that norms a sum on the way forgets to add eps"),
    ("surplus-token-kept", "an engine that ran ahead keeps the tokens after the end of a sequence"),
    ("shared-buffer-written", "a GPU writes a tensor in place that another one shares"),
    ("recompute-from-another-layer", "a recomputed layer begins with the embedding, not with its own input"),
    ("micro-batch-total-added", "a weight's gradient takes a micro-batch's total, not its chunks"),
    (
        "vocabulary-chunk-starts-anew",
        "dx takes the total of a chunk of the vocabulary, not its chunks of 256",
    ),
    ("denormal-of-a-table-lost", "a model without f32 weights embeds a denormal of bf16 as zero"),
    ("one-accumulator-for-a-tied-table", "both uses of a tied table add into one gradient"),
    ("first-piece-comes-last", "of a tensor that is read ahead the first piece is taken after the others"),
    ("prefix-of-other-tokens", "a prompt takes a page of whatever prompt came before"),
    ("resume-forgets-the-optimizer", "a resumed run begins with moments of zero"),
    ("resume-forgets-the-step", "a resumed run begins at step 0, with powers of 1"),
    ("resume-forgets-the-random-state", "a resumed run goes on with seed 0"),
    ("padding-loses-zero-sign", "an attention ends without + 0"),
    ("checkpoint-name-not-synced", "a save says saved before the checkpoint's name is durable"),
    ("checkpoint-rename-before-sync", "a checkpoint has its final name before its files are durable"),
    ("dropped-cache-write", "the last layer's key and value of position 2 are not written"),
    ("page-off-by-one", "the first position of a page is written to the page before"),
    ("position-off-by-one", "a row after the prompt is told the position after its own"),
    ("shared-random-state", "all draws of a step use the first sequence's id"),
];

pub use switch::{Carried, current, on};

#[cfg(feature = "faults")]
pub use switch::with;

#[cfg(not(feature = "faults"))]
mod switch {
    /// Whether a fault is switched on: never, in this build.
    #[inline(always)]
    pub const fn on(_name: &str) -> bool {
        false
    }

    /// The fault of a thread, on its way to another one: none, in this build.
    #[derive(Debug, Clone, Copy)]
    pub struct Carried;

    /// The fault of this thread.
    #[inline(always)]
    pub const fn current() -> Carried {
        Carried
    }

    impl Carried {
        /// Runs `work` with the carried fault.
        #[inline(always)]
        pub fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            work()
        }
    }
}

#[cfg(feature = "faults")]
mod switch {
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// The listed name.
    #[track_caller]
    fn known(name: &str) -> &'static str {
        let listed = super::FAULTS.iter().map(|fault| fault.0).find(|&listed| listed == name);
        listed.unwrap_or_else(|| panic!("no fault is named {name:?}"))
    }

    /// Whether a fault is switched on in this thread.
    ///
    /// # Panics
    /// If no fault has this name.
    #[track_caller]
    pub fn on(name: &str) -> bool {
        ACTIVE.get() == Some(known(name))
    }

    /// The result of `work` done with a fault switched on in this thread, also for threads that take it
    /// along by [`current`].
    ///
    /// # Panics
    /// If no fault has this name, or if `work` panics.
    #[track_caller]
    pub fn with<R>(name: &str, work: impl FnOnce() -> R) -> R {
        Carried(Some(known(name))).enter(work)
    }

    /// The fault of a thread, on its way to another one.
    #[derive(Debug, Clone, Copy)]
    pub struct Carried(Option<&'static str>);

    /// The fault of this thread.
    pub fn current() -> Carried {
        Carried(ACTIVE.get())
    }

    impl Carried {
        /// Runs `work` with the carried fault, then switches back, also after a panic.
        pub fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            struct Back(Option<&'static str>);
            impl Drop for Back {
                fn drop(&mut self) {
                    ACTIVE.set(self.0);
                }
            }
            let _back = Back(ACTIVE.replace(self.0));
            work()
        }
    }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_on_inside_its_closure_only_and_in_its_thread_only() {
        let (one, other) = (FAULTS[0].0, FAULTS[1].0);
        with(one, || {
            assert!(on(one) && !on(other));
            with(other, || assert!(on(other) && !on(one)));
            assert!(on(one));
            let carried = current();
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!on(one)));
                scope.spawn(|| carried.enter(|| assert!(on(one))));
            });
        });
        assert!(!on(one));
    }

    #[test]
    fn a_panic_switches_the_fault_off() {
        let fault = FAULTS[0].0;
        let end = std::panic::catch_unwind(|| with(fault, || std::panic::resume_unwind(Box::new(()))));
        assert!(end.is_err() && !on(fault));
    }

    #[test]
    #[should_panic(expected = "no fault is named")]
    fn an_unknown_name_is_refused() {
        with("no-such-fault", || ());
    }

    #[test]
    fn no_name_is_listed_twice() {
        for (at, fault) in FAULTS.iter().enumerate() {
            assert!(FAULTS[..at].iter().all(|other| other.0 != fault.0), "{}", fault.0);
        }
    }
}
