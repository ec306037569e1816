//! The linear map `x Wᵀ + b` and its three gradients.
use std::ops::Range;

use half::bf16;

use super::weight::Layout;
use super::{Samples, Weight, shapes, widened};
use crate::cpu::gemm::{self, Beta, Matrix};
use crate::cpu::gemm_bf16::{self, PackedA};
use crate::cpu::{Packed, packed, pointwise, rowsum};
use crate::gpu::{self, After};
use crate::reference::{self, Bf16, F32};
use crate::{
    Device, Dtype, Error, Result, Tensor,
    faults::{self, Fault},
};

/// `y[n][o] = dot(x[n], w[o]) + b[o]`, rounded to `out`.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, in]` | in the weight's dtype |
/// | `w` | `[out, in]` | packed |
/// | `bias` | `[out]` | f32, added in f32 before any rounding |
/// | returns | `[N, out]` | in `out` |
///
/// Order: *dot* of docs/numerics.md, chunks of 256 (bf16: blocks of 32). No output depends on `N`.
///
/// # Errors
/// [`Error::Shape`] when widths differ, [`Error::Dtype`] when `x` is not in the weight's dtype.
pub fn linear(x: &Tensor, w: &Weight, bias: Option<&Tensor>, out: Dtype) -> Result<Tensor> {
    check_bias(w, bias)?;
    if let Device::Gpu(gpu) = x.device() {
        check("linear", x, w.in_features(), w)?;
        return gpu::linear(gpu, x, w, After { bias, ..After::default() }, out);
    }
    let mut y = outputs(x, w, 0..w.out_features())?;
    if let Some(b) = bias {
        pointwise::add_to_rows(x.device().as_cpu()?, y.data_mut()?, b.data()?);
    }
    y.cast(out)
}

/// The outputs `range` of `x wᵀ`, `[N, range]` f32. The range begins at a multiple of 32 and ends at one,
/// or at the last output.
pub(super) fn outputs(x: &Tensor, w: &Weight, range: Range<usize>) -> Result<Tensor> {
    let n = check("linear", x, w.in_features(), w)?;
    let shape = [n, range.len()];
    let mut y = x.device().as_cpu()?.recycler.acquire::<f32>(n * range.len());
    if n == 1 && faults::on(Fault::ReversedSumForOneRow) {
        let turned = widened(x)?.iter().rev().copied().collect();
        let turned = Tensor::new::<f32>(x.device(), x.shape(), turned)?.cast(x.dtype())?;
        product(&turned, w.reversed()?.forward(), range, &mut y)?;
    } else {
        product(x, w.forward(), range, &mut y)?;
    }
    Tensor::new(x.device(), &shape, y)
}

/// `y = x wᵀ` for the outputs `range` of `w`, in the layout of [`Weight::forward`].
fn product(x: &Tensor, w: &Layout, range: Range<usize>, y: &mut [f32]) -> Result<()> {
    let k = x.width();
    match (w, x.dtype()) {
        (Layout::Packed(b), _) => return packed(x, b.columns(range), y, Beta::Zero),
        (Layout::Device(w), _) => return w.data::<f32>().map(|_| ()),
        (Layout::Rows(w), Dtype::BF16) => {
            let w = &w[range.start * k..range.end * k];
            y.copy_from_slice(&reference::linear::<Bf16>(&widened(x)?, w, k));
        }
        (Layout::Rows(w), _) => {
            let w = &w[range.start * k..range.end * k];
            y.copy_from_slice(&reference::linear::<F32>(x.data()?, w, k));
        }
    }
    Ok(())
}

/// `y = start + x b`, `x [N, depth]` in the dtype of the packed `b [depth, columns]`.
fn packed(x: &Tensor, b: packed::View<'_>, y: &mut [f32], beta: Beta) -> Result<()> {
    let (cpu, shape) = (x.device().as_cpu()?, [x.shape()[0], x.width()]);
    match b {
        packed::View::F32(b) => gemm::product(cpu, Matrix::new(x.data()?, shape[0], shape[1]), b, y, beta),
        packed::View::Bf16(b) => {
            gemm_bf16::product(cpu, &PackedA::new(cpu, x.data::<bf16>()?, shape), b, y, beta);
        }
    }
    Ok(())
}

/// `h + linear(x, w, b)`, all f32: the projection back into the residual stream.
///
/// # Errors
/// As [`linear`]; [`Error::Shape`] when `h` has not the shape of the product.
pub fn linear_add(h: &Tensor, x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "linear_add";
    let n = check(OP, x, w.in_features(), w)?;
    if h.shape() != [n, w.out_features()] {
        return Err(Error::Shape { op: OP, want: "h as the product", got: shapes(&[h, x]) });
    }
    if let Device::Gpu(gpu) = x.device() {
        check_bias(w, bias)?;
        return gpu::linear(gpu, x, w, After { bias, residual: Some(h), norm: None }, Dtype::F32);
    }
    let plain = bias.is_none() && !faults::on(Fault::ReversedSumForOneRow);
    if let (Layout::Packed(Packed::F32(b)), true) = (w.forward(), plain) {
        let cpu = x.device().as_cpu()?;
        let mut y = cpu.recycler.acquire::<f32>(n * w.out_features());
        let a = Matrix::new(x.data()?, n, w.in_features());
        gemm::product_residual(cpu, h.data()?, a, b.view(), &mut y);
        return Tensor::new(x.device(), h.shape(), y);
    }
    // a sum commutes: the product is no one else's, h would be copied first
    let mut y = linear(x, w, bias, Dtype::F32)?;
    super::accumulate(&mut y, h)?;
    Ok(y)
}

/// [`linear_add`] and, where a device takes it on the way, [`rms_norm`](super::rms_norm) of the sum by a gain `[out]`
/// and an eps, in the weight's dtype; none otherwise. The bits of both.
///
/// # Errors
/// As [`linear_add`]; [`Error::Shape`] for another gain.
pub fn linear_add_norm(
    h: &Tensor,
    x: &Tensor,
    (w, bias): (&Weight, Option<&Tensor>),
    (gain, eps): (&Tensor, f32),
) -> Result<(Tensor, Option<Tensor>)> {
    const OP: &str = "linear_add_norm";
    if gain.shape() != [w.out_features()] {
        return Err(Error::Shape { op: OP, want: "a gain [out]", got: shapes(&[h, gain]) });
    }
    match x.device() {
        Device::Gpu(gpu)
            if check(OP, x, w.in_features(), w)? > gpu::NORMED_INSIDE
                && h.shape() == [x.shape()[0], w.out_features()] =>
        {
            check_bias(w, bias)?;
            let after = After { bias, residual: Some(h), norm: None };
            let (sum, normed) = gpu::linear_add_norm(gpu, x, w, after, (gain, eps))?;
            Ok((sum, Some(normed)))
        }
        _ => Ok((linear_add(h, x, w, bias)?, None)),
    }
}

/// `dx` of the linears that read one `x`: `dx[n][k]` is one running sum over the outputs of the
/// first weight, then of the second, ...; chunks start anew at each weight.
///
/// `dys[i]` is `[N, out_i]` in the weights' dtype; returns `[N, in]` f32.
///
/// # Errors
/// As [`linear`]; [`Error::Argument`] for an empty group.
pub fn linear_backward_input(dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
    const OP: &str = "linear_backward_input";
    if dys.is_empty() || dys.len() != ws.len() {
        let got = format!("{} and {}", dys.len(), ws.len());
        return Err(Error::Argument { op: OP, want: "as many gradients as weights, at least one", got });
    }
    let n = check(OP, dys[0], ws[0].out_features(), ws[0])?;
    let width = ws[0].in_features();
    for (dy, w) in dys.iter().zip(ws) {
        if check(OP, dy, w.out_features(), w)? != n || w.in_features() != width {
            return Err(Error::Shape { op: OP, want: "one N and one width in a group", got: shapes(dys) });
        }
    }
    if let Device::Gpu(gpu) = dys[0].device() {
        return gpu::input_gradient(gpu, dys, ws);
    }
    let mut dx = dys[0].device().as_cpu()?.recycler.acquire::<f32>(n * width);
    for (i, (dy, w)) in dys.iter().zip(ws).enumerate() {
        let beta = if i == 0 { Beta::Zero } else { Beta::One };
        input_part(&mut dx, dy, (w, 0..w.out_features()), beta)?;
    }
    Tensor::new(dys[0].device(), &[n, width], dx)
}

/// `dx[n][k] = start + dot over the outputs o of range of dy[n][o] w[o][k]`, `dy [N, range]`: goes on with a
/// dot over all outputs where the range begins at a multiple of 256.
pub(super) fn input_part(
    dx: &mut [f32],
    dy: &Tensor,
    (w, range): (&Weight, Range<usize>),
    beta: Beta,
) -> Result<()> {
    let width = w.in_features();
    match (w.backward()?, w.dtype()) {
        (Layout::Packed(b), _) => return packed(dy, b.depths(range), dx, beta),
        (Layout::Device(w), _) => return w.data::<f32>().map(|_| ()),
        (Layout::Rows(w), dtype) => {
            if beta == Beta::Zero {
                dx.fill(0.0);
            }
            let w = &w[range.start * width..range.end * width];
            match dtype {
                Dtype::BF16 => reference::linear_dx::<Bf16>(dx, &widened(dy)?, w, width),
                _ => reference::linear_dx::<F32>(dx, dy.data()?, w, width),
            }
        }
    }
    Ok(())
}

/// `dw[o][k] += rowsum dy[o] x[k]`: into the gradient itself, chunk by chunk, so that the split of
/// a step into micro-batches does not change it.
///
/// `dw` is `[out, in]` f32; `dy [N, out]` and `x [N, in]` in one dtype, f32 or bf16.
///
/// # Errors
/// [`Error::Shape`] when shapes or samples do not fit, [`Error::Dtype`] when `dy` and `x` differ.
pub fn linear_backward_weight(dw: &mut Tensor, dy: &Tensor, x: &Tensor, samples: &Samples) -> Result<()> {
    const OP: &str = "linear_backward_weight";
    let (&[out, width], &[n, o], &[m, k]) = (dw.shape(), dy.shape(), x.shape()) else {
        return Err(Error::Shape {
            op: OP,
            want: "dw [out, in], dy [N, out], x [N, in]",
            got: shapes(&[dw, dy, x]),
        });
    };
    if (out, width, n) != (o, k, m) {
        return Err(Error::Shape {
            op: OP,
            want: "dw [out, in], dy [N, out], x [N, in]",
            got: shapes(&[dw, dy, x]),
        });
    }
    if dy.dtype() != x.dtype() {
        return Err(Error::Dtype { op: OP, want: "dy and x in one dtype", got: dy.dtype() });
    }
    samples.check(OP, n)?;
    if let Device::Gpu(gpu) = &dw.device().clone() {
        return gpu::weight_gradient(gpu, dw, dy, x, samples);
    }
    weight_part(dw.data_mut()?, dy, x, samples)
}

/// [`linear_backward_weight`] for the rows of `dw` that are the outputs of `dy`.
pub(super) fn weight_part(dw: &mut [f32], dy: &Tensor, x: &Tensor, samples: &Samples) -> Result<()> {
    let shape = [dy.width(), x.width()];
    let add = |dw: &mut [f32]| {
        let ranges: Vec<_> = samples.ranges().collect();
        match (x.dtype(), x.device().fast()) {
            (Dtype::BF16, Some(cpu)) => {
                let (dy, x) = (dy.data::<bf16>()?, x.data::<bf16>()?);
                gemm_bf16::weight_gradient(cpu, dy, x, &ranges, dw, shape);
            }
            (_, Some(cpu)) => gemm::weight_gradient(cpu, dy.data()?, x.data()?, &ranges, dw, shape),
            (Dtype::BF16, None) => {
                reference::linear_dw::<Bf16>(dw, &widened(dy)?, &widened(x)?, shape[1], samples);
            }
            (_, None) => reference::linear_dw::<F32>(dw, dy.data()?, x.data()?, shape[1], samples),
        }
        Ok(())
    };
    if faults::on(Fault::MicroBatchTotalAdded) {
        let mut total = vec![0.0; dw.len()];
        add(&mut total)?;
        dw.iter_mut().zip(total).for_each(|(dw, total)| *dw += total);
        return Ok(());
    }
    add(dw)
}

/// `db[o] += rowsum dy[o]`, f32.
///
/// # Errors
/// [`Error::Shape`] when shapes or samples do not fit.
pub fn linear_backward_bias(db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
    const OP: &str = "linear_backward_bias";
    if dy.shape().len() != 2 || db.shape() != [dy.width()] {
        return Err(Error::Shape { op: OP, want: "db [out], dy [N, out]", got: shapes(&[db, dy]) });
    }
    samples.check(OP, dy.shape()[0])?;
    if let Device::Gpu(gpu) = &db.device().clone() {
        return gpu::bias_gradient(gpu, db, dy, samples);
    }
    match dy.device().fast() {
        Some(cpu) => rowsum::sum_rows(cpu, dy.data()?, rowsum::ParamGrad { grad: db.data_mut()?, samples }),
        None => reference::linear_db::<F32>(db.data_mut()?, dy.data()?, samples),
    }
    Ok(())
}

pub(super) fn check_bias(w: &Weight, bias: Option<&Tensor>) -> Result<()> {
    match bias {
        Some(b) if b.shape() != [w.out_features()] => {
            let got = vec![b.shape().to_vec(), vec![w.out_features(), w.in_features()]];
            Err(Error::Shape { op: "linear", want: "bias [out] of w [out, in]", got })
        }
        _ => Ok(()),
    }
}

fn check(op: &'static str, x: &Tensor, width: usize, w: &Weight) -> Result<usize> {
    if x.shape().len() != 2 || x.width() != width {
        let got = vec![x.shape().to_vec(), vec![w.out_features(), w.in_features()]];
        return Err(Error::Shape { op, want: "x [N, in] and w [out, in] (a gradient: [N, out])", got });
    }
    if x.dtype() != w.dtype() {
        return Err(Error::Dtype { op, want: "x in the dtype of the packed weight", got: x.dtype() });
    }
    Ok(x.shape()[0])
}
