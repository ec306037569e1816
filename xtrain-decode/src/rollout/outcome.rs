//! What the runner returns to the scheduler.
use std::sync::Arc;

use crate::sampler::{Choice, SampleError};

/// The token of one sequence, or why there is none.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Index of the sequence among the running ones.
    pub(super) running: usize,
    pub(super) choice: Result<Choice, SampleError>,
    /// The logits `[V]`, if the plan asked to share them.
    pub(super) logits: Option<Arc<[f32]>>,
}

/// The tokens of one forward pass.
#[derive(Debug)]
pub(super) struct Sampled {
    /// In the order of the plan's runs.
    pub(super) outcomes: Vec<Outcome>,
    /// Rows that the LM head ran on.
    pub(super) logits_rows: usize,
}

/// One of several decode steps without a synchronization: a token for each run of the plan. `None`: the row's logits
/// give no token.
pub(super) type DecodedStep = Vec<Option<Choice>>;
