//! Root-mean-square normalisation, forward and backward.
use super::{Gpu, Grid, args};
use crate::operands::Samples;
use crate::{Dtype, Error, Result, Tensor};

/// Rows that a block takes, a warp each.
const ROWS: usize = 4;

/// Rows of a parameter gradient's chunk.
const CHUNK: usize = 256;

/// `y_i = (x_i r) w_i` for every row of `x [.., C]`; `w` is `[C]`.
pub(crate) fn rms_norm(gpu: &Gpu, x: &Tensor, w: &Tensor, eps: f32, out: Dtype) -> Result<Tensor> {
    let kernel = match (x.dtype(), out) {
        (Dtype::BF16, Dtype::BF16) => "rms_norm_bf16_bf16",
        (Dtype::BF16, Dtype::F32) => "rms_norm_bf16_f32",
        (Dtype::F32, Dtype::BF16) => "rms_norm_f32_bf16",
        (Dtype::F32, Dtype::F32) => "rms_norm_f32_f32",
        _ => return Err(Error::Dtype { op: "rms_norm", want: "f32 or bf16", got: x.dtype() }),
    };
    let (c, y) = (x.width(), Tensor::on_gpu(gpu, x.shape(), out)?);
    let n = x.len() / c.max(1);
    let args = args![x.at(gpu, x.dtype())?, w.at(gpu, Dtype::F32)?, y.at(gpu, out)?, n as u32, c as u32, eps];
    // SAFETY: x and y are [n, c], w is [c]; a warp for each row.
    unsafe { gpu.launch(kernel, Grid::blocks([n.div_ceil(ROWS), 1, 1], 32 * ROWS as u32), args)? };
    Ok(y)
}

/// `dx`; `dw += rowsum dy xh`. `x` and `dy` are `[.., C]`, `w` and `dw` `[C]`, `samples` cover the rows.
pub(crate) fn rms_norm_backward(
    gpu: &Gpu,
    [x, w, dy]: [&Tensor; 3],
    eps: f32,
    (dw, samples): (&mut Tensor, &Samples),
) -> Result<Tensor> {
    let (by_input, by_gain) = match x.dtype() {
        Dtype::BF16 => ("rms_norm_dx_bf16", "rms_norm_dw_bf16"),
        _ => ("rms_norm_dx_f32", "rms_norm_dw_f32"),
    };
    let dtype = if x.dtype() == Dtype::BF16 { Dtype::BF16 } else { Dtype::F32 };
    let (c, dx) = (x.width(), Tensor::on_gpu(gpu, x.shape(), Dtype::F32)?);
    let n = x.len() / c.max(1);
    let r = gpu.buffer(4 * n)?;
    let (x_at, dy_at) = (x.at(gpu, dtype)?, dy.at(gpu, Dtype::F32)?);
    let args =
        args![x_at, w.at(gpu, Dtype::F32)?, dy_at, dx.at(gpu, Dtype::F32)?, r.arg(), n as u32, c as u32, eps];
    // SAFETY: x, dy and dx are [n, c], w is [c], r holds n; a warp for each row.
    unsafe { gpu.launch(by_input, Grid::blocks([n.div_ceil(ROWS), 1, 1], 32 * ROWS as u32), args)? };

    let chunks = samples.chunks(CHUNK);
    let p = chunks.len() / 2;
    let part = gpu.buffer(4 * p * c)?;
    let threads = c.next_multiple_of(32).min(256);
    let args = args![x_at, r.arg(), dy_at, gpu.indices(&chunks)?, part.arg(), c as u32];
    let grid = Grid::blocks([p, c.div_ceil(threads), 1], threads as u32);
    // SAFETY: chunks are ranges of the n rows, part holds c values for each.
    unsafe { gpu.launch(by_gain, grid, args)? };
    let args = args![part.arg(), dw.at_mut(gpu, Dtype::F32)?, p as u32, c as u32];
    // SAFETY: part is [p, c], dw [c].
    unsafe { gpu.launch("add_chunks_f32", Grid::over(c, 32), args)? };
    Ok(dx)
}
