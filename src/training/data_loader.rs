//! The training data of a run, split into windows.
use std::ops::Range;

use crate::config::{self, Packing, RunConfig, TaskKind};
use crate::model::data::{
    DataError, DocumentWindows, Overflow, PackingStats, Pieces, Split, TokenWindow, Tokens, WindowOrder,
    Windows, evaluation_windows,
};
use crate::model::tokenizer::Tokenizer;
use crate::tensor::faults::{self, Fault};

/// The training data of a run.
#[derive(Debug)]
pub struct Source {
    /// The tokens.
    pub tokens: Tokens,
    /// The tokenizer that produced them.
    pub tokenizer: Tokenizer,
    /// The training split of `tokens`, and the validation split of [`Source::validation_tokens`].
    pub split: Split,
    /// The tokens of `data.val_files`.
    validation: Option<Tokens>,
}

impl Source {
    /// Splits off the configured validation fraction at the end: of the tokens, or of the conversations.
    ///
    /// # Errors
    /// A packed token file does not record where conversations end.
    pub fn new(config: &RunConfig, tokens: Tokens, tokenizer: Tokenizer) -> Result<Source, DataError> {
        let split = split(&tokens, config.train.task, config.data.val_fraction)?;
        Ok(Source { tokens, tokenizer, split, validation: None })
    }

    /// This source with other tokens for validation, all of which are the validation split.
    #[must_use]
    pub fn with_validation(mut self, tokens: Tokens) -> Source {
        self.split.validation = 0..tokens.len();
        self.validation = Some(tokens);
        self
    }

    /// The tokens that have the validation split.
    pub fn validation_tokens(&self) -> &Tokens {
        let own = self.validation.as_ref().filter(|_| !faults::on(Fault::ValidationFilesIgnored));
        own.unwrap_or(&self.tokens)
    }

    /// The tokens of the first held-out document up to its first target token, or of the first training document: the
    /// first turn of a conversation and the start of its answer. At least one token, and at most the last `max`.
    ///
    /// # Errors
    /// The tokens cannot be read.
    pub fn first_turn(&self, max: usize) -> Result<Vec<u32>, DataError> {
        let held_out = &self.split.validation;
        let (tokens, start) = match held_out.is_empty() {
            true => (&self.tokens, self.split.train.start),
            false => (self.validation_tokens(), held_out.start),
        };
        let end = tokens.ends()?.into_iter().find(|&end| end > start).unwrap_or(start);
        let targets = tokens.target_mask(start..end)?;
        let context = targets.iter().position(|&target| target).unwrap_or(targets.len());
        let turn_end = (start + context as u64).max((start + 1).min(end));
        let max = if faults::on(Fault::WholeFirstTurn) { u64::MAX } else { max as u64 };
        tokens.ids(turn_end.saturating_sub(max).max(start)..turn_end)
    }
}

/// Splits off the last `fraction` of the tokens, or of the conversations, for validation.
///
/// # Errors
/// `fraction` is outside 0 <= fraction < 1; a packed token file does not record where conversations end.
pub fn split(tokens: &Tokens, task: TaskKind, fraction: f64) -> Result<Split, DataError> {
    match task {
        TaskKind::Lm => Split::tail(tokens.len(), fraction),
        TaskKind::Sft => Split::of_documents(&tokens.ends()?, fraction),
    }
}

/// How tokens are split into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec {
    /// Maximum number of predictions per window.
    pub context: usize,
    /// Whether windows hold whole documents.
    pub packing: Packing,
    /// Training objective. Conversations longer than a window are truncated, documents are split.
    pub task: TaskKind,
}

impl WindowSpec {
    /// The windows of a configuration.
    pub fn new(config: &RunConfig) -> WindowSpec {
        WindowSpec { context: config.train.context, packing: config.data.packing, task: config.train.task }
    }

    fn pieces(&self, tokens: &Tokens, part: &Range<u64>) -> Result<Pieces, DataError> {
        let overflow = if self.task == TaskKind::Sft { Overflow::Truncate } else { Overflow::Split };
        Pieces::cut(tokens, part, self.context as u64, overflow)
    }

    /// The windows of an evaluation of `part`, with at most `limit` predictions from the start (0: no limit), but at
    /// least one document. Windows without a target are left out.
    ///
    /// # Errors
    /// A packed token file does not record where documents end; reading fails.
    pub fn evaluation(
        &self,
        tokens: &Tokens,
        part: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Range<u64>>, DataError> {
        let limit = if limit == 0 { u64::MAX } else { limit as u64 };
        if self.packing == Packing::Stream {
            let end = part.end.min(part.start.saturating_add(limit).saturating_add(1));
            let windows = evaluation_windows(&(part.start..end), self.context as u64);
            if !tokens.is_masked() {
                return Ok(windows.collect());
            }
            let with_target = |window: Range<u64>| {
                let mask = tokens.target_mask(window.start + 1..window.end)?;
                Ok(mask.contains(&true).then_some(window))
            };
            return windows.filter_map(|window| with_target(window).transpose()).collect();
        }
        let mut windows = self.pieces(tokens, &part)?.ranges;
        windows.truncate(windows_within(&windows, limit));
        Ok(windows)
    }
}

/// Number of windows from the start that have at most `limit` predictions in total; at least one.
pub(crate) fn windows_within(windows: &[Range<u64>], limit: u64) -> usize {
    let mut predictions = 0;
    let beyond = windows.iter().position(|window| {
        predictions += window.end - window.start - 1;
        let exclusive = faults::on(Fault::EvaluationLimitExclusive);
        predictions > limit || exclusive && predictions == limit
    });
    beyond.unwrap_or(windows.len()).max(1)
}

/// The windows of a run, for each step and for its evaluations.
#[derive(Debug)]
pub struct DataLoader {
    training: TrainingWindows,
    validation: Vec<Range<u64>>,
    packing_stats: Option<PackingStats>,
}

#[derive(Debug)]
enum TrainingWindows {
    Stream(Windows),
    Documents(DocumentWindows),
}

impl DataLoader {
    /// The windows of a configuration, in an order determined by `seed`.
    ///
    /// # Errors
    /// The training split has fewer tokens than a window and one more, or no document with a target token; a packed
    /// token file does not record where documents end; reading fails.
    pub fn new(config: &RunConfig, source: &Source, seed: u64) -> Result<DataLoader, DataError> {
        let (spec, split) = (WindowSpec::new(config), &source.split);
        let order = match config.train.order {
            config::Order::Random => WindowOrder::Random,
            config::Order::Shuffled => WindowOrder::Epochs,
        };
        let (held_out, limit) = (split.validation.clone(), config.train.eval_tokens);
        let validation = spec.evaluation(source.validation_tokens(), held_out, limit)?;
        let context = spec.context as u64;
        let (training, packing_stats) = match spec.packing {
            Packing::Stream => {
                (TrainingWindows::Stream(Windows::new(split.train.clone(), context, seed, order)?), None)
            }
            Packing::Documents => {
                let pieces = spec.pieces(&source.tokens, &split.train)?;
                let packed = DocumentWindows::pack(&pieces, context, seed, order)?;
                (TrainingWindows::Documents(packed), Some(pieces.packing_stats))
            }
        };
        Ok(DataLoader { training, validation, packing_stats })
    }

    /// The `batch` windows of `step`, a function of the tokens, the configuration and the seed only.
    ///
    /// # Errors
    /// Reading fails, or an id is outside the vocabulary.
    pub fn batch(&self, tokens: &Tokens, step: u64, batch: u32) -> Result<Vec<TokenWindow>, DataError> {
        match &self.training {
            TrainingWindows::Stream(windows) => windows.batch(tokens, step, batch),
            TrainingWindows::Documents(windows) => windows.batch(tokens, step, batch),
        }
    }

    /// Number of windows per epoch.
    pub fn per_epoch(&self) -> u64 {
        match &self.training {
            TrainingWindows::Stream(windows) => windows.per_epoch(),
            TrainingWindows::Documents(windows) => windows.per_epoch(),
        }
    }

    /// The windows of an evaluation. Empty if the validation split has nothing to predict.
    pub fn validation(&self) -> &[Range<u64>] {
        &self.validation
    }

    /// Statistics of packing the training documents. `None`: windows do not hold whole documents.
    pub fn packing_stats(&self) -> Option<PackingStats> {
        self.packing_stats
    }
}
