//! Matrix products: choice of kernel and launch geometry.
pub(super) mod input;
pub(super) mod several;
pub(super) mod weights;
mod wgmma;

use super::{Arg, At, Buffer, Gpu, Grid, args};
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

/// Blocks that share the chunks of a product's output tile: their number, such that no block is without a chunk.
fn chunk_groups(tiles: usize, width: usize) -> usize {
    let chunks = width.div_ceil(256);
    let wanted = if faults::on(Fault::ProductsNotSplit) { 1 } else { MULTIPROCESSORS.div_ceil(tiles.max(1)) };
    let each = chunks.div_ceil(wanted.min(chunks).max(1)).max(1);
    chunks.div_ceil(each).max(1)
}

/// The memory through which blocks share output tiles in a launch of a skinny bf16 kernel.
struct SharedTiles {
    /// The sums of chunks. `None`: each block computes all chunks of its tile.
    _parts: Option<Buffer>,
    /// The last arguments of the kernel: sums of chunks, and one counter per tile. Other kernels have none.
    args: Vec<Arg>,
}

impl SharedTiles {
    /// For a product of `rows` rows.
    fn of(gpu: &Gpu, grid: &Grid, [rows, width]: [usize; 2], kernel: (Tile, Dtype)) -> Result<SharedTiles> {
        if kernel != (Tile::Skinny, Dtype::BF16) {
            return Ok(SharedTiles { _parts: None, args: Vec::new() });
        }
        let [x, y, groups] = grid.blocks.map(|n| n as usize);
        if groups <= 1 {
            return Ok(SharedTiles { _parts: None, args: args![At(0), At(0)].to_vec() });
        }
        // 16 outputs and up to 32 rows per tile
        let parts = gpu.buffer(4 * x * y * width.div_ceil(256) * 16 * rows.min(32))?;
        Ok(SharedTiles { args: args![parts.arg(), gpu.counters(x * y)?].to_vec(), _parts: Some(parts) })
    }
}

/// The skinny kernel for this shape and its grid.
fn skinny([rows, outs, width]: [usize; 3], dtype: Dtype) -> (&'static str, Grid) {
    let chunks = width.div_ceil(256);
    if dtype == Dtype::BF16 {
        let (kernel, tiles) = match rows {
            0..=8 => ("linear_skinny_bf16_8", 1),
            9..=16 => ("linear_skinny_bf16_16", 2),
            _ => ("linear_skinny_bf16_32", 4),
        };
        // the total and one chunk per warp of 16 outputs x 8 rows each; per warp, operand rows of 256 with pitch 264
        let (values, lines) = (4 * 128 * tiles, 2 * 264 * (16 + rows.min(8 * tiles)));
        let max_warps = ((MAX_SHARED - values) / (values + lines)).min([8, 8, 4][tiles / 2]);
        let [x, y] = [rows.div_ceil(8 * tiles), outs.div_ceil(16)];
        let groups = chunk_groups(x * y, width);
        // balance the warps over the rounds
        let own = chunks.div_ceil(groups);
        let warps = own.div_ceil(own.div_ceil(max_warps).max(1));
        let blocks = [x, y, groups];
        return (kernel, Grid::blocks(blocks, 32 * warps as u32).shared(values + warps * (values + lines)));
    }
    // the weights of 8 outputs, up to 2048 inputs each, and the chunk sums for 16 rows
    let chunks = chunks.min(8);
    let shared = 4 * (8 * (256 * chunks + 4) + chunks * 128);
    let kernel = if rows == 1 { "linear_gemv_f32" } else { "linear_skinny_f32" };
    (kernel, Grid::blocks([outs.div_ceil(8), rows.div_ceil(16), 1], 128).shared(shared))
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
        let tile = Tile::of_forward(self.shape[0], self.shape[1], self.dtype);
        tile.or_wgmma(gpu, &self.by_tma(), self.dtype)
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
        _ => tile.launch(&FORWARD, dtype, [rows, outs]),
    };
    let shared = SharedTiles::of(gpu, &grid, [rows, width], (tile, dtype))?;
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
    let (dy, [start, db]) = (dy.at(gpu, Dtype::F32)?, db.accumulator_at(gpu)?);
    let args = args![start, db, dy, gpu.indices(&bounds)?, bounds.len() - 1, outs];
    // SAFETY: db [outs], start null or db, dy [rows, outs], rows up to the last bound.
    unsafe { gpu.launch("linear_db_f32", Grid::blocks([outs.div_ceil(32), 1, 1], 256), args) }
}

#[cfg(test)]
pub(crate) mod tests;
