//! Planted faults for the gates. Each gate is shown to fail with a fault that is switched on in shipping code.
//!
//! Code with a planted fault calls [`on`]. Without the cargo feature `faults`, `on` is a constant `false` and the
//! branch is not compiled. With the feature, a test switches one fault on for the duration of a closure:
//!
//! ```
//! # #[cfg(feature = "faults")]
//! # {
//! use xtrain_tensor::faults::{self, Fault};
//! faults::with(Fault::GreedyLastOfEqualMaxima, || assert!(faults::on(Fault::GreedyLastOfEqualMaxima)));
//! # }
//! ```
//!
//! The switch is thread-local, so tests on other threads are not affected. Code that moves work to other threads
//! captures [`current`] and runs the work inside [`Carried::enter`], as the thread pool of a device does.
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

            /// The name in kebab case.
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
    SamplerF32RunningSum "sampler-f32-running-sum" "the sampler picks a token by a running sum of f32 probabilities"
    GreedyLastOfEqualMaxima "greedy-last-of-equal-maxima" "greedy sampling returns the last of several equal maxima"
    SamplerSharedState "sampler-shared-state" "the address of a random number omits the id of the sequence"
    ReversedSumForOneRow "reversed-sum-for-one-row" "a linear map of a single row sums its inputs in reverse order"
    MaskOffByOne "mask-off-by-one" "a row does not attend to its own position"
    WindowOffByOne "window-off-by-one" "a row attends to one position more than its window"
    ForkNotSeen "fork-not-seen" "sequences that share their first page are treated as sharing all keys"
    DocumentsSeeEachOther "documents-see-each-other" "the documents packed in a sample form one sequence"
    WindowJoinsItsDocuments "window-joins-its-documents" "packed data loses the document boundaries of a window"
    IndexListNotRenewed "index-list-not-renewed" "a GPU uses a cached index list of the same length with other values"
    GraphWithOldArguments "graph-with-old-arguments"
        "a CUDA graph is launched with the arguments of the previous step"
    ListsOfTheTurnBefore "lists-of-the-turn-before"
        "a GPU that runs several steps ahead keeps the positions and slots of the first one"
    NormAfterASumWithoutEps "norm-after-a-sum-without-eps"
        "the norm fused into the epilogue of a GPU product omits eps"
    SurplusTokenKept "surplus-token-kept" "an engine that runs ahead keeps the tokens after the end of a sequence"
    SharedBufferWritten "shared-buffer-written"
        "a GPU changes a tensor in place although another tensor shares its buffer"
    RecomputeFromAnotherLayer "recompute-from-another-layer"
        "a recomputed layer starts from the embedding instead of its own input"
    MicroBatchTotalAdded "micro-batch-total-added"
        "a weight gradient adds the total of a micro-batch instead of its chunks"
    VocabularyChunkStartsAnew "vocabulary-chunk-starts-anew"
        "dx adds the total of a vocabulary chunk instead of its chunks of 256"
    DenormalOfATableLost "denormal-of-a-table-lost"
        "a model without f32 master weights embeds a bf16 denormal as zero"
    OneAccumulatorForATiedTable "one-accumulator-for-a-tied-table"
        "both uses of a tied embedding table add to one gradient"
    FirstPieceComesLast "first-piece-comes-last"
        "the first piece of a prefetched tensor is processed after the others"
    PrefixOfOtherTokens "prefix-of-other-tokens" "a prompt reuses a cached page of a prompt with other tokens"
    ResumeForgetsTheOptimizer "resume-forgets-the-optimizer" "a resumed run starts with zero moments"
    ResumeForgetsTheStep "resume-forgets-the-step" "a resumed run starts at step 0, with bias-correction powers of 1"
    ResumeForgetsTheRandomState "resume-forgets-the-random-state" "a resumed run continues with seed 0"
    PaddingLosesZeroSign "padding-loses-zero-sign" "the sums of attention omit the final + 0"
    CheckpointNameNotSynced "checkpoint-name-not-synced"
        "a save reports success before the name of the checkpoint is durable"
    CheckpointRenameBeforeSync "checkpoint-rename-before-sync"
        "a checkpoint gets its final name before its files are durable"
    DroppedCacheWrite "dropped-cache-write" "the key and value of position 2 are not written in the last layer"
    PageOffByOne "page-off-by-one" "the first position of a page is written to the previous page"
    PositionOffByOne "position-off-by-one" "a row after the prompt uses the position after its own"
    SharedRandomState "shared-random-state" "all random numbers of a step use the id of the first sequence"
    LossTopPStopsEarly "loss-top-p-stops-early"
        "top-p of the loss stops at the token whose running sum equals the budget instead of the one that exceeds it"
    LossMinPIsStrict "loss-min-p-is-strict" "min-p of the loss removes a token whose probability equals the bound"
    GivenKeptSetIgnored "given-kept-set-ignored" "the loss applies its filters to rows whose kept set is given"
    LossForgetsMinP "loss-forgets-min-p" "the loss applies top-k and top-p of the sampler, but not its min-p"
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

    /// The fault of a thread, to be passed to another thread. Empty in this build.
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
