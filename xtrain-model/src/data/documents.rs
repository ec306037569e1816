//! Whole documents in windows, with no prediction across their ends.
use std::collections::BTreeSet;
use std::ops::Range;

use super::order::{draw, turn};
use super::{DataError, Order, TokenWindow, Tokens, evaluation_windows};

/// What becomes of a document that is longer than a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// It is cut into windows side by side: each of its tokens but the first is predicted once.
    Split,
    /// Its beginning is kept, and the rest is not read.
    Truncate,
}

/// What was made of the documents of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PackingStats {
    /// Documents.
    pub documents: u64,
    /// Those that are longer than a window.
    pub long: u64,
    /// Those of which nothing is left to predict: a single token, or no target in what is read.
    pub empty: u64,
    /// Tokens that are read.
    pub inputs: u64,
}

/// The documents of a part of some tokens, cut to windows of at most `context` predictions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pieces {
    /// The tokens of each piece: its inputs, and the one after them; in the order of the tokens.
    pub ranges: Vec<Range<u64>>,
    /// What was made of them.
    pub tally: PackingStats,
}

impl Pieces {
    /// Cuts the documents of `part`; one that a border of the part falls into is cut there. A piece without a
    /// target is left out.
    ///
    /// # Errors
    /// Tokens that do not say where documents end, a context of 0, a read that fails.
    pub fn cut(
        tokens: &Tokens,
        part: &Range<u64>,
        (context, long): (u64, Overflow),
    ) -> Result<Pieces, DataError> {
        if context == 0 {
            return Err(DataError::argument("windows", "a context of at least 1", 0));
        }
        let (masked, mut pieces, mut start) = (tokens.is_masked(), Pieces::default(), 0);
        for end in tokens.ends()? {
            let document = part.start.max(start)..part.end.min(end);
            start = end;
            if document.is_empty() {
                continue;
            }
            let before = pieces.ranges.len();
            let most = if long == Overflow::Truncate { 1 } else { usize::MAX };
            for piece in evaluation_windows(document.clone(), context).take(most) {
                if !masked || tokens.learnt(piece.start + 1..piece.end)?.contains(&true) {
                    pieces.tally.inputs += inputs(&piece);
                    pieces.ranges.push(piece);
                }
            }
            pieces.tally.documents += 1;
            pieces.tally.long += u64::from(inputs(&document) > context);
            pieces.tally.empty += u64::from(pieces.ranges.len() == before);
        }
        Ok(pieces)
    }
}

/// What is read of a piece: all but its last token.
fn inputs(piece: &Range<u64>) -> u64 {
    piece.end - piece.start - 1
}

/// Windows of whole documents: at most `context` predictions each, several documents where they fit. They are
/// packed once, and an epoch shows each of them once.
///
/// The rule: from the longest piece to the shortest (of equal ones the first in the data first), each goes into
/// the fullest window that still holds it (of equally full ones the oldest), or into a new one. Inside a window
/// the pieces stand in the order of the data.
#[derive(Debug, Clone)]
pub struct DocumentWindows {
    /// The pieces, window by window.
    pieces: Vec<Range<u64>>,
    /// Where in `pieces` each window begins, and the end.
    begins: Vec<usize>,
    seed: u64,
    order: Order,
}

impl DocumentWindows {
    /// Packs pieces of at most `context` predictions.
    ///
    /// # Errors
    /// No piece; one that is longer than the context.
    pub fn pack(
        pieces: &Pieces,
        context: u64,
        (seed, order): (u64, Order),
    ) -> Result<DocumentWindows, DataError> {
        let ranges = &pieces.ranges;
        if let Some(long) = ranges.iter().find(|piece| inputs(piece) > context) {
            let want = "pieces of at most a context and one more token";
            return Err(DataError::argument("windows", want, format!("{long:?}")));
        }
        if ranges.is_empty() {
            let what = "the training data (a document with something to predict)".into();
            return Err(DataError::TooShort { what, want: 2, got: pieces.tally.documents });
        }
        let mut windows: Vec<Vec<usize>> = Vec::new();
        let mut room: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut by_length: Vec<usize> = (0..ranges.len()).collect();
        by_length.sort_by_key(|&at| std::cmp::Reverse(inputs(&ranges[at])));
        for at in by_length {
            let length = inputs(&ranges[at]);
            let (left, window) = match room.range((length, 0)..).next().copied() {
                Some(fullest) => {
                    room.remove(&fullest);
                    fullest
                }
                None => {
                    windows.push(Vec::new());
                    (context, windows.len() - 1)
                }
            };
            windows[window].push(at);
            if left > length {
                room.insert((left - length, window));
            }
        }
        let mut packed = DocumentWindows { pieces: Vec::new(), begins: vec![0], seed, order };
        for mut window in windows {
            window.sort_unstable();
            packed.pieces.extend(window.into_iter().map(|at| ranges[at].clone()));
            packed.begins.push(packed.pieces.len());
        }
        Ok(packed)
    }

    /// Windows of one epoch.
    pub fn per_epoch(&self) -> u64 {
        self.begins.len() as u64 - 1
    }

    /// The pieces of sample `index` of `batch`, in `step`.
    pub fn ranges(&self, step: u64, index: u32, batch: u32) -> &[Range<u64>] {
        let place = match self.order {
            Order::Random => draw((self.seed, step, index), self.per_epoch()),
            Order::Epochs => {
                let number = u128::from(step) * u128::from(batch) + u128::from(index);
                turn(self.seed, number, self.per_epoch()).place
            }
        } as usize;
        &self.pieces[self.begins[place]..self.begins[place + 1]]
    }

    /// The `batch` samples of `step`.
    ///
    /// # Errors
    /// A part that `tokens` do not have, a read that fails, an id outside the vocabulary.
    pub fn batch(&self, tokens: &Tokens, step: u64, batch: u32) -> Result<Vec<TokenWindow>, DataError> {
        let sample = |index| {
            let mut sample = TokenWindow::default();
            for piece in self.ranges(step, index, batch) {
                sample.append(tokens.excerpt(piece.clone())?);
            }
            Ok(sample)
        };
        (0..batch).map(sample).collect()
    }
}

#[cfg(test)]
mod tests;
