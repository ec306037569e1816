//! Products of a few normed rows, the norm inside.
use super::{MOST_ALONG_Y, few};
use crate::gpu::{At, Gpu, Grid, args};
use crate::ops::Affine;
use crate::{Dtype, Result, Tensor};

/// Rows that the kernels take: each block norms all of them, which costs the reads of its weights at 8.
const ROWS: usize = 8;
/// Matrices of a launch.
const MATRICES: usize = 3;

/// Whether the kernels take these operands.
pub(crate) fn takes_normed(h: &Tensor, ws: &[Affine<'_>]) -> bool {
    // at least 8 outputs a block
    let blocks: usize = ws.iter().map(|w| w.weight.out().div_ceil(8)).sum();
    h.shape()[0] <= ROWS && h.dtype() == Dtype::F32 && ws.len() <= MATRICES && blocks <= MOST_ALONG_Y
}

/// `blocks` blocks of the kernel for a few rows, by another name.
fn grid(rows: usize, width: usize, dtype: Dtype, blocks: usize) -> Grid {
    let (_, grid) = few([rows, 1, width], dtype);
    let along = if dtype == Dtype::BF16 { [1, blocks, 1] } else { [blocks, 1, 1] };
    Grid { blocks: along.map(|n| n as u32), ..grid }
}

/// Products by up to three weights; operands have been checked.
pub(crate) fn norm_linears(
    gpu: &Gpu,
    h: &Tensor,
    (gain, eps): (&Tensor, f32),
    ws: &[Affine<'_>],
) -> Result<Vec<Tensor>> {
    let (rows, width, dtype) = (h.shape()[0], h.width(), ws[0].weight.dtype());
    let ys = ws.iter().map(|w| Tensor::on_gpu(gpu, &[rows, w.weight.out()], dtype));
    let ys = ys.collect::<Result<Vec<_>>>()?;
    let (mut w_at, mut b_at, mut y_at) = ([At(0); MATRICES], [At(0); MATRICES], [At(0); MATRICES]);
    let (mut outs, mut blocks) = ([0; MATRICES], 0);
    for (i, (Affine { weight, bias }, y)) in ws.iter().zip(&ys).enumerate() {
        (w_at[i], y_at[i], outs[i]) = (weight.at(gpu)?, y.at(gpu, dtype)?, weight.out() as u32);
        if let Some(bias) = bias {
            b_at[i] = bias.at(gpu, Dtype::F32)?;
        }
        blocks += weight.out().div_ceil(if dtype == Dtype::BF16 { 16 } else { 8 });
    }
    let kernel = if dtype == Dtype::BF16 { "norm_linears_bf16" } else { "norm_linears_f32" };
    let ([w0, w1, w2], [b0, b1, b2], [y0, y1, y2]) = (w_at, b_at, y_at);
    let (h, gain) = (h.at(gpu, Dtype::F32)?, gain.at(gpu, Dtype::F32)?);
    let sizes = [rows as u32, outs[0], outs[1], outs[2], width as u32];
    let args = args![
        h, gain, eps, w0, w1, w2, b0, b1, b2, y0, y1, y2, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    ];
    // SAFETY: h [rows, width], gain [width], w_i [out_i, width], b_i [out_i] or null, y_i [rows, out_i].
    unsafe { gpu.launch(kernel, grid(rows, width, dtype, blocks), args)? };
    Ok(ys)
}

/// The gated product; operands have been checked.
pub(crate) fn norm_swiglu(
    gpu: &Gpu,
    h: &Tensor,
    (gain, eps): (&Tensor, f32),
    [gate, up]: [Affine<'_>; 2],
) -> Result<Tensor> {
    let (rows, width, dtype) = (h.shape()[0], h.width(), gate.weight.dtype());
    let outs = gate.weight.out();
    let y = Tensor::on_gpu(gpu, &[rows, outs], dtype)?;
    let (kernel, each) = match dtype {
        Dtype::BF16 => ("norm_swiglu_bf16", 8),
        _ => ("norm_swiglu_f32", 4),
    };
    let bias = |w: &Affine<'_>| w.bias.map_or(Ok(At(0)), |b| b.at(gpu, Dtype::F32));
    let args = args![
        h.at(gpu, Dtype::F32)?,
        gain.at(gpu, Dtype::F32)?,
        eps,
        gate.weight.at(gpu)?,
        up.weight.at(gpu)?,
        bias(&gate)?,
        bias(&up)?,
        y.at(gpu, dtype)?,
        rows as u32,
        outs as u32,
        width as u32
    ];
    // SAFETY: h [rows, width], gain [width], both weights [outs, width], biases [outs] or null, y [rows, outs].
    unsafe { gpu.launch(kernel, grid(rows, width, dtype, outs.div_ceil(each)), args)? };
    Ok(y)
}
