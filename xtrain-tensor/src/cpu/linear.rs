//! Linear maps and their gradients over packed weights.
use std::ops::Range;

use half::bf16;

use super::gemm::{self, Beta, Matrix};
use super::gemm_bf16::{self, Output, PackedA};
use super::pack::{Packed, PackedWeight, backward_of, values_of};
use super::value::with_values;
use super::{Cpu, Simd, pointwise};
use crate::backend::Backend;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::operands::{Affine, Samples, Weight};
use crate::tensor::Tensor;

/// The outputs `range` of `x wᵀ`, `[N, range]` f32. The range begins at a multiple of 32, and ends at a multiple of
/// 32 or at the last output.
pub(super) fn outputs(cpu: &Cpu, x: &Tensor, w: &Weight, range: Range<usize>) -> Result<Tensor> {
    let n = x.shape()[0];
    let mut y = cpu.recycler.acquire::<f32>(n * range.len());
    let shape = [n, range.len()];
    if is_reversed(cpu, n) {
        reversed_outputs(cpu, x, w, range, &mut y)?;
    } else {
        let part = [0..w.in_features(), range];
        w.forward::<PackedWeight>()?.matrix.product(cpu, x, part, &mut y, Beta::Zero)?;
    }
    Tensor::new(x.device(), &shape, y)
}

/// Whether a planted fault reverses the sums of `n` rows.
fn is_reversed(cpu: &Cpu, n: usize) -> bool {
    n == 1 && faults::on(Fault::SingleRowSumReversed)
        || cpu.simd == Simd::Portable && faults::on(Fault::PortableSumReversed)
}

/// [`outputs`] with each row of `x` and of `w` reversed.
fn reversed_outputs(cpu: &Cpu, x: &Tensor, w: &Weight, range: Range<usize>, y: &mut [f32]) -> Result<()> {
    let x_reversed = with_values!(values = x => {
        Tensor::new(x.device(), x.shape(), rows_reversed(values, x.width()))?
    });
    let (values, shape) = (values_of(w)?, w.shape());
    let values = rows_reversed(&values, shape[1]);
    let w_reversed = Packed::of_weight(cpu, w.dtype(), &values, shape)?;
    w_reversed.product(cpu, &x_reversed, [0..shape[1], range], y, Beta::Zero)
}

fn rows_reversed<T: Copy>(values: &[T], width: usize) -> Vec<T> {
    values.chunks_exact(width).flat_map(|row| row.iter().rev().copied()).collect()
}

/// `x wᵀ + b` in f32.
pub(super) fn linear(cpu: &Cpu, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
    let mut y = outputs(cpu, x, w.weight, 0..w.weight.out_features())?;
    if let Some(b) = w.bias {
        pointwise::add_to_rows(cpu, y.data_mut()?, b.data()?);
    }
    Ok(y)
}

/// `x wᵀ + b` in bf16: the sums are f32 and rounded once.
pub(super) fn linear_rounded(cpu: &Cpu, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
    let plain = w.bias.is_none() && !is_reversed(cpu, x.shape()[0]);
    if let (Packed::Bf16(b), true) = (&w.weight.forward::<PackedWeight>()?.matrix, plain) {
        let shape = [x.shape()[0], w.weight.out_features()];
        let mut y = cpu.recycler.acquire::<bf16>(shape[0] * shape[1]);
        let a = PackedA::new(cpu, x.data::<bf16>()?, [shape[0], w.weight.in_features()]);
        gemm_bf16::product(cpu, &a, b.view_for(cpu)?, Output::Rounded(&mut y));
        return Tensor::new(x.device(), &shape, y);
    }
    cpu.cast(&linear(cpu, x, w)?, Dtype::BF16)
}

/// `h + (x wᵀ + b)`; h in f32.
pub(super) fn linear_add(cpu: &Cpu, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
    if w.bias.is_none() && !is_reversed(cpu, 1) {
        let mut y = cpu.recycler.acquire::<f32>(h.len());
        let (rows, width) = (x.shape()[0], w.weight.in_features());
        match &w.weight.forward::<PackedWeight>()?.matrix {
            Packed::F32(b) => {
                let a = Matrix::new(x.data()?, rows, width);
                gemm::product_residual(cpu, h.data()?, a, b.view(), &mut y);
            }
            Packed::Bf16(b) => {
                let a = PackedA::new(cpu, x.data::<bf16>()?, [rows, width]);
                let out = Output::Residual { h: h.data()?, y: &mut y };
                gemm_bf16::product(cpu, &a, b.view_for(cpu)?, out);
            }
            Packed::Quantized(b) => {
                gemm::quantized_product(cpu, x.data()?, b.view(), &mut y, Beta::Zero, Some(h.data()?));
            }
        }
        return Tensor::new(h.device(), h.shape(), y);
    }
    // addition commutes: the product is not shared, whereas adding to `h` would copy it first
    let mut y = linear(cpu, x, w)?;
    pointwise::accumulate(cpu, y.data_mut()?, h.data()?);
    Ok(y)
}

/// `dx` of the linear maps that read one `x`.
pub(super) fn backward_input(cpu: &Cpu, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
    let (n, width) = (dys[0].shape()[0], ws[0].in_features());
    let mut dx = cpu.recycler.acquire::<f32>(n * width);
    for (i, (dy, w)) in dys.iter().zip(ws).enumerate() {
        let beta = if i == 0 { Beta::Zero } else { Beta::One };
        input_part(cpu, &mut dx, dy, w, 0..w.out_features(), beta)?;
    }
    Tensor::new(&Device::Cpu(cpu.clone()), &[n, width], dx)
}

/// `dx[n][k] = beta dx[n][k] + dot over the outputs o of range of dy[n][o] w[o][k]`, `dy [N, range]`. Continues a dot
/// over all outputs if the range begins at a multiple of 256.
pub(super) fn input_part(
    cpu: &Cpu,
    dx: &mut [f32],
    dy: &Tensor,
    w: &Weight,
    range: Range<usize>,
    beta: Beta,
) -> Result<()> {
    backward_of(cpu, w)?.product(cpu, dy, [range, 0..w.in_features()], dx, beta)
}

/// `dw += rowsum dy x` for the rows of `dw` that are the outputs of `dy`.
pub(super) fn weight_part(
    cpu: &Cpu,
    dw: &mut [f32],
    dy: &Tensor,
    x: &Tensor,
    samples: &Samples,
) -> Result<()> {
    let shape = [dy.width(), x.width()];
    let add = |dw: &mut [f32]| -> Result<()> {
        let ranges: Vec<_> = samples.ranges().collect();
        match x.dtype() {
            Dtype::BF16 => {
                let (dy, x) = (dy.data::<bf16>()?, x.data::<bf16>()?);
                gemm_bf16::weight_gradient(cpu, dy, x, &ranges, dw, shape)
            }
            _ => {
                gemm::weight_gradient(cpu, dy.data()?, x.data()?, &ranges, dw, shape);
                Ok(())
            }
        }
    };
    if faults::on(Fault::MicroBatchSubtotal) {
        let mut total = vec![0.0; dw.len()];
        add(&mut total)?;
        dw.iter_mut().zip(total).for_each(|(dw, total)| *dw += total);
        return Ok(());
    }
    add(dw)
}
