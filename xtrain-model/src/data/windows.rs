//! Training windows of running text: a pure function of (seed, step).
use std::ops::Range;

use super::error::DataError;
use super::order::{EpochWindow, WindowOrder, draw, epoch_window};
use super::permutation::ROUNDS;
use super::token_window::TokenWindow;
use super::tokens::Tokens;

/// The training windows of a part: `context + 1` tokens and `context` predictions each.
///
/// The windows have no state to save: a run that resumes at step k requests the windows of step k.
#[derive(Debug, Clone)]
pub struct Windows {
    part: Range<u64>,
    context: u64,
    seed: u64,
    order: WindowOrder,
}

impl Windows {
    /// Windows of `context` predictions in `part`.
    ///
    /// # Errors
    /// A context of 0; a part that does not hold `context + 1` tokens.
    pub fn new(part: Range<u64>, context: u64, seed: u64, order: WindowOrder) -> Result<Windows, DataError> {
        if context == 0 {
            return Err(DataError::argument("windows", "a context of at least 1", 0));
        }
        let got = part.end.saturating_sub(part.start);
        if got <= context {
            let what = "the training data (a context and one more token)".into();
            return Err(DataError::TooShort { what, want: context.saturating_add(1), got });
        }
        Ok(Windows { part, context, seed, order })
    }

    /// The number of windows per epoch: the number of adjacent windows that fit.
    pub fn per_epoch(&self) -> u64 {
        (self.part.end - self.part.start - 1) / self.context
    }

    /// The token range of example `index` of the `batch` examples of `step`.
    pub fn range(&self, step: u64, index: u32, batch: u32) -> Range<u64> {
        let length = self.part.end - self.part.start;
        let offset = match self.order {
            WindowOrder::Random => draw(self.seed, step, index, length - self.context),
            WindowOrder::Epochs => {
                let leftover = (length - 1) % self.context;
                let EpochWindow { epoch, window } =
                    epoch_window(self.seed, step, index, batch, self.per_epoch());
                draw(self.seed, epoch, ROUNDS as u32, leftover + 1) + window * self.context
            }
        };
        let start = self.part.start + offset;
        start..start + self.context + 1
    }

    /// The `batch` examples of `step`.
    ///
    /// # Errors
    /// A range outside `tokens`; a read error; an id outside the vocabulary.
    pub fn batch(&self, tokens: &Tokens, step: u64, batch: u32) -> Result<Vec<TokenWindow>, DataError> {
        (0..batch).map(|index| tokens.window(self.range(step, index, batch))).collect()
    }
}
