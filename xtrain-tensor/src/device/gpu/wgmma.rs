//! Launches of products by `wgmma`: their grids, and the tensor maps of their operands.
use super::handle::Gpu;
use super::launch::Grid;

/// Threads per block: two warpgroups of consumers and one of the producer.
const THREADS: u32 = 384;
/// Six stages of 64 k of 128 rows of both operands, and the alignment of the first one to 1024.
const SHARED: usize = 6 * 2 * 128 * 64 * 2 + 1024;

impl Gpu {
    /// The grid of a `wgmma` kernel with this number of output tiles. Each block computes several tiles.
    pub(crate) fn wgmma_grid(&self, tiles: usize) -> Grid {
        let blocks = tiles.min(self.stream().launcher().multiprocessors());
        Grid::blocks([blocks, 1, 1], THREADS).shared(SHARED)
    }
}
