//! A range of rows to copy.

/// `len` rows, read from row `from` on and written from row `to` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    /// The first row read.
    pub from: usize,
    /// The first row written.
    pub to: usize,
    /// The number of rows.
    pub len: usize,
}
