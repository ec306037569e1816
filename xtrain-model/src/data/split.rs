//! The split into training and validation parts, and the windows of the validation part.
use std::ops::Range;

use super::error::DataError;

/// The training and validation parts of a sequence of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The training part.
    pub train: Range<u64>,
    /// The validation part.
    pub validation: Range<u64>,
}

impl Split {
    /// Reserves the last `fraction` of `len` tokens for validation: from trunc((1 - fraction) * len), in f64.
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

    /// Reserves the last `fraction` of the documents that end at `ends` for validation, rounded as in
    /// [`tail`](Split::tail). No document is in both parts.
    ///
    /// # Errors
    /// As [`tail`](Split::tail).
    pub fn of_documents(ends: &[u64], fraction: f64) -> Result<Split, DataError> {
        let documents = Split::tail(ends.len() as u64, fraction)?.train.end as usize;
        let at = documents.checked_sub(1).map_or(0, |last| ends[last]);
        Ok(Split { train: 0..at, validation: at..ends.last().copied().unwrap_or(0) })
    }
}

/// Adjacent windows of at most `context` predictions that cover `part`: every token except the first is a target
/// exactly once. The last window may be shorter. Each range contains the window's inputs and the token after them,
/// for [`Tokens::window`](super::Tokens::window).
pub fn evaluation_windows(part: &Range<u64>, context: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end, context) = (part.start, part.end, context.max(1));
    let predictions = end.saturating_sub(start).saturating_sub(1);
    (0..predictions.div_ceil(context)).map(move |i| {
        let start = start + i * context;
        start..end.min(start + context + 1)
    })
}
