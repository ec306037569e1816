//! Packing whole documents into windows, without predictions across document ends.
use std::collections::BTreeSet;
use std::ops::Range;

use xtrain_tensor::faults::{self, Fault};

use super::error::DataError;
use super::order::{WindowOrder, draw, epoch_window};
use super::split::evaluation_windows;
use super::token_window::TokenWindow;
use super::tokens::Tokens;

/// How to treat a document that is longer than a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Split it into adjacent windows. Each token except the first is predicted once.
    Split,
    /// Keep the beginning and discard the rest.
    Truncate,
}

/// Statistics of packed documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PackingStats {
    /// Number of documents.
    pub documents: u64,
    /// Number of documents longer than a window.
    pub long: u64,
    /// Number of documents without predictions: a single token, or no target in the part that is kept.
    pub empty: u64,
    /// Number of input tokens.
    pub inputs: u64,
}

/// Documents, split or truncated to pieces of at most `context` predictions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pieces {
    /// The token range of each piece: its inputs and the token after them. In the order of the tokens.
    pub ranges: Vec<Range<u64>>,
    /// Statistics of the documents.
    pub packing_stats: PackingStats,
}

impl Pieces {
    /// Cuts the documents of `part` into pieces of at most `context` predictions. A document that crosses a border of
    /// the part is cut there. Omits pieces without a target.
    ///
    /// # Errors
    /// Tokens without document ends; a context of 0; a read error.
    pub fn cut(
        tokens: &Tokens,
        part: &Range<u64>,
        context: u64,
        overflow: Overflow,
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
            let max_pieces = if overflow == Overflow::Truncate { 1 } else { usize::MAX };
            let stats = &mut pieces.packing_stats;
            for piece in evaluation_windows(&document, context).take(max_pieces) {
                let keeps_rest = faults::on(Fault::TrailingPieceWithoutTargetKept);
                let from = if keeps_rest { document.start } else { piece.start };
                if !masked || tokens.target_mask(from + 1..piece.end)?.contains(&true) {
                    stats.inputs += inputs(&piece);
                    pieces.ranges.push(piece);
                }
            }
            stats.documents += 1;
            stats.long += u64::from(inputs(&document) > context);
            stats.empty += u64::from(pieces.ranges.len() == before);
        }
        Ok(pieces)
    }
}

/// The number of input tokens of a piece: all except the last token.
fn inputs(piece: &Range<u64>) -> u64 {
    piece.end - piece.start - 1
}

/// Windows of whole documents with at most `context` predictions each. A window holds several documents if they fit.
/// The documents are packed once; an epoch shows each window once.
///
/// The packing is best fit decreasing: from the longest piece to the shortest (ties: data order), each piece goes
/// into the fullest window that has room for it (ties: the oldest window), or into a new window. Inside a window the
/// pieces are in data order.
#[derive(Debug, Clone)]
pub struct DocumentWindows {
    /// The pieces, window by window.
    pieces: Vec<Range<u64>>,
    /// The start of each window in `pieces`, followed by the end of the last one.
    starts: Vec<usize>,
    seed: u64,
    order: WindowOrder,
}

impl DocumentWindows {
    /// Packs pieces of at most `context` predictions.
    ///
    /// # Errors
    /// No pieces; a piece longer than the context.
    pub fn pack(
        pieces: &Pieces,
        context: u64,
        seed: u64,
        order: WindowOrder,
    ) -> Result<DocumentWindows, DataError> {
        let ranges = &pieces.ranges;
        if let Some(long) = ranges.iter().find(|piece| inputs(piece) > context) {
            let want = "pieces of at most `context` + 1 tokens";
            return Err(DataError::argument("windows", want, format!("{long:?}")));
        }
        if ranges.is_empty() {
            return Err(DataError::NoTargets { documents: pieces.packing_stats.documents, context });
        }
        let mut windows: Vec<Vec<usize>> = Vec::new();
        let mut room: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut by_length: Vec<usize> = (0..ranges.len()).collect();
        by_length.sort_by_key(|&at| std::cmp::Reverse(inputs(&ranges[at])));
        for at in by_length {
            let length = inputs(&ranges[at]);
            let (left, window) = if let Some(fullest) = room.range((length, 0)..).next().copied() {
                room.remove(&fullest);
                fullest
            } else {
                windows.push(Vec::new());
                (context, windows.len() - 1)
            };
            windows[window].push(at);
            if left > length {
                room.insert((left - length, window));
            }
        }
        let mut packed = DocumentWindows { pieces: Vec::new(), starts: vec![0], seed, order };
        for mut window in windows {
            window.sort_unstable();
            packed.pieces.extend(window.into_iter().map(|at| ranges[at].clone()));
            packed.starts.push(packed.pieces.len());
        }
        Ok(packed)
    }

    /// The number of windows per epoch.
    pub fn per_epoch(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    /// The pieces of example `index` of the `batch` examples of `step`.
    pub fn ranges(&self, step: u64, index: u32, batch: u32) -> &[Range<u64>] {
        let window = match self.order {
            WindowOrder::Random => draw(self.seed, step, index, self.per_epoch()),
            WindowOrder::Epochs => epoch_window(self.seed, step, index, batch, self.per_epoch()).window,
        } as usize;
        &self.pieces[self.starts[window]..self.starts[window + 1]]
    }

    /// The `batch` examples of `step`.
    ///
    /// # Errors
    /// A range outside `tokens`; a read error; an id outside the vocabulary.
    pub fn batch(&self, tokens: &Tokens, step: u64, batch: u32) -> Result<Vec<TokenWindow>, DataError> {
        let example = |index| {
            let mut example = TokenWindow::default();
            for piece in self.ranges(step, index, batch) {
                example.append(tokens.window(piece.clone())?);
            }
            Ok(example)
        };
        (0..batch).map(example).collect()
    }
}

#[cfg(test)]
mod tests;
