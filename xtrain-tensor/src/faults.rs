//! Planted faults for the gates. Each gate is shown to fail with a fault that is switched on in shipping code.
//!
//! Code that can go wrong calls [`on`]. Without the cargo feature `faults`, `on` is a constant `false` and the branch is
//! not compiled. With the feature, a test switches one fault on for the duration of a closure:
//!
//! ```
//! # #[cfg(feature = "faults")]
//! # {
//! use xtrain_tensor::faults::{self, Fault};
//! faults::with(Fault::GreedyLastOfEqualMaxima, || assert!(faults::on(Fault::GreedyLastOfEqualMaxima)));
//! # }
//! ```
//!
//! The switch is thread-local, so tests on other threads are not affected. Code that hands work to other threads passes
//! [`current`] along and runs the work inside [`Carried::enter`], as the thread pool of a device does.
use std::fmt;
use std::str::FromStr;

macro_rules! faults {
    ($($variant:ident $name:literal $what:literal)*) => {
        /// A fault that can be switched on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $(#[doc = $what] $variant,)*
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &[Fault] = &[$(Fault::$variant),*];

            /// The name on the command line, in kebab case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Fault::$variant => $name,)*
                }
            }

            /// What goes wrong.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Fault::$variant => $what,)*
                }
            }
        }
    };
}

faults! {
    SamplerF32RunningSum "sampler-f32-running-sum" "the token is drawn by a running sum of f32 probabilities"
    GreedyLastOfEqualMaxima "greedy-last-of-equal-maxima" "greedy takes the last of equal largest logits"
    SamplerSharedState "sampler-shared-state" "the address of a draw leaves out the sequence's id"
    ReversedSumForOneRow "reversed-sum-for-one-row" "a linear of one row sums its inputs backwards"
    MaskOffByOne "mask-off-by-one" "a row of an attention does not see its own position"
    WindowOffByOne "window-off-by-one" "a row of an attention sees one position more than its window"
    ForkNotSeen "fork-not-seen" "rows whose first page is one are taken to share all their keys"
    DocumentsSeeEachOther "documents-see-each-other" "the documents packed in a sample are one sequence"
    WindowJoinsItsDocuments "window-joins-its-documents" "packed data does not say where the documents of a window begin"
    IndexListNotRenewed "index-list-not-renewed" "a GPU takes a list of indices for another one of its length"
    GraphWithOldArguments "graph-with-old-arguments" "a graph of kernels runs again with the arguments of the step before"
    ListsOfTheTurnBefore "lists-of-the-turn-before" "a GPU that runs ahead keeps the positions and slots of its first step"
    NormAfterASumWithoutEps "norm-after-a-sum-without-eps" "a GPU that norms a sum on the way forgets to add eps"
    SurplusTokenKept "surplus-token-kept" "an engine that ran ahead keeps the tokens after the end of a sequence"
    SharedBufferWritten "shared-buffer-written" "a GPU writes a tensor in place that another one shares"
    RecomputeFromAnotherLayer "recompute-from-another-layer" "a recomputed layer begins with the embedding, not with its own input"
    MicroBatchTotalAdded "micro-batch-total-added" "a weight's gradient takes a micro-batch's total, not its chunks"
    VocabularyChunkStartsAnew "vocabulary-chunk-starts-anew" "dx takes the total of a chunk of the vocabulary, not its chunks of 256"
    DenormalOfATableLost "denormal-of-a-table-lost" "a model without f32 weights embeds a denormal of bf16 as zero"
    OneAccumulatorForATiedTable "one-accumulator-for-a-tied-table" "both uses of a tied table add into one gradient"
    FirstPieceComesLast "first-piece-comes-last" "of a tensor that is read ahead the first piece is taken after the others"
    PrefixOfOtherTokens "prefix-of-other-tokens" "a prompt takes a page of whatever prompt came before"
    ResumeForgetsTheOptimizer "resume-forgets-the-optimizer" "a resumed run begins with moments of zero"
    ResumeForgetsTheStep "resume-forgets-the-step" "a resumed run begins at step 0, with powers of 1"
    ResumeForgetsTheRandomState "resume-forgets-the-random-state" "a resumed run goes on with seed 0"
    PaddingLosesZeroSign "padding-loses-zero-sign" "an attention ends without + 0"
    CheckpointNameNotSynced "checkpoint-name-not-synced" "a save says saved before the checkpoint's name is durable"
    CheckpointRenameBeforeSync "checkpoint-rename-before-sync" "a checkpoint has its final name before its files are durable"
    DroppedCacheWrite "dropped-cache-write" "the last layer's key and value of position 2 are not written"
    PageOffByOne "page-off-by-one" "the first position of a page is written to the page before"
    PositionOffByOne "position-off-by-one" "a row after the prompt is told the position after its own"
    SharedRandomState "shared-random-state" "all draws of a step use the first sequence's id"
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Fault, String> {
        let found = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
        found.ok_or_else(|| format!("no fault is named {name:?}"))
    }
}

pub use switch::{Carried, current, on};

#[cfg(feature = "faults")]
pub use switch::with;

#[cfg(not(feature = "faults"))]
mod switch {
    use super::Fault;

    /// Whether a fault is switched on. Always `false` in this build.
    #[inline(always)]
    pub const fn on(_fault: Fault) -> bool {
        false
    }

    /// The fault of a thread, to be passed to another thread. Always none in this build.
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

    use super::Fault;

    thread_local! {
        static ACTIVE: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Whether a fault is switched on in this thread.
    pub fn on(fault: Fault) -> bool {
        ACTIVE.get() == Some(fault)
    }

    /// Runs `work` with a fault switched on in this thread, and in threads that receive it through [`current`].
    pub fn with<R>(fault: Fault, work: impl FnOnce() -> R) -> R {
        Carried(Some(fault)).enter(work)
    }

    /// The fault of a thread, to be passed to another thread.
    #[derive(Debug, Clone, Copy)]
    pub struct Carried(Option<Fault>);

    /// The fault of this thread.
    pub fn current() -> Carried {
        Carried(ACTIVE.get())
    }

    impl Carried {
        /// Runs `work` with the carried fault, then restores the previous one, also after a panic.
        pub fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            struct Restore(Option<Fault>);
            impl Drop for Restore {
                fn drop(&mut self) {
                    ACTIVE.set(self.0);
                }
            }
            let _restore = Restore(ACTIVE.replace(self.0));
            work()
        }
    }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_on_inside_its_closure_only_and_in_its_thread_only() {
        let (one, other) = (Fault::ALL[0], Fault::ALL[1]);
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
        let fault = Fault::ALL[0];
        let end = std::panic::catch_unwind(|| with(fault, || std::panic::resume_unwind(Box::new(()))));
        assert!(end.is_err() && !on(fault));
    }

    #[test]
    fn names_are_unique_and_parse_back() {
        for &fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert_eq!("no-such-fault".parse::<Fault>(), Err("no fault is named \"no-such-fault\"".into()));
    }
}
