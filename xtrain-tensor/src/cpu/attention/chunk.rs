//! Rows of a chunk of keys or values.

/// Keys or values of a chunk. The row of slot j starts at `j * stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub(super) rows: &'a [f32],
    pub(super) stride: usize,
}
