//! RMSNorm, forward and backward.
use super::linear::MULTIPROCESSORS;
use super::{At, Gpu, Grid, args};
use crate::faults::{self, Fault};
use crate::operands::{Norm, Samples};
use crate::{Dtype, Result, Tensor};

/// Rows per block, one warp each.
const ROWS: usize = 4;

/// Maximum number of rows per chunk of the gain gradient.
const CHUNK: usize = 256;

/// `y_i = (x_i r) gain_i` for every row of `x [.., C]`, `gain [C]`. `y` has the shape of `x` in `out`.
pub(super) fn rms_norm_into(gpu: &Gpu, x: &Tensor, norm: Norm<'_>, out: Dtype, y: At) -> Result<()> {
    let kernel = kernel_of!("rms_norm", x.dtype(), out)?;
    let (c, n) = (x.width(), x.len() / x.width().max(1));
    let eps = if faults::on(Fault::GpuNormWithoutEps) { 0.0 } else { norm.eps };
    let args = args![x.at(gpu, x.dtype())?, norm.gain.at(gpu, Dtype::F32)?, y, n, c, eps];
    // few rows: a block for each, so that they do not share a multiprocessor
    let rows = if n <= MULTIPROCESSORS { 1 } else { ROWS };
    // SAFETY: x and y are [n, c], the gain is [c]; one warp per row.
    unsafe { gpu.launch(kernel, Grid::blocks([n.div_ceil(rows), 1, 1], 32 * rows as u32), args) }
}

/// Returns `dx`, or `onto + dx`, and adds `rowsum dy xh` to `dw`: `x`, `dy`, `onto` `[.., C]`; gain, `dw` `[C]`;
/// `samples` cover the rows.
pub(crate) fn rms_norm_backward(
    gpu: &Gpu,
    x: &Tensor,
    norm: Norm<'_>,
    dy: &Tensor,
    dw: &mut Tensor,
    samples: &Samples,
    onto: Option<Tensor>,
) -> Result<Tensor> {
    let (dtype, by_input, by_gain) = match x.dtype() {
        Dtype::BF16 => (Dtype::BF16, "rms_norm_dx_bf16", "rms_norm_dw_bf16"),
        _ => (Dtype::F32, "rms_norm_dx_f32", "rms_norm_dw_f32"),
    };
    let c = x.width();
    let (dx, dx_at, onto) = match onto {
        Some(mut sum) => {
            let at = sum.at_mut(gpu, Dtype::F32)?;
            (sum, at, at)
        }
        None => {
            let dx = Tensor::on_gpu(gpu, x.shape(), Dtype::F32)?;
            let at = dx.at(gpu, Dtype::F32)?;
            (dx, at, At(0))
        }
    };
    let n = x.len() / c.max(1);
    let r = gpu.buffer(4 * n)?;
    let (x_at, dy_at) = (x.at(gpu, dtype)?, dy.at(gpu, Dtype::F32)?);
    let args = args![x_at, norm.gain.at(gpu, Dtype::F32)?, dy_at, onto, dx_at, r.arg(), n, c, norm.eps];
    // SAFETY: x, dy and dx are [n, c], w is [c], r is [n], onto is null or dx; one warp per row.
    unsafe { gpu.launch(by_input, Grid::blocks([n.div_ceil(ROWS), 1, 1], 32 * ROWS as u32), args)? };

    let chunks = samples.chunks(CHUNK);
    let p = chunks.len() / 2;
    let part = gpu.buffer(4 * p * c)?;
    let threads = c.next_multiple_of(32).min(64);
    let args = args![x_at, r.arg(), dy_at, gpu.indices(&chunks)?, part.arg(), c];
    let grid = Grid::blocks([p, c.div_ceil(threads), 1], threads as u32);
    // SAFETY: chunks are ranges of the n rows, part has c values per chunk.
    unsafe { gpu.launch(by_gain, grid, args)? };
    let [start, dw] = dw.accumulator_at(gpu)?;
    let args = args![part.arg(), start, dw, p, c];
    // SAFETY: part is [p, c], dw [c], start null or dw.
    unsafe { gpu.launch("add_chunks_f32", Grid::over(c, 32), args)? };
    Ok(dx)
}

#[cfg(all(test, xtrain_emu))]
mod tests {
    use super::*;
    use crate::testing::{arbitrary, compare_bits};
    use crate::{Device, ThreadSchedule, ops};

    /// Rows of one and of four per block, the last block full and not. The checked emulator reports accesses beyond them.
    #[test]
    fn rows_that_do_not_fill_the_last_block_have_the_bits_of_the_cpu() {
        let schedule = ThreadSchedule::Random(8);
        let gpus = [Device::emulated(schedule), Device::checked(schedule)].map(Result::unwrap);
        for (rows, width) in [(MULTIPROCESSORS, 24), (MULTIPROCESSORS + 1, 129), (MULTIPROCESSORS + 3, 1030)]
        {
            let normed = |device: &Device, dtype: Dtype, out: Dtype| {
                let on = |shape: &[usize], n: usize, seed: u64| {
                    Tensor::new(device, shape, arbitrary(n, seed)).unwrap()
                };
                let x = on(&[rows, width], rows * width, 1).cast(dtype).unwrap();
                let y = ops::rms_norm(&x, &on(&[width], width, 2), 1e-6, out).unwrap();
                y.to_f32().unwrap().to_vec::<f32>().unwrap()
            };
            for (dtype, out) in
                [Dtype::F32, Dtype::BF16].into_iter().flat_map(|x| [(x, Dtype::F32), (x, Dtype::BF16)])
            {
                let want = normed(&Device::reference(), dtype, out);
                for gpu in &gpus {
                    compare_bits(&normed(gpu, dtype, out), &want)
                        .unwrap_or_else(|e| panic!("{rows} rows of {width}, {dtype} to {out}: {e}"));
                }
            }
        }
    }
}
