//! The rotation of the rows of a tensor.
use super::rope_table::RopeTable;

/// The RoPE angles of `N` rows.
#[derive(Debug, Clone, Copy)]
pub struct RopeArgs<'a> {
    /// Cosines and sines by position.
    pub table: &'a RopeTable,
    /// The absolute position of each row, `[N]`, below [`RopeTable::max_positions`].
    pub positions: &'a [u32],
}
