//! The plan of one step: the rows that run, and which of them get a token. Pure data.
//!
//! The scheduler writes a plan and the runner executes it. A plan holds everything that the runner needs to know
//! about the sequences.
use std::ops::Range;
use std::sync::Arc;

use xtrain_model::Rows;

use crate::sampler::Address;

/// One step of the engine.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The rows of the forward pass.
    pub(super) rows: Rows,
    /// The rows by sequence, in the order of `rows`.
    pub(super) runs: Vec<Run>,
    /// The rows that a token is sampled from.
    pub(super) sampled_rows: Vec<usize>,
    /// Rows at prompt positions.
    pub(super) prefill_rows: usize,
    /// `Some(n)`: `n` decode steps that run on the device without synchronizing. `None`: one forward pass, after
    /// which the host has the tokens.
    pub(super) multi_step: Option<usize>,
}

/// Consecutive rows of one sequence.
#[derive(Debug)]
pub(super) struct Run {
    /// Index of the sequence among the running ones.
    pub(super) running: usize,
    /// Position of the sequence in the order of submission.
    pub(super) index: usize,
    /// Id of the sequence.
    pub(super) id: u64,
    /// Its rows in the plan.
    pub(super) rows: Range<usize>,
    /// How a token is sampled from the last row. `None`: no token is sampled.
    pub(super) spec: Option<SampleSpec>,
}

/// How the next token of a sequence is sampled.
#[derive(Debug)]
pub(super) struct SampleSpec {
    /// Which of the runner's samplers samples it.
    pub(super) sampler: SamplerId,
    /// The address of its random number.
    pub(super) address: Address,
    /// Prompt and output so far, for the repetition penalty. Empty without a penalty.
    pub(super) history: Vec<u32>,
    /// Other sequences fork from this prompt and need its logits on the host.
    pub(super) shares_logits: bool,
}

/// One of the runner's samplers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SamplerId(pub(super) usize);

/// The first token of a sequence that took its prompt, and the logits after it, from another sequence.
#[derive(Debug)]
pub(super) struct ForkedSample {
    /// Index of the sequence among the running ones.
    pub(super) running: usize,
    pub(super) spec: SampleSpec,
    /// `[V]`.
    pub(super) logits: Arc<[f32]>,
}

impl Plan {
    /// Clears the plan. Keeps its allocations.
    pub(super) fn clear(&mut self) {
        self.rows.id.clear();
        self.rows.seq.clear();
        self.rows.pos.clear();
        self.runs.clear();
        self.sampled_rows.clear();
        self.prefill_rows = 0;
        self.multi_step = None;
    }
}
