//! Products by `wgmma` (kernels/linear_wgmma.cu, linear_wgmma_gradients.cu): which ones, their tensor maps and their
//! grids.
use std::collections::HashMap;

use crate::device::gpu::{Arg, At, Gpu, Grid, MatrixBoxes, WgmmaUse, args};
use crate::faults::{self, Fault};
use crate::operands::Samples;
use crate::{Dtype, Result};

/// Rows of the first operand, and of the second one, of an output tile.
const SIDE: usize = 128;
/// Rows of a stage.
const DEPTH: usize = 64;
/// Maximum number of tensor maps of an operand of a weight gradient: a bound on the size of the list of a launch.
const MAX_SAMPLE_MAPS: usize = 32;

/// The matrices of a product in bf16 as TMA reads them, in the order of their tensor maps. `None`: an absent weight.
#[derive(Debug)]
pub(super) struct Operands(Vec<Option<MatrixBoxes>>);

impl Operands {
    /// `x [rows, width]` and weights `[outs, width]`, in boxes of `box_rows` rows. An absent weight has no outputs.
    pub(super) fn of_forward(
        x: At,
        [rows, width]: [usize; 2],
        weights: &[(At, usize)],
        box_rows: usize,
    ) -> Operands {
        let x = MatrixBoxes { at: x, rows, columns: width, box_rows: SIDE };
        let weight = |&(at, outs)| present(MatrixBoxes { at, rows: outs, columns: width, box_rows });
        Operands([Some(x)].into_iter().chain(weights.iter().map(weight)).collect())
    }

    /// All `dy_i [rows, outs_i]`, then all `w_i [outs_i, width]`, of `(dy_i, w_i, outs_i)`.
    pub(super) fn of_input_gradient(parts: &[(At, At, usize)], [rows, width]: [usize; 2]) -> Operands {
        let dy = |&(at, _, outs)| present(MatrixBoxes { at, rows, columns: outs, box_rows: SIDE });
        let w = |&(_, at, outs)| present(MatrixBoxes { at, rows: outs, columns: width, box_rows: DEPTH });
        Operands(parts.iter().map(dy).chain(parts.iter().map(w)).collect())
    }

    /// Whether the device uses `wgmma` for such a product and TMA can read the operands. `tiled`: its kernel computes
    /// tiles of 64 rows or more.
    pub(super) fn use_wgmma(&self, gpu: &Gpu, tiled: bool, dtype: Dtype) -> bool {
        let wanted = match gpu.wgmma() {
            WgmmaUse::Never => false,
            WgmmaUse::TiledProducts => tiled,
            #[cfg(all(test, xtrain_emu))]
            WgmmaUse::EveryProduct => true,
        };
        wanted && dtype == Dtype::BF16 && self.0.iter().flatten().all(MatrixBoxes::is_readable)
    }

    /// The tensor maps.
    pub(super) fn maps(&self, gpu: &Gpu) -> Result<At> {
        gpu.tensor_maps(&self.0)
    }
}

fn present(matrix: MatrixBoxes) -> Option<MatrixBoxes> {
    (matrix.rows * matrix.columns > 0).then_some(matrix)
}

/// The grid of a product with this number of tiles of weights.
pub(super) fn grid(gpu: &Gpu, rows: usize, weight_tiles: usize) -> Grid {
    gpu.wgmma_grid(rows.div_ceil(SIDE) * weight_tiles)
}

/// The grid of a product in tiles of 64 x 64 outputs: a warpgroup for each chunk of `width`, at most three. Each has four
/// stages of 64 k, all but one have chunk sums, and the first stage is aligned to 1024.
pub(super) fn small_grid(rows: usize, width: usize, weight_tiles: usize) -> Grid {
    let (stage, sums) = (2 * 64 * 64 * 2, 64 * 64 * 4);
    let (groups, threads) = match width.div_ceil(256) {
        0 | 1 => (1, 128),
        2 => (2, 256),
        _ => (3, 384),
    };
    let shared = groups * 4 * stage + (groups - 1) * sums + 1024;
    Grid::blocks([weight_tiles, rows.div_ceil(64), 1], threads).shared(shared)
}

/// The rows of samples as the tensor maps of a weight gradient divide them. A map ends with the last row of a sample, so
/// that zeros follow it. Samples of whole stages share a map with the next one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SampleMaps {
    /// For each sample with rows: its map, its first row there, and its number of rows; `SampleRows` of the kernel.
    rows: Vec<u32>,
    /// First row and end of each map.
    maps: Vec<[usize; 2]>,
}

impl SampleMaps {
    pub(super) fn of(samples: &Samples) -> SampleMaps {
        let mut all = SampleMaps::default();
        for sample in samples.ranges().filter(|sample| !sample.is_empty()) {
            let shared = |&[first, end]: &[usize; 2]| {
                (end - first).is_multiple_of(DEPTH) || faults::on(Fault::SampleEndsWithinMap)
            };
            match all.maps.last_mut().filter(|map| shared(map)) {
                Some(map) => map[1] = sample.end,
                None => all.maps.push([sample.start, sample.end]),
            }
            let first = all.maps.last().map_or(0, |map| map[0]);
            all.rows.extend([all.maps.len() - 1, sample.start - first, sample.len()].map(|n| n as u32));
        }
        all
    }

    /// The boxes of a matrix `[rows, columns]` in bf16, for each map.
    fn boxes(&self, At(at): At, columns: usize) -> impl Iterator<Item = MatrixBoxes> + '_ {
        self.maps.iter().map(move |&[first, end]| MatrixBoxes {
            at: At(at + (2 * first * columns) as u64),
            rows: end - first,
            columns,
            box_rows: DEPTH,
        })
    }

    /// The matrices of `(address, columns)` that [`Operands::use_wgmma`] checks. `None`: there are too many maps.
    pub(super) fn operands(&self, matrices: impl Iterator<Item = (At, usize)>) -> Option<Operands> {
        let boxes = matrices.flat_map(|(at, columns)| self.boxes(at, columns).map(Some));
        (self.maps.len() <= MAX_SAMPLE_MAPS).then(|| Operands(boxes.collect()))
    }

    /// The addresses of the tensor maps of matrices `(address, columns)`. Equal ones share their maps.
    pub(super) fn maps_of(&self, gpu: &Gpu, matrices: &[(At, usize)]) -> Result<Vec<At>> {
        let (mut places, mut distinct) = (HashMap::new(), Vec::new());
        let mut place = |&(at, columns): &(At, usize)| {
            *places.entry((at.0, columns)).or_insert_with(|| {
                distinct.push((at, columns));
                distinct.len() - 1
            })
        };
        let of_matrix: Vec<usize> = matrices.iter().map(&mut place).collect();
        let boxes: Vec<_> = distinct.iter().flat_map(|&(at, n)| self.boxes(at, n).map(Some)).collect();
        let At(first) = gpu.tensor_maps(&boxes)?;
        let bytes = (MatrixBoxes::MAP_BYTES * self.maps.len()) as u64;
        Ok(of_matrix.into_iter().map(|place| At(first + place as u64 * bytes)).collect())
    }

    /// The last arguments of the kernel: the samples, their number, and the number of maps.
    pub(super) fn args(&self, gpu: &Gpu) -> Result<[Arg; 3]> {
        Ok(*args![gpu.indices(&self.rows)?, self.rows.len() / 3, self.maps.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::{SampleMaps, Samples};

    #[test]
    fn a_map_ends_with_a_sample_that_ends_within_a_stage() {
        let of = |lengths: &[usize]| SampleMaps::of(&Samples::of_lengths(lengths.iter().copied()));
        // two samples of whole stages and one that ends within a stage share a map; the next one has its own
        let all = of(&[64, 128, 0, 70, 3]);
        assert_eq!(all.maps, [[0, 262], [262, 265]]);
        assert_eq!(all.rows, [0, 0, 64, 0, 64, 128, 0, 192, 70, 1, 0, 3]);
        assert_eq!(of(&[1024; 8]).maps.len(), 1);
        assert_eq!(of(&[]), SampleMaps::default());
    }
}
