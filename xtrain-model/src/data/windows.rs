//! What a step trains on: a pure function of (seed, step).
use std::ops::Range;

use super::order::{Epoch, draw, turn};
use super::permutation::ROUNDS;
use super::{DataError, Order, TokenWindow, Tokens};

/// The training windows of a part: `context + 1` tokens each, `context` predictions.
///
/// Nothing is advanced, so nothing has to be saved: a run that resumes at step k asks for step k.
#[derive(Debug, Clone)]
pub struct Windows {
    part: Range<u64>,
    context: u64,
    seed: u64,
    order: Order,
}

impl Windows {
    /// Windows of `context` predictions in `part`.
    ///
    /// # Errors
    /// A context of 0; a part that does not hold `context + 1` tokens.
    pub fn new(part: Range<u64>, context: u64, seed: u64, order: Order) -> Result<Windows, DataError> {
        if context == 0 {
            return Err(DataError::argument("windows", "a context of at least 1", 0));
        }
        let got = part.end.saturating_sub(part.start);
        if got <= context {
            let want = context.saturating_add(1);
            return Err(DataError::TooShort {
                what: "the training data (a context and one more)".into(),
                want,
                got,
            });
        }
        Ok(Windows { part, context, seed, order })
    }

    /// Windows of one epoch: how many fit side by side.
    pub fn per_epoch(&self) -> u64 {
        (self.part.end - self.part.start - 1) / self.context
    }

    /// The tokens of sample `index` of `batch`, in `step`.
    pub fn range(&self, step: u64, index: u32, batch: u32) -> Range<u64> {
        let length = self.part.end - self.part.start;
        let offset = match self.order {
            Order::Random => draw((self.seed, step, index), length - self.context),
            Order::Epochs => {
                let leftover = (length - 1) % self.context;
                let number = u128::from(step) * u128::from(batch) + u128::from(index);
                let Epoch { epoch, place } = turn(self.seed, number, self.per_epoch());
                draw((self.seed, epoch, ROUNDS as u32), leftover + 1) + place * self.context
            }
        };
        let start = self.part.start + offset;
        start..start + self.context + 1
    }

    /// The `batch` samples of `step`.
    ///
    /// # Errors
    /// A part that `tokens` do not have, a read that fails, an id outside the vocabulary.
    pub fn batch(&self, tokens: &Tokens, step: u64, batch: u32) -> Result<Vec<TokenWindow>, DataError> {
        (0..batch).map(|index| tokens.excerpt(self.range(step, index, batch))).collect()
    }
}
