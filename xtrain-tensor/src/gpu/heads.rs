//! QK-norm and RoPE of heads, and their gradients.
use super::{Arg, Gpu, Grid, args, pointwise};
use crate::operands::{GainGradient, Norm, RopeArgs};
use crate::{Dtype, Error, Result, Tensor};

/// Heads per block of `norm_rope`, four warps.
const HEADS: usize = 16;

/// Maximum number of (row, head) pairs per chunk of the gain gradient.
const CHUNK: usize = 256;

/// `STAGED_PAIRS` of the kernel.
const STAGED: usize = 32;

/// Rows, heads and head size of `x`.
fn shape_of(op: &'static str, x: &Tensor) -> Result<[usize; 3]> {
    let &[n, heads, hd] = x.shape() else { unreachable!("{op} checks its shapes") };
    match hd {
        0..=256 => Ok([n, heads, hd]),
        _ => Err(Error::Argument { op, want: "a head size of at most 256 on a GPU", got: hd.to_string() }),
    }
}

/// The first operands of both kernels: `x`, the gain, the rotary table and one position per row.
fn operands(gpu: &Gpu, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Vec<Arg>> {
    let table = rope.table.device_addresses(gpu, rope.positions.iter().map(|&p| p as usize))?;
    let gain = norm.gain.at(gpu, Dtype::F32)?;
    Ok(args![x.at(gpu, x.dtype())?, gain, table, gpu.indices(rope.positions)?].to_vec())
}

/// `rope(rms_norm(x))` over each head, in the dtype of `x`. The operands have been checked.
pub(super) fn norm_rope(gpu: &Gpu, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
    let ([n, heads, hd], dtype) = (shape_of("norm_rope", x)?, x.dtype());
    let kernel = if dtype == Dtype::BF16 { "norm_rope_bf16" } else { "norm_rope_f32" };
    let y = Tensor::on_gpu(gpu, x.shape(), dtype)?;
    let rest = args![y.at(gpu, dtype)?, n * heads, heads, hd, norm.eps];
    let args = [&*operands(gpu, x, norm, rope)?, rest].concat();
    let grid = Grid::blocks([(n * heads).div_ceil(HEADS), 1, 1], 128);
    // SAFETY: x and y are [n, heads, hd], the gain [hd], the table covers the n positions; every head has its lanes.
    unsafe { gpu.launch(kernel, grid, &args)? };
    Ok(y)
}

/// The gradient of [`norm_rope`] in dtype `out`; adds that of the gain. The operands have been checked.
pub(super) fn norm_rope_backward(
    gpu: &Gpu,
    x: &Tensor,
    norm: Norm<'_>,
    rope: RopeArgs<'_>,
    dy: &Tensor,
    gain: GainGradient<'_>,
    out: Dtype,
) -> Result<Tensor> {
    let [_, heads, hd] = shape_of("norm_rope_backward", x)?;
    let kernel = match (x.dtype(), out) {
        (Dtype::BF16, Dtype::BF16) => "norm_rope_backward_bf16_bf16",
        (Dtype::BF16, _) => "norm_rope_backward_bf16_f32",
        _ => "norm_rope_backward_f32_f32",
    };
    let written = if x.dtype() == Dtype::BF16 { out } else { Dtype::F32 };
    let dx = Tensor::on_gpu(gpu, x.shape(), written)?;
    let chunks = gain.samples.times(heads).chunks(CHUNK);
    let p = chunks.len() / 2;
    let part = gpu.buffer(4 * p * hd)?;
    let own = args![dy.at(gpu, Dtype::F32)?, dx.at(gpu, written)?, gpu.indices(&chunks)?, part.arg()];
    let args = [&*operands(gpu, x, norm, rope)?, own, args![heads, hd, norm.eps]].concat();
    let grid = Grid::blocks([p, 1, 1], 256).shared(4 * 2 * STAGED * hd);
    // SAFETY: x, dy and dx are [n, heads, hd], the gain [hd], the table covers the n positions; the chunks cover the
    // pairs, part has hd values per chunk.
    unsafe { gpu.launch(kernel, grid, &args)? };
    let [start, dw] = gain.dw.accumulator_at(gpu)?;
    // SAFETY: part is [p, hd], dw [hd], start null or dw.
    unsafe { gpu.launch("add_chunks_f32", Grid::over(hd, 32), args![part.arg(), start, dw, p, hd])? };
    if written == out { Ok(dx) } else { pointwise::cast(gpu, &dx, out) }
}
