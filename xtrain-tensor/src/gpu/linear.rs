//! Matrix products: which kernel, over which grid.
pub(super) mod several;

use super::{At, Gpu, Grid, args};
use crate::operands::{Samples, Weight};
use crate::{
    Dtype, Result, Tensor,
    faults::{self, Fault},
};

/// What is done with a sum of products before it leaves.
#[derive(Default, Clone, Copy)]
pub(crate) struct After<'a> {
    /// Added to every row.
    pub(crate) bias: Option<&'a Tensor>,
    /// Added last, of the product's shape.
    pub(crate) residual: Option<&'a Tensor>,
    /// The norm of what is then there, taken by the last block of each few rows: gain, eps, and where it goes.
    pub(crate) norm: Option<(&'a Tensor, f32, &'a Tensor)>,
}

/// Kernels of one order and different tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    /// A few rows a block, all chunks of a sum beside each other.
    Few,
    /// 64 x 64 outputs a block.
    Small,
    /// 128 x 128 outputs a block.
    Large,
}

/// Of an H200; another device's number changes no bit.
const MULTIPROCESSORS: usize = 132;

/// The square kernels of one product, the larger first.
struct Square {
    f32: [&'static str; 2],
    bf16: [&'static str; 2],
    /// Whether each operand lies along the sum, and not across it.
    along: [bool; 2],
}

const FORWARD: Square = Square {
    f32: ["linear_f32_128", "linear_f32_64"],
    bf16: ["linear_bf16_128", "linear_bf16_64"],
    along: [true, true],
};
const INPUT: Square = Square {
    f32: ["linear_dx_f32_128", "linear_dx_f32_64"],
    bf16: ["linear_dx_bf16_128", "linear_dx_bf16_64"],
    along: [false, true],
};
const WEIGHTS: Square = Square {
    f32: ["linear_dw_f32_128", "linear_dw_f32_64"],
    bf16: ["linear_dw_bf16_128", "linear_dw_bf16_64"],
    along: [false, false],
};

impl Tile {
    /// The large tile where the last round of its blocks, one a multiprocessor, leaves at most a quarter
    /// of the device idle; several of the small one share a multiprocessor.
    pub(super) fn of(below: usize, across: usize) -> Tile {
        let blocks = below.div_ceil(128) * across.div_ceil(128);
        let rounds = blocks.div_ceil(MULTIPROCESSORS);
        if 4 * blocks >= 3 * rounds * MULTIPROCESSORS { Tile::Large } else { Tile::Small }
    }

    /// The tile of a forward product: few rows are bound by the weights' bytes, which want all
    /// multiprocessors.
    pub(super) fn of_forward(rows: usize, outs: usize, dtype: Dtype) -> Tile {
        let few = match dtype {
            Dtype::BF16 => rows <= 32 || rows <= 64 && outs.div_ceil(64) < MULTIPROCESSORS,
            _ => rows <= 64,
        };
        let few = few && (dtype != Dtype::BF16 || outs.div_ceil(16) <= MOST_ALONG_Y);
        if few { Tile::Few } else { Tile::of(rows, outs) }
    }

    /// The kernel of this tile, and its grid over `below x across` outputs.
    fn launch(self, square: &Square, dtype: Dtype, [below, across]: [usize; 2]) -> (&'static str, Grid) {
        let (at, side) = if self == Tile::Large { (0, 128) } else { (1, 64) };
        let blocks = [across.div_ceil(side), below.div_ceil(side), 1];
        if dtype == Dtype::BF16 {
            // four stages of 32 k: a line of 32 and 8 between lines, or 32 lines of a side and 8
            let stage = |&along: &bool| if along { side * 40 } else { 32 * (side + 8) };
            let shared = 4 * 2 * square.along.iter().map(stage).sum::<usize>();
            return (square.bf16[at], Grid::blocks(blocks, [256, 128][at]).shared(shared));
        }
        (square.f32[at], Grid::blocks(blocks, [256, 64][at]))
    }
}

/// Blocks of a grid along y.
const MOST_ALONG_Y: usize = 65_535;

/// Shared memory that a block may have on every device since sm_80 (sm_86: 99 KiB).
const SHARED: usize = 96 << 10;

/// The kernel for a few rows, and its grid.
fn few([rows, outs, width]: [usize; 3], dtype: Dtype) -> (&'static str, Grid) {
    let chunks = width.div_ceil(256);
    if dtype == Dtype::BF16 {
        let (kernel, tiles) = match rows {
            0..=8 => ("linear_skinny_bf16_8", 1),
            9..=16 => ("linear_skinny_bf16_16", 2),
            _ => ("linear_skinny_bf16_32", 4),
        };
        // of 16 outputs by 8 rows: the total and each warp's chunk; of each warp: lines of 256 and 8 between
        let (values, lines) = (4 * 128 * tiles, 2 * 264 * (16 + rows.min(8 * tiles)));
        let most = ((SHARED - values) / (values + lines)).min([8, 8, 4][tiles / 2]);
        // as many warps in each round
        let warps = chunks.div_ceil(chunks.div_ceil(most));
        let blocks = [rows.div_ceil(8 * tiles), outs.div_ceil(16), 1];
        return (kernel, Grid::blocks(blocks, 32 * warps as u32).shared(values + warps * (values + lines)));
    }
    // the weights of 8 outputs, up to 2048 inputs of each, and their chunks' sums for 16 rows
    let chunks = chunks.min(8);
    let shared = 4 * (8 * (256 * chunks + 4) + chunks * 128);
    let kernel = if rows == 1 { "linear_gemv_f32" } else { "linear_skinny_f32" };
    (kernel, Grid::blocks([outs.div_ceil(8), rows.div_ceil(16), 1], 128).shared(shared))
}

/// Where the operands of a forward product lie: `x [rows, width]` and `w [outs, width]` in `dtype`.
#[derive(Clone, Copy)]
pub(super) struct Forward {
    pub(super) x: At,
    pub(super) w: At,
    pub(super) shape: [usize; 3],
    pub(super) dtype: Dtype,
}

/// `x wᵀ`, then what comes `after`, rounded to `out`; all operands have been checked.
pub(crate) fn linear(gpu: &Gpu, x: &Tensor, w: &Weight, after: After<'_>, out: Dtype) -> Result<Tensor> {
    let shape = [x.shape()[0], w.out_features(), w.in_features()];
    let y = Tensor::on_gpu(gpu, &shape[..2], out)?;
    let product = Forward { x: x.at(gpu, w.dtype())?, w: w.at(gpu)?, shape, dtype: w.dtype() };
    // SAFETY: x [rows, width], w [outs, width], y [rows, outs], of the types named.
    unsafe {
        forward(gpu, product, after, (y.at(gpu, out)?, out), Tile::of_forward(shape[0], shape[1], w.dtype()))?
    };
    Ok(y)
}

/// [`linear`] into memory, by kernels of one tile.
///
/// # Safety
/// The addresses hold operands of the product's shape and type, and room for its result.
pub(super) unsafe fn forward(
    gpu: &Gpu,
    Forward { x, w, shape: [rows, outs, width], dtype }: Forward,
    after: After<'_>,
    (y, out): (At, Dtype),
    tile: Tile,
) -> Result<()> {
    let maybe = |t: Option<&Tensor>| t.map_or(Ok(At(0)), |t| t.at(gpu, Dtype::F32));
    let (bias, residual) = (maybe(after.bias)?, maybe(after.residual)?);
    let (y, rounded) = if out == Dtype::BF16 { (At(0), y) } else { (y, At(0)) };
    let (kernel, grid) = match tile {
        Tile::Few => few([rows, outs, width], dtype),
        _ => tile.launch(&FORWARD, dtype, [rows, outs]),
    };
    let (gain, eps) = after.norm.map_or((None, 0.0), |(gain, eps, _)| (Some(gain), eps));
    let eps = if faults::on(Fault::NormAfterASumWithoutEps) { 0.0 } else { eps };
    let [normed, normed_rounded] = match after.norm {
        Some((_, _, n)) if n.dtype() == Dtype::BF16 => [At(0), n.at(gpu, Dtype::BF16)?],
        Some((_, _, n)) => [n.at(gpu, Dtype::F32)?, At(0)],
        None => [At(0); 2],
    };
    // a block has at least 8 rows
    let met = if gain.is_some() { gpu.counters(rows.div_ceil(8))? } else { At(0) };
    let sizes = [rows as u32, outs as u32, width as u32];
    let args = args![
        x,
        w,
        bias,
        residual,
        y,
        rounded,
        sizes[0],
        sizes[1],
        sizes[2],
        maybe(gain)?,
        eps,
        normed,
        normed_rounded,
        met
    ];
    // SAFETY: as promised by the caller; a gain of the product's width, its norm of the product's shape, a counter for
    // every few rows.
    unsafe { gpu.launch(kernel, grid, args) }
}

/// `h + x wᵀ`, f32, and its norm in the weight's dtype; all operands have been checked.
pub(crate) fn linear_add_norm(
    gpu: &Gpu,
    x: &Tensor,
    w: &Weight,
    after: After<'_>,
    (gain, eps): (&Tensor, f32),
) -> Result<(Tensor, Tensor)> {
    let normed = Tensor::on_gpu(gpu, &[x.shape()[0], w.out_features()], w.dtype())?;
    let y = linear(gpu, x, w, After { norm: Some((gain, eps, &normed)), ..after }, Dtype::F32)?;
    Ok((y, normed))
}

/// `dx` of a group of weights that read one `x [rows, width]`.
pub(crate) fn input_gradient(gpu: &Gpu, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
    let (rows, width) = (dys[0].shape()[0], ws[0].in_features());
    let dx = Tensor::on_gpu(gpu, &[rows, width], Dtype::F32)?;
    let at = dx.at(gpu, Dtype::F32)?;
    for (i, (dys, ws)) in dys.chunks(3).zip(ws.chunks(3)).enumerate() {
        let mut group = Group { dtype: ws[0].dtype(), ..Group::default() };
        for (part, (dy, w)) in group.parts.iter_mut().zip(dys.iter().zip(ws)) {
            *part = Part { dy: dy.at(gpu, group.dtype)?, w: w.at(gpu)?, outs: w.out_features() };
        }
        let start = if i == 0 { At(0) } else { at };
        // SAFETY: dy_i [rows, outs_i], w_i [outs_i, width], dx [rows, width], of the types named.
        unsafe { input(gpu, &group, [rows, width], (start, at), Tile::of(rows, width))? };
    }
    Ok(dx)
}

/// Products that go into one running sum: up to three; the absent ones have no outputs.
pub(super) struct Group {
    pub(super) parts: [Part; 3],
    pub(super) dtype: Dtype,
}

impl Default for Group {
    fn default() -> Group {
        Group { parts: [Part::default(); 3], dtype: Dtype::F32 }
    }
}

/// `dy [rows, outs]` and `w [outs, width]`.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) dy: At,
    pub(super) w: At,
    pub(super) outs: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part { dy: At(0), w: At(0), outs: 0 }
    }
}

/// `dx = start + dy w`, from zero where `start` is null.
///
/// # Safety
/// The addresses hold operands of these shapes and the group's type; `start` is null or `dx`.
pub(super) unsafe fn input(
    gpu: &Gpu,
    Group { parts: [a, b, c], dtype }: &Group,
    [rows, width]: [usize; 2],
    (start, dx): (At, At),
    tile: Tile,
) -> Result<()> {
    let (kernel, grid) = tile.launch(&INPUT, *dtype, [rows, width]);
    let outs = [a, b, c].map(|part| part.outs as u32);
    let args = args![
        a.dy,
        b.dy,
        c.dy,
        a.w,
        b.w,
        c.w,
        outs[0],
        outs[1],
        outs[2],
        start,
        dx,
        rows as u32,
        width as u32
    ];
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, args) }
}

/// The chunks of a sum over the rows of samples: where each begins, and where the last one ends.
pub(crate) fn bounds(samples: &Samples) -> Vec<u32> {
    let starts = samples.ranges().flat_map(|sample| sample.step_by(256));
    starts.chain([samples.rows()]).map(|row| row as u32).collect()
}

/// `dw += rowsum dy x`; all operands have been checked.
pub(crate) fn weight_gradient(
    gpu: &Gpu,
    dw: &mut Tensor,
    dy: &Tensor,
    x: &Tensor,
    samples: &Samples,
) -> Result<()> {
    let (shape, dtype) = ([dy.width(), x.width()], x.dtype());
    let operands = (dy.at(gpu, dtype)?, x.at(gpu, dtype)?, dtype);
    let dw = dw.at_mut(gpu, Dtype::F32)?;
    // SAFETY: dw [outs, width], dy [rows, outs], x [rows, width], samples of as many rows.
    unsafe { weights(gpu, dw, operands, (shape, samples), Tile::of(shape[0], shape[1])) }
}

/// [`weight_gradient`] in memory: `dy [rows, outs]`, `x [rows, width]`, shape `[outs, width]`.
///
/// # Safety
/// The addresses hold operands of these shapes and types, in as many rows as the samples have.
pub(super) unsafe fn weights(
    gpu: &Gpu,
    dw: At,
    (dy, x, dtype): (At, At, Dtype),
    ([outs, width], samples): ([usize; 2], &Samples),
    tile: Tile,
) -> Result<()> {
    let bounds = bounds(samples);
    let chunks = bounds.len() - 1;
    if chunks == 0 {
        return Ok(());
    }
    let (kernel, grid) = tile.launch(&WEIGHTS, dtype, [outs, width]);
    let args = args![dw, dy, x, gpu.indices(&bounds)?, chunks as u32, outs as u32, width as u32];
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, args) }
}

/// `db += rowsum dy`; all operands have been checked.
pub(crate) fn bias_gradient(gpu: &Gpu, db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
    let (outs, bounds) = (dy.width(), bounds(samples));
    let (dy, db) = (dy.at(gpu, Dtype::F32)?, db.at_mut(gpu, Dtype::F32)?);
    let args = args![db, dy, gpu.indices(&bounds)?, (bounds.len() - 1) as u32, outs as u32];
    // SAFETY: db [outs], dy [rows, outs], rows up to the last bound.
    unsafe { gpu.launch("linear_db_f32", Grid::blocks([outs.div_ceil(32), 1, 1], 256), args) }
}

#[cfg(test)]
#[cfg(all(feature = "emu", xtrain_emu))]
mod tests;
