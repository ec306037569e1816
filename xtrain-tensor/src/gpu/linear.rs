//! Matrix products: choice of kernel and launch geometry.
pub(super) mod input;
pub(super) mod several;
pub(super) mod weights;
mod wgmma;

use super::{Arg, At, Buffer, Gpu, Grid, args};
use crate::device::gpu::WgmmaUse;
use crate::operands::{Samples, Weight};
use crate::{
    Dtype, Result, Tensor,
    faults::{self, Fault},
};

/// Epilogue of a matrix product: `residual + (sum + bias)`.
#[derive(Default, Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    /// `[outs]`, added to every row.
    pub(crate) bias: Option<&'a Tensor>,
    /// `[rows, outs]`, added last.
    pub(crate) residual: Option<&'a Tensor>,
}

/// Tile shapes. All of them compute the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    /// Few rows per block (GEMV-like); the chunks of a sum are computed in parallel.
    Skinny,
    /// 64 x 64 outputs per block.
    Small,
    /// 128 x 128 outputs per block.
    Large,
    /// Tiles of 128 x 128 outputs by `wgmma` and TMA, several per block: bf16 on Hopper.
    Wgmma,
    /// Tiles of 64 x 64 outputs by `wgmma`, one per block.
    SmallWgmma,
}

/// Number of SMs of an H200, used to choose tiles. The choice changes no bit.
pub(super) const MULTIPROCESSORS: usize = 132;

/// The tile kernels of one product: 128 x 128, then 64 x 64.
struct TileKernels {
    f32: [&'static str; 2],
    bf16: [&'static str; 2],
    /// Whether each operand is K-major in memory.
    k_major: [bool; 2],
}

/// The tile kernels `<op>_<dtype>_<side>`.
macro_rules! tile_kernels {
    ($op:literal, $k_major:expr) => {
        TileKernels {
            f32: [concat!($op, "_f32_128"), concat!($op, "_f32_64")],
            bf16: [concat!($op, "_bf16_128"), concat!($op, "_bf16_64")],
            k_major: $k_major,
        }
    };
}
use tile_kernels;

const FORWARD: TileKernels = tile_kernels!("linear", [true, true]);

/// The share of the SMs that are busy while blocks run one per SM.
fn occupied(blocks: usize) -> f64 {
    blocks as f64 / (blocks.div_ceil(MULTIPROCESSORS).max(1) * MULTIPROCESSORS) as f64
}

impl Tile {
    /// Chooses the tile of a product of `rows x columns` outputs.
    pub(super) fn of(rows: usize, columns: usize) -> Tile {
        Tile::of_blocks(Tile::Large.blocks(rows, columns))
    }

    /// Chooses the large tile if its last wave of blocks (one block per SM) leaves at most a quarter of the SMs idle.
    /// Several blocks of the small tile share an SM.
    fn of_blocks(large: usize) -> Tile {
        if occupied(large) >= 0.75 { Tile::Large } else { Tile::Small }
    }

    /// Outputs per block along either axis.
    fn side(self) -> usize {
        if matches!(self, Tile::Large | Tile::Wgmma) { 128 } else { 64 }
    }

    /// The number of blocks of `rows x columns` outputs.
    fn blocks(self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.side()) * columns.div_ceil(self.side())
    }

    /// Chooses the tile of a forward product. With few rows, the weights' bytes are the bound, which needs all SMs.
    pub(super) fn of_forward(rows: usize, outs: usize, dtype: Dtype) -> Tile {
        let skinny = match dtype {
            Dtype::BF16 => {
                let few_rows = rows <= 32 || rows <= 64 && outs.div_ceil(64) < MULTIPROCESSORS;
                few_rows && outs.div_ceil(16) <= MAX_GRID_Y
            }
            _ => rows <= 64,
        };
        if skinny { Tile::Skinny } else { Tile::of(rows, outs) }
    }

    /// This tile, or [`Tile::Wgmma`] if the device uses it for a product of these operands.
    fn or_wgmma(self, gpu: &Gpu, operands: &wgmma::Operands, dtype: Dtype) -> Tile {
        if operands.use_wgmma(gpu, self != Tile::Skinny, dtype) { Tile::Wgmma } else { self }
    }

    /// [`Tile::SmallWgmma`] instead of [`Tile::Wgmma`], if fewer than half of the SMs would have a tile of it.
    fn or_small(self, gpu: &Gpu, rows: usize, outs: usize) -> Tile {
        let few = 2 * self.blocks(rows, outs) < MULTIPROCESSORS;
        match self {
            Tile::Wgmma if few && gpu.wgmma() == WgmmaUse::TiledProducts => Tile::SmallWgmma,
            other => other,
        }
    }

    /// The kernel of this tile and its grid over `rows x columns` outputs.
    fn launch(self, square: &TileKernels, dtype: Dtype, [rows, columns]: [usize; 2]) -> (&'static str, Grid) {
        let (which, side) = (usize::from(self != Tile::Large), self.side());
        let blocks = [columns.div_ceil(side), rows.div_ceil(side), 1];
        if dtype == Dtype::BF16 {
            // four stages of 32 k: rows of 32 with pitch 40 (K-major), or 32 rows with pitch side + 8
            let stage = |&k_major: &bool| if k_major { side * 40 } else { 32 * (side + 8) };
            let shared = 4 * 2 * square.k_major.iter().map(stage).sum::<usize>();
            return (square.bf16[which], Grid::blocks(blocks, [256, 128][which]).shared(shared));
        }
        (square.f32[which], Grid::blocks(blocks, [256, 64][which]))
    }
}

/// Maximum grid size along y.
const MAX_GRID_Y: usize = 65_535;

/// Shared memory per block that every device since sm_80 supports (sm_86: 99 KiB).
const MAX_SHARED: usize = 96 << 10;

/// Blocks that share the chunks of a product's output tile: their number, such that no block is without a chunk. One, if
/// a block computes all chunks at once: the sums of several blocks take another round trip through memory.
fn chunk_groups(tiles: usize, width: usize, at_once: usize) -> usize {
    let chunks = width.div_ceil(256);
    if chunks <= at_once || faults::on(Fault::ProductsNotSplit) {
        return 1;
    }
    let wanted = MULTIPROCESSORS.div_ceil(tiles.max(1));
    let each = chunks.div_ceil(wanted.min(chunks).max(1)).max(1);
    chunks.div_ceil(each).max(1)
}

/// The last arguments of a skinny bf16 kernel, and the memory through which blocks share output tiles.
struct SharedTiles {
    /// The sums of chunks. `None`: each block computes all chunks of its tile.
    _parts: Option<Buffer>,
    /// Sums of chunks, one counter per tile, and the warps of a block that multiply. Other kernels have none.
    args: Vec<Arg>,
}

impl SharedTiles {
    /// For a launch of [`skinny_bf16`] with these rows, width and weight rows per block.
    fn of(
        gpu: &Gpu,
        grid: &Grid,
        [rows, width]: [usize; 2],
        weights: usize,
        kernel: (Tile, Dtype),
    ) -> Result<SharedTiles> {
        if kernel != (Tile::Skinny, Dtype::BF16) {
            return Ok(SharedTiles { _parts: None, args: Vec::new() });
        }
        let [values, operands] = skinny_bytes(rows, weights);
        let multipliers = (grid.shared as usize - values) / (values + operands);
        assert_eq!(
            grid.shared as usize,
            values + multipliers * (values + operands),
            "{rows} rows, {weights} weights"
        );
        let [x, y, groups] = grid.blocks.map(|n| n as usize);
        if groups <= 1 {
            return Ok(SharedTiles { _parts: None, args: args![At(0), At(0), multipliers].to_vec() });
        }
        let parts = gpu.buffer(4 * x * y * width.div_ceil(256) * weights * rows.min(32))?;
        let args = args![parts.arg(), gpu.counters(x * y)?, multipliers].to_vec();
        Ok(SharedTiles { args, _parts: Some(parts) })
    }
}

/// The skinny kernel of plain products for this shape, and its grid.
fn skinny([rows, outs, width]: [usize; 3], dtype: Dtype) -> (&'static str, Grid) {
    if dtype == Dtype::BF16 {
        let kernel = match rows {
            0..=8 => "linear_skinny_bf16_8",
            9..=16 => "linear_skinny_bf16_16",
            _ => "linear_skinny_bf16_32",
        };
        return (kernel, skinny_bf16(rows, outs.div_ceil(16), width, 16));
    }
    // the weights of 8 outputs, up to 2048 inputs each, and the chunk sums for 16 rows
    let chunks = width.div_ceil(256).min(8);
    let shared = 4 * (8 * (256 * chunks + 4) + chunks * 128);
    let kernel = if rows == 1 { "linear_gemv_f32" } else { "linear_skinny_f32" };
    (kernel, Grid::blocks([outs.div_ceil(8), rows.div_ceil(16), 1], 128).shared(shared))
}

/// Bytes of shared memory of a skinny kernel in bf16 with `weights` weight rows per block: its outputs, and the operands of
/// a chunk (rows of 256 with pitch 264).
fn skinny_bytes(rows: usize, weights: usize) -> [usize; 2] {
    let side = rows_per_block(rows);
    [4 * weights * side, 2 * 264 * (weights + rows.min(side))]
}

/// Rows of x per block of a skinny kernel in bf16.
fn rows_per_block(rows: usize) -> usize {
    rows.next_power_of_two().clamp(8, 32)
}

/// The grid of a skinny kernel in bf16 for `tiles` blocks along y of `weights` weight rows each.
fn skinny_bf16(rows: usize, tiles: usize, width: usize, weights: usize) -> Grid {
    let ([values, operands], side) = (skinny_bytes(rows, weights), rows_per_block(rows));
    let (x, chunks) = (rows.div_ceil(side), width.div_ceil(256));
    let at_once = ((MAX_SHARED - values) / (values + operands)).clamp(1, if side == 32 { 4 } else { 8 });
    let groups = chunk_groups(x * tiles, width, at_once);
    // balance the chunks over the rounds
    let own = chunks.div_ceil(groups).max(1);
    let multipliers = own.div_ceil(own.div_ceil(at_once));
    // all warps load the rows of a norm, and share the epilogue
    let warps = multipliers.max(if (5..=8).contains(&rows) { 8 } else { 4 });
    let shared = values + multipliers * (values + operands);
    Grid::blocks([x, tiles, groups], 32 * warps as u32).shared(shared)
}

/// Device operands of a forward product: `x [rows, width]` and `w [outs, width]` in `dtype`.
#[derive(Clone, Copy)]
pub(super) struct Forward {
    pub(super) x: At,
    pub(super) w: At,
    pub(super) shape: [usize; 3],
    pub(super) dtype: Dtype,
}

impl Forward {
    /// The tile of this product on a device.
    pub(super) fn tile(&self, gpu: &Gpu) -> Tile {
        let [rows, outs, _] = self.shape;
        let tile = Tile::of_forward(rows, outs, self.dtype);
        tile.or_wgmma(gpu, &self.by_tma(), self.dtype).or_small(gpu, rows, outs)
    }

    fn by_tma(&self) -> wgmma::Operands {
        let [rows, outs, width] = self.shape;
        wgmma::Operands::of_forward(self.x, [rows, width], &[(self.w, outs)], Tile::Wgmma.side())
    }
}

/// `x wᵀ` with an epilogue, rounded to `out`. The operands have been checked.
pub(crate) fn linear(
    gpu: &Gpu,
    x: &Tensor,
    w: &Weight,
    epilogue: Epilogue<'_>,
    out: Dtype,
) -> Result<Tensor> {
    let y = Tensor::on_gpu(gpu, &[x.shape()[0], w.out_features()], out)?;
    linear_into(gpu, x, w.matrix()?, epilogue, out, y.at(gpu, out)?)?;
    Ok(y)
}

/// [`linear`] with the matrix `w [outs, width]`, into `y [rows, outs]`.
pub(super) fn linear_into(
    gpu: &Gpu,
    x: &Tensor,
    w: &Tensor,
    epilogue: Epilogue<'_>,
    out: Dtype,
    y: At,
) -> Result<()> {
    let (shape, dtype) = ([x.shape()[0], w.shape()[0], x.width()], w.dtype());
    let product = Forward { x: x.at(gpu, dtype)?, w: w.at(gpu, dtype)?, shape, dtype };
    let tile = product.tile(gpu);
    // SAFETY: x [rows, width], w [outs, width], y [rows, outs], of the types named.
    unsafe { forward(gpu, product, epilogue, y, out, tile) }
}

/// [`linear`] into existing memory, with a given tile.
///
/// # Safety
/// The addresses hold operands of the product's shape and type, and room for its result.
pub(super) unsafe fn forward(
    gpu: &Gpu,
    product: Forward,
    epilogue: Epilogue<'_>,
    y: At,
    out: Dtype,
    tile: Tile,
) -> Result<()> {
    let Forward { x, w, shape: [rows, outs, width], dtype } = product;
    let or_null = |t: Option<&Tensor>| t.map_or(Ok(At(0)), |t| t.at(gpu, Dtype::F32));
    let (bias, residual) = (or_null(epilogue.bias)?, or_null(epilogue.residual)?);
    let (y, y_bf16) = if out == Dtype::BF16 { (At(0), y) } else { (y, At(0)) };
    let (kernel, grid) = match tile {
        Tile::Skinny => skinny([rows, outs, width], dtype),
        Tile::Wgmma => ("linear_bf16_wgmma", wgmma::grid(gpu, rows, outs.div_ceil(tile.side()))),
        Tile::SmallWgmma => {
            ("linear_bf16_wgmma_64", wgmma::small_grid(rows, width, outs.div_ceil(tile.side())))
        }
        _ => tile.launch(&FORWARD, dtype, [rows, outs]),
    };
    let shared = SharedTiles::of(gpu, &grid, [rows, width], 16, (tile, dtype))?;
    let operands = match tile {
        Tile::Wgmma => args![product.by_tma().maps(gpu)?].to_vec(),
        _ => args![x, w].to_vec(),
    };
    let rest = args![bias, residual, y, y_bf16, rows, outs, width];
    let args = [&operands, rest as &[Arg], &shared.args].concat();
    // SAFETY: as promised by the caller; one counter per output tile that blocks share.
    unsafe { gpu.launch(kernel, grid, &args) }
}

/// Chunk boundaries of a sum over the rows of samples: the first row of each chunk, and the end of the last one. A
/// chunk has at most 256 rows and never spans two samples.
fn bounds(samples: &Samples) -> Vec<u32> {
    let starts = samples.ranges().flat_map(|sample| sample.step_by(256));
    starts.chain([samples.rows()]).map(|row| row as u32).collect()
}

/// `db += rowsum dy`. The operands have been checked.
pub(crate) fn bias_gradient(gpu: &Gpu, db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
    let (outs, bounds) = (dy.width(), bounds(samples));
    let (dy, bounds_at) = (dy.at(gpu, Dtype::F32)?, gpu.indices(&bounds)?);
    // last, because zeros that no kernel has written count as written from then on
    let [start, db] = db.accumulator_at(gpu)?;
    let args = args![start, db, dy, bounds_at, bounds.len() - 1, outs];
    // SAFETY: db [outs], start null or db, dy [rows, outs], rows up to the last bound.
    unsafe { gpu.launch("linear_db_f32", Grid::blocks([outs.div_ceil(32), 1, 1], 256), args) }
}

#[cfg(test)]
pub(crate) mod tests;
