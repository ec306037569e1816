//! Training and validation parts, and the windows that cover the latter.
use std::ops::Range;

use super::DataError;

/// Two parts of a sequence of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// What is trained on.
    pub train: Range<u64>,
    /// What the validation loss is of.
    pub validation: Range<u64>,
}

impl Split {
    /// The last `fraction` of `len` tokens for validation: from trunc((1 - fraction) * len), in f64.
    ///
    /// # Errors
    /// A fraction outside 0 <= fraction < 1.
    pub fn tail(len: u64, fraction: f64) -> Result<Split, DataError> {
        if !(0.0..1.0).contains(&fraction) {
            return Err(DataError::argument("split", "a fraction from 0 to below 1", fraction));
        }
        let at = if fraction == 0.0 { len } else { ((1.0 - fraction) * len as f64) as u64 };
        Ok(Split { train: 0..at, validation: at..len })
    }

    /// The last `fraction` of the documents that end at `ends` for validation, counted as [`tail`](Split::tail)
    /// counts tokens: no document is in both parts.
    ///
    /// # Errors
    /// As [`tail`](Split::tail).
    pub fn of_documents(ends: &[u64], fraction: f64) -> Result<Split, DataError> {
        let documents = Split::tail(ends.len() as u64, fraction)?.train.end as usize;
        let at = documents.checked_sub(1).map_or(0, |last| ends[last]);
        Ok(Split { train: 0..at, validation: at..ends.last().copied().unwrap_or(0) })
    }
}

/// Windows of at most `context` predictions, one after the other, that cover `part`: every token of it but the
/// first is a target exactly once, the last window may be shorter. Each range holds the window's inputs and the
/// one token after them, as [`Tokens::excerpt`](super::Tokens::excerpt) wants it.
pub fn evaluation_windows(part: Range<u64>, context: u64) -> impl Iterator<Item = Range<u64>> {
    let context = context.max(1);
    let predictions = part.end.saturating_sub(part.start).saturating_sub(1);
    (0..predictions.div_ceil(context)).map(move |i| {
        let start = part.start + i * context;
        start..part.end.min(start + context + 1)
    })
}
