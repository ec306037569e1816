//! Matrix products: which kernel, over which grid.
use super::{At, Gpu, Grid, args};
use crate::ops::{Samples, Weight};
use crate::{Dtype, Error, Result, Tensor};

/// What is done with a sum of products before it leaves.
#[derive(Default, Clone, Copy)]
pub(crate) struct After<'a> {
    /// Added to every row.
    pub(crate) bias: Option<&'a Tensor>,
    /// Added last, of the product's shape.
    pub(crate) residual: Option<&'a Tensor>,
}

/// Kernels of one order and different tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    /// 16 rows a block.
    Few,
    /// 64 x 64 outputs a block.
    Small,
    /// 128 x 128 outputs a block.
    Large,
}

impl Tile {
    /// The largest tile of which there are enough to occupy a device.
    pub(super) fn of(below: usize, across: usize) -> Tile {
        if below.div_ceil(128) * across.div_ceil(128) >= 96 { Tile::Large } else { Tile::Small }
    }

    /// The tile of a forward product.
    pub(super) fn of_forward(rows: usize, outs: usize) -> Tile {
        if rows <= 64 { Tile::Few } else { Tile::of(rows, outs) }
    }

    /// One of the kernels of the two square tiles, and its grid over `below x across` outputs.
    fn launch(self, kernels: [&'static str; 2], [below, across]: [usize; 2]) -> (&'static str, Grid) {
        let (kernel, side, threads) =
            if self == Tile::Large { (kernels[0], 128, 256) } else { (kernels[1], 64, 64) };
        (kernel, Grid::blocks([across.div_ceil(side), below.div_ceil(side), 1], threads))
    }
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
    let shape = [x.shape()[0], w.out(), w.width()];
    let y = Tensor::on_gpu(gpu, &shape[..2], out)?;
    let product = Forward { x: x.at(gpu, w.dtype())?, w: w.at(gpu)?, shape, dtype: w.dtype() };
    // SAFETY: x [rows, width], w [outs, width], y [rows, outs], of the types named.
    unsafe { forward(gpu, product, after, (y.at(gpu, out)?, out), Tile::of_forward(shape[0], shape[1]))? };
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
    no_bf16(gpu, dtype)?;
    let maybe = |t: Option<&Tensor>| t.map_or(Ok(At(0)), |t| t.at(gpu, Dtype::F32));
    let (bias, residual) = (maybe(after.bias)?, maybe(after.residual)?);
    let (y, rounded) = if out == Dtype::BF16 { (At(0), y) } else { (y, At(0)) };
    let (kernel, grid) = match tile {
        Tile::Few => {
            let grid = Grid::blocks([outs.div_ceil(8), rows.div_ceil(16), 1], 128).shared(few_bytes(width));
            (if rows == 1 { "linear_one_f32" } else { "linear_few_f32" }, grid)
        }
        _ => tile.launch(["linear_f32_128", "linear_f32_64"], [rows, outs]),
    };
    let args = args![x, w, bias, residual, y, rounded, rows as u32, outs as u32, width as u32];
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, args) }
}

/// Shared memory of `linear_few_f32`: the weights of 8 outputs, up to 4096 inputs of each, and the sums of
/// their chunks for 16 rows.
fn few_bytes(width: usize) -> usize {
    let piece = width.next_multiple_of(256).min(4096);
    4 * (8 * (piece + 4) + piece / 256 * 128)
}

/// `dx` of a group of weights that read one `x [rows, width]`.
pub(crate) fn input_gradient(gpu: &Gpu, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
    let (rows, width) = (dys[0].shape()[0], ws[0].width());
    let dx = Tensor::on_gpu(gpu, &[rows, width], Dtype::F32)?;
    let at = dx.at(gpu, Dtype::F32)?;
    for (i, (dys, ws)) in dys.chunks(3).zip(ws.chunks(3)).enumerate() {
        let mut group = Group { dtype: ws[0].dtype(), ..Group::default() };
        for (part, (dy, w)) in group.parts.iter_mut().zip(dys.iter().zip(ws)) {
            *part = Part { dy: dy.at(gpu, group.dtype)?, w: w.at(gpu)?, outs: w.out() };
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
    no_bf16(gpu, *dtype)?;
    let (kernel, grid) = tile.launch(["linear_dx_f32_128", "linear_dx_f32_64"], [rows, width]);
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
    no_bf16(gpu, dtype)?;
    let bounds = bounds(samples);
    let chunks = bounds.len() - 1;
    if chunks == 0 {
        return Ok(());
    }
    let (kernel, grid) = tile.launch(["linear_dw_f32_128", "linear_dw_f32_64"], [outs, width]);
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

fn no_bf16(gpu: &Gpu, dtype: Dtype) -> Result<()> {
    match dtype {
        Dtype::BF16 => {
            Err(Error::Device { what: format!("a product in bf16 without a kernel for {}", gpu.name()) })
        }
        _ => Ok(()),
    }
}
