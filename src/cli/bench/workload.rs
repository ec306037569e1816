//! The rollout that a benchmark measures.
use serde::Serialize;

use crate::cli::{CliError, Exit};
use crate::decode::{EngineOptions, KvKind};
use crate::model::Model;

/// A rollout to measure.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Workload {
    /// Number of sequences.
    pub(super) batch: usize,
    /// Whether all sequences share one prompt.
    pub(super) one_prompt: bool,
    /// Tokens per prompt.
    pub(super) prompt_len: usize,
    /// New tokens per sequence.
    pub(super) max_new: usize,
    /// Softmax temperature; 0: greedy.
    pub(super) temperature: f32,
    /// Top-p; 1: off.
    pub(super) top_p: f32,
}

impl Workload {
    /// `options` with room for all sequences.
    pub(super) fn engine(&self, options: EngineOptions) -> EngineOptions {
        let max_seq_len = Some(self.prompt_len + self.max_new);
        EngineOptions { max_seq_len, max_batch: self.batch, ..options }
    }

    /// Rejects a workload that exceeds the context of the model over a cache of kind `kv`. The error has the hint
    /// `hint`.
    pub(super) fn check(&self, kv: KvKind, model: &Model, hint: &str) -> Result<(), CliError> {
        let len = self.prompt_len.saturating_add(self.max_new);
        let context = kv.max_positions(model.config());
        if len <= context {
            return Ok(());
        }
        let want = format_args!("expected at most {context}, the model's context");
        let message = format_args!("prompt and completion have {len} tokens, {want}");
        Err(CliError::new(Exit::Usage, message).hint(hint))
    }
}
