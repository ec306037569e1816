//! The plan of one step and its outcomes: plain data between the scheduler and the runner.
//!
//! The scheduler writes a plan, the runner executes it and returns the outcomes. Both name a sequence by its index
//! among the running ones. The runner reads the tokens that a repetition penalty covers from the sequence itself.
use std::ops::Range;
use std::sync::Arc;

use xtrain_model::Rows;
use xtrain_tensor::faults::{self, Fault};

use crate::sampler::{Address, Choice, SampleError, TokenLogprob};

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rows: Rows,
    /// The rows by sequence, in the order of `rows`.
    pub(super) runs: Vec<Run>,
    /// The rows that a token is sampled from.
    pub(super) sampled_rows: Vec<u32>,
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
    pub(super) rows: Range<usize>,
    /// Number of drafted tokens: the last rows.
    pub(super) drafted: usize,
    /// How the next token is sampled, from the last row before the drafted ones. The token after each drafted one is
    /// sampled alike, at its own position. `None`: no token is sampled.
    pub(super) spec: Option<SampleSpec>,
}

/// How the next token of a sequence is sampled.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleSpec {
    /// Which of the runner's samplers samples it.
    pub(super) sampler: SamplerId,
    pub(super) address: Address,
    /// Other sequences fork from this prompt and need its logits on the host.
    pub(super) shares_logits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SamplerId(pub(super) usize);

/// The first token of a sequence that took its prompt, and the logits after it, from another sequence.
#[derive(Debug)]
pub(super) struct ForkedSample {
    pub(super) running: usize,
    pub(super) spec: SampleSpec,
    /// `[V]`.
    pub(super) logits: Arc<[f32]>,
}

impl SampleSpec {
    /// The address of the token that follows `ahead` drafted ones.
    pub(super) fn address_after(&self, ahead: usize) -> Address {
        let shift = usize::from(ahead > 0 && faults::on(Fault::DraftPositionOffByOne));
        Address { position: self.address.position + (ahead + shift) as u32, ..self.address }
    }
}

impl Run {
    /// The rows that a token is sampled from, if there are any.
    pub(super) fn sampled(&self) -> Range<usize> {
        self.rows.end - self.drafted - 1..self.rows.end
    }
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

/// The token of one sequence, or why there is none.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) running: usize,
    pub(super) choice: Result<Choice, SampleError>,
    /// The most probable tokens. Empty unless they are requested.
    pub(super) top: Vec<TokenLogprob>,
    /// The logits `[V]`, if other sequences fork from the prompt.
    pub(super) logits: Option<Arc<[f32]>>,
}

/// A decode step without synchronization: a token for each run of the plan. `None`: the logits give no token.
pub(super) type DecodedStep = Vec<Option<Choice>>;
