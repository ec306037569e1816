//! Products by `wgmma`: when they are used, and the tensor maps of their operands.
use super::handle::Gpu;
use super::launch::{At, Grid};
use crate::error::Result;

/// The products that use the `wgmma` kernels, where TMA can read their operands. The choice changes no bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WgmmaUse {
    #[default]
    Never,
    /// Those that fill the device with tiles of 128 x 128 outputs.
    LargeProducts,
    /// All of them: for tests.
    #[cfg(all(test, xtrain_emu))]
    EveryProduct,
}

/// Threads per block: two warpgroups of consumers and one of the producer.
const THREADS: u32 = 384;
/// Four stages of 64 k of 128 rows of both operands, and the alignment of the first one to 1024.
const SHARED: usize = 4 * 2 * 128 * 64 * 2 + 1024;

/// A row-major bf16 matrix `[rows, columns]` and the boxes of 64 columns and `box_rows` rows that TMA reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixBoxes {
    pub(crate) at: At,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) box_rows: usize,
}

impl MatrixBoxes {
    /// Columns of a box: 128 bytes, the width of the swizzle.
    pub(crate) const COLUMNS: usize = 64;

    /// Bytes from row to row.
    pub(crate) fn pitch(&self) -> usize {
        2 * self.columns
    }

    /// Whether TMA can read the matrix: its address and its rows are multiples of 16 bytes.
    pub(crate) fn is_readable(&self) -> bool {
        self.at.0.is_multiple_of(16) && self.pitch().is_multiple_of(16) && self.rows * self.columns > 0
    }
}

/// Words of a tensor map.
pub(crate) const MAP_WORDS: usize = 32;

impl Gpu {
    /// The grid of a `wgmma` kernel with this number of output tiles. Each block computes several tiles.
    pub(crate) fn wgmma_grid(&self, tiles: usize) -> Grid {
        let blocks = tiles.min(self.stream().launcher().multiprocessors());
        Grid::blocks([blocks, 1, 1], THREADS).shared(SHARED)
    }

    /// The device address of the tensor maps of these matrices, one after another; that of an absent one is zero. Valid
    /// for the calling operation only.
    pub(crate) fn tensor_maps(&self, matrices: &[Option<MatrixBoxes>]) -> Result<At> {
        let mut words = Vec::with_capacity(MAP_WORDS * matrices.len());
        for matrix in matrices {
            match matrix {
                Some(matrix) => words.extend(self.stream().launcher().tensor_map(matrix)?),
                None => words.extend([0; MAP_WORDS]),
            }
        }
        self.indices(&words)
    }
}
