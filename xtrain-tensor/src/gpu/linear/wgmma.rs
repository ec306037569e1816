//! Forward products by `wgmma` (kernels/linear_wgmma.cu): which ones, their tensor maps and their grids.
use crate::device::gpu::{At, Gpu, Grid, MatrixBoxes, WgmmaUse};
use crate::{Dtype, Result};

/// Rows of x, and rows of weights, of an output tile.
const SIDE: usize = 128;

/// The operands `x [rows, width]` and up to three weights `[outs, width]` of a product in bf16. An absent weight has no
/// outputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) x: At,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) weights: &'a [(At, usize)],
}

impl Operands<'_> {
    fn boxes(&self, box_rows: usize) -> impl Iterator<Item = Option<MatrixBoxes>> {
        let matrix = |at, rows, box_rows| MatrixBoxes { at, rows, columns: self.width, box_rows };
        let x = matrix(self.x, self.rows, SIDE);
        let weights =
            self.weights.iter().map(move |&(at, outs)| (outs > 0).then(|| matrix(at, outs, box_rows)));
        [Some(x)].into_iter().chain(weights)
    }

    /// Whether the device uses `wgmma` for such a product and TMA can read the operands. `large`: the product fills the
    /// device with tiles of 128 x 128 outputs.
    pub(super) fn use_wgmma(&self, gpu: &Gpu, large: bool, dtype: Dtype) -> bool {
        let wanted = match gpu.wgmma() {
            WgmmaUse::Never => false,
            WgmmaUse::LargeProducts => large,
            #[cfg(all(test, xtrain_emu))]
            WgmmaUse::EveryProduct => true,
        };
        let readable = || self.boxes(SIDE).flatten().all(|matrix| matrix.is_readable());
        wanted && dtype == Dtype::BF16 && readable()
    }

    /// The tensor maps, with the weights in boxes of `box_rows` rows.
    pub(super) fn maps(&self, gpu: &Gpu, box_rows: usize) -> Result<At> {
        gpu.tensor_maps(&self.boxes(box_rows).collect::<Vec<_>>())
    }
}

/// The grid of a product with this number of tiles of weights.
pub(super) fn grid(gpu: &Gpu, rows: usize, weight_tiles: usize) -> Grid {
    gpu.wgmma_grid(rows.div_ceil(SIDE) * weight_tiles)
}
