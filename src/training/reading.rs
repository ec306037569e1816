//! What a run reads: its tokens, in windows.
use std::ops::Range;

use crate::config::{self, Packing, RunConfig, Task};
use crate::model::data::{
    DataError, DocumentWindows, Overflow, PackingStats, Pieces, Split, TokenWindow, Tokens, WindowOrder,
    Windows, evaluation_windows,
};
use crate::model::tokenizer::Tokenizer;

/// What a run trains on.
#[derive(Debug)]
pub struct Source {
    /// The tokens.
    pub tokens: Tokens,
    /// How text became them.
    pub tokenizer: Tokenizer,
    /// What is trained on, and what is held out.
    pub split: Split,
}

impl Source {
    /// Holds out the configured share at the end: of the tokens, or of the conversations.
    ///
    /// # Errors
    /// Packed tokens that do not say where conversations end.
    pub fn new(config: &RunConfig, tokens: Tokens, tokenizer: Tokenizer) -> Result<Source, DataError> {
        let split = split(&tokens, config.train.task, config.data.val_fraction)?;
        Ok(Source { tokens, tokenizer, split })
    }
}

/// The last `share` of the tokens for validation, or of the conversations.
///
/// # Errors
/// A share outside 0 <= share < 1; packed tokens that do not say where conversations end.
pub fn split(tokens: &Tokens, task: Task, share: f64) -> Result<Split, DataError> {
    match task {
        Task::Lm => Split::tail(tokens.len(), share),
        Task::Sft => Split::of_documents(&tokens.ends()?, share),
    }
}

/// How tokens are cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Predictions of a window, at most.
    pub context: usize,
    /// Whether windows hold whole documents.
    pub packing: Packing,
    /// What is learnt: a conversation is truncated to a window, a document split.
    pub task: Task,
}

impl Cut {
    /// The cut of a configuration.
    pub fn of(config: &RunConfig) -> Cut {
        Cut { context: config.train.context, packing: config.data.packing, task: config.train.task }
    }

    fn pieces(&self, tokens: &Tokens, part: &Range<u64>) -> Result<Pieces, DataError> {
        let long = if self.task == Task::Sft { Overflow::Truncate } else { Overflow::Split };
        Pieces::cut(tokens, part, self.context as u64, long)
    }

    /// The windows that an evaluation of `part` reads, each by itself: of at most `limit` predictions from the
    /// start (0: all), but of one document at least. Empty where there is nothing to predict.
    ///
    /// # Errors
    /// Packed tokens that do not say where documents end, a read that fails.
    pub fn evaluation(
        &self,
        tokens: &Tokens,
        part: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Range<u64>>, DataError> {
        let limit = if limit == 0 { u64::MAX } else { limit as u64 };
        if self.packing == Packing::Stream {
            let end = part.end.min(part.start.saturating_add(limit).saturating_add(1));
            return Ok(evaluation_windows(&(part.start..end), self.context as u64).collect());
        }
        let (mut windows, mut read) = (self.pieces(tokens, &part)?.ranges, 0);
        let beyond = windows.iter().position(|window| {
            read += window.end - window.start - 1;
            read > limit
        });
        windows.truncate(beyond.map_or(windows.len(), |at| at.max(1)));
        Ok(windows)
    }
}

/// The windows of a run: what each step reads, and what its evaluations read.
#[derive(Debug)]
pub struct Reading {
    windows: Trained,
    held_out: Vec<Range<u64>>,
    tally: Option<PackingStats>,
}

#[derive(Debug)]
enum Trained {
    Stream(Windows),
    Documents(DocumentWindows),
}

impl Reading {
    /// The windows of a configuration, drawn from `seed`.
    ///
    /// # Errors
    /// A training part that does not hold a context and one more token, or no document to learn from; packed
    /// tokens that do not say where documents end; a read that fails.
    pub fn new(config: &RunConfig, source: &Source, seed: u64) -> Result<Reading, DataError> {
        let (cut, split) = (Cut::of(config), &source.split);
        let order = match config.train.order {
            config::Order::Random => WindowOrder::Random,
            config::Order::Shuffled => WindowOrder::Epochs,
        };
        let held_out = cut.evaluation(&source.tokens, split.validation.clone(), config.train.eval_tokens)?;
        let context = cut.context as u64;
        let (windows, tally) = match cut.packing {
            Packing::Stream => {
                (Trained::Stream(Windows::new(split.train.clone(), context, seed, order)?), None)
            }
            Packing::Documents => {
                let pieces = cut.pieces(&source.tokens, &split.train)?;
                let packed = DocumentWindows::pack(&pieces, context, seed, order)?;
                (Trained::Documents(packed), Some(pieces.packing_stats))
            }
        };
        Ok(Reading { windows, held_out, tally })
    }

    /// The `batch` samples of `step`: a function of the tokens, the configuration and the seed alone.
    ///
    /// # Errors
    /// A read that fails, an id outside the vocabulary.
    pub fn batch(&self, tokens: &Tokens, step: u64, batch: u32) -> Result<Vec<TokenWindow>, DataError> {
        match &self.windows {
            Trained::Stream(windows) => windows.batch(tokens, step, batch),
            Trained::Documents(windows) => windows.batch(tokens, step, batch),
        }
    }

    /// Windows of one epoch.
    pub fn per_epoch(&self) -> u64 {
        match &self.windows {
            Trained::Stream(windows) => windows.per_epoch(),
            Trained::Documents(windows) => windows.per_epoch(),
        }
    }

    /// The windows of an evaluation; none where nothing is held out that could be predicted.
    pub fn held_out(&self) -> &[Range<u64>] {
        &self.held_out
    }

    /// What was made of the documents that are trained on, where windows hold whole ones.
    pub fn tally(&self) -> Option<PackingStats> {
        self.tally
    }
}
