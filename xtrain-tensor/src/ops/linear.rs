//! The linear map `x Wᵀ + b` and its three gradients.
use half::bf16;

use super::weight::Layout;
use super::{Samples, Weight, shapes, widened};
use crate::cpu::Packed;
use crate::cpu::gemm::{self, Matrix, Start};
use crate::cpu::gemm_bf16::{self, Left};
use crate::reference::{self, Bf16, F32};
use crate::{Dtype, Error, Result, Tensor, faults};

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
    let n = check("linear", x, w.width(), w)?;
    let b = match bias {
        Some(b) if b.shape() != [w.out()] => {
            let got = vec![b.shape().to_vec(), vec![w.out(), w.width()]];
            return Err(Error::Shape { op: "linear", want: "bias [out] of w [out, in]", got });
        }
        Some(b) => Some(b.data::<f32>()?),
        None => None,
    };
    let mut y = x.device().as_cpu().recycler.take::<f32>(n * w.out());
    if n == 1 && faults::on("reversed-sum-for-one-row") {
        let turned = widened(x)?.iter().rev().copied().collect();
        let turned = Tensor::new::<f32>(x.device(), x.shape(), turned)?.cast(x.dtype())?;
        product(&turned, w.reversed()?.forward(), &mut y)?;
    } else {
        product(x, w.forward(), &mut y)?;
    }
    if let Some(b) = b {
        y.chunks_exact_mut(w.out()).for_each(|y| y.iter_mut().zip(b).for_each(|(y, b)| *y += b));
    }
    Tensor::new(x.device(), &[n, w.out()], y)?.cast(out)
}

/// `y = x wᵀ`, for `w` in the layout of [`Weight::forward`].
fn product(x: &Tensor, w: &Layout, y: &mut [f32]) -> Result<()> {
    match (w, x.dtype()) {
        (Layout::Packed(b), _) => return packed(x, b, y, Start::Zero),
        (Layout::Rows(w), Dtype::BF16) => {
            y.copy_from_slice(&reference::linear::<Bf16>(&widened(x)?, w, x.width()));
        }
        (Layout::Rows(w), _) => y.copy_from_slice(&reference::linear::<F32>(x.data()?, w, x.width())),
    }
    Ok(())
}

/// `y = start + x b`, `x [N, depth]` in the dtype of the packed `b [depth, columns]`.
fn packed(x: &Tensor, b: &Packed, y: &mut [f32], start: Start) -> Result<()> {
    let (cpu, shape) = (x.device().as_cpu(), [x.shape()[0], x.width()]);
    match b {
        Packed::F32(b) => gemm::product(cpu, Matrix::new(x.data()?, shape[0], shape[1]), b.view(), y, start),
        Packed::Bf16(b) => gemm_bf16::product(cpu, &Left::new(cpu, x.data::<bf16>()?, shape), b, y, start),
    }
    Ok(())
}

/// `h + linear(x, w, b)`, all f32: the projection back into the residual stream.
///
/// # Errors
/// As [`linear`]; [`Error::Shape`] when `h` has not the shape of the product.
pub fn linear_add(h: &Tensor, x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "linear_add";
    let n = check(OP, x, w.width(), w)?;
    let plain = bias.is_none() && !faults::on("reversed-sum-for-one-row");
    if let (Layout::Packed(Packed::F32(b)), true) = (w.forward(), plain) {
        if h.shape() != [n, w.out()] {
            return Err(Error::Shape { op: OP, want: "h as the product", got: shapes(&[h, x]) });
        }
        let cpu = x.device().as_cpu();
        let mut y = cpu.recycler.take::<f32>(n * w.out());
        let a = Matrix::new(x.data()?, n, w.width());
        gemm::product_onto(cpu, h.data()?, a, b.view(), &mut y);
        return Tensor::new(x.device(), h.shape(), y);
    }
    super::add(h, &linear(x, w, bias, Dtype::F32)?)
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
    let n = check(OP, dys[0], ws[0].out(), ws[0])?;
    let width = ws[0].width();
    let mut dx = dys[0].device().as_cpu().recycler.take::<f32>(n * width);
    if dys[0].device().fast().is_none() {
        dx.fill(0.0);
    }
    for (i, (dy, w)) in dys.iter().zip(ws).enumerate() {
        if check(OP, dy, w.out(), w)? != n || w.width() != width {
            return Err(Error::Shape { op: OP, want: "one N and one width in a group", got: shapes(dys) });
        }
        match (w.backward()?, w.dtype()) {
            (Layout::Packed(b), _) => {
                packed(dy, b, &mut dx, if i == 0 { Start::Zero } else { Start::Continue })?;
            }
            (Layout::Rows(w), Dtype::BF16) => reference::linear_dx::<Bf16>(&mut dx, &widened(dy)?, w, width),
            (Layout::Rows(w), _) => reference::linear_dx::<F32>(&mut dx, dy.data()?, w, width),
        }
    }
    Tensor::new(dys[0].device(), &[n, width], dx)
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
    let add = |dw: &mut Tensor| {
        let (dw, ranges): (_, Vec<_>) = (dw.data_mut()?, samples.ranges().collect());
        match (x.dtype(), x.device().fast()) {
            (Dtype::BF16, Some(cpu)) => {
                let operands = (dy.data::<bf16>()?, x.data::<bf16>()?);
                gemm_bf16::weight_gradient(cpu, operands, &ranges, dw, [out, width]);
            }
            (_, Some(cpu)) => gemm::weight_gradient(cpu, [dy.data()?, x.data()?], &ranges, dw, [out, width]),
            (Dtype::BF16, None) => {
                reference::linear_dw::<Bf16>(dw, &widened(dy)?, &widened(x)?, width, samples);
            }
            (_, None) => reference::linear_dw::<F32>(dw, dy.data()?, x.data()?, width, samples),
        }
        Ok(())
    };
    if faults::on("micro-batch-total-added") {
        let mut total = Tensor::zeros(dw.device(), dw.shape(), Dtype::F32);
        add(&mut total)?;
        return super::accumulate(dw, &total);
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
    reference::linear_db::<F32>(db.data_mut()?, dy.data()?, samples);
    Ok(())
}

fn check(op: &'static str, x: &Tensor, width: usize, w: &Weight) -> Result<usize> {
    if x.shape().len() != 2 || x.width() != width {
        let got = vec![x.shape().to_vec(), vec![w.out(), w.width()]];
        return Err(Error::Shape { op, want: "x [N, in] and w [out, in] (a gradient: [N, out])", got });
    }
    if x.dtype() != w.dtype() {
        return Err(Error::Dtype { op, want: "x in the dtype of the packed weight", got: x.dtype() });
    }
    Ok(x.shape()[0])
}
