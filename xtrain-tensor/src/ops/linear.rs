//! The linear map `x Wᵀ + b` and its three gradients.
use super::checks::{misfit, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{Affine, Samples, Weight};
use crate::tensor::Tensor;

/// `y[n][o] = dot(x[n], w[o]) + b[o]`, rounded to `out`.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, in]` | in the weight's dtype |
/// | `w` | `[out, in]` | packed |
/// | `bias` | `[out]` | f32, added in f32 before any rounding |
/// | returns | `[N, out]` | in `out` |
///
/// Order: *dot* of docs/numerics.md, chunks of 256 (bf16: blocks of 32). The bits of an output do not depend on `N`.
///
/// # Errors
/// [`Error::Shape`] if widths differ, [`Error::Dtype`] if `x` is not in the weight's dtype.
pub fn linear(x: &Tensor, w: &Weight, bias: Option<&Tensor>, out: Dtype) -> Result<Tensor> {
    check_bias(w, bias)?;
    check("linear", x, w.in_features(), w)?;
    backend(x.device()).linear(x, Affine { weight: w, bias }, out)
}

/// `h + linear(x, w, b)`, all f32: the projection back into the residual stream.
///
/// # Errors
/// As [`linear`]; [`Error::Shape`] if `h` does not have the shape of the product.
pub fn linear_add(h: &Tensor, x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "linear_add";
    let n = check(OP, x, w.in_features(), w)?;
    refuse(h.shape() != [n, w.out_features()], OP, "h as the product", &[h, x])?;
    check_bias(w, bias)?;
    backend(x.device()).linear_add(h, x, Affine { weight: w, bias })
}

/// `dx` of a group of linear maps with the same input `x`. `dx[n][k]` is one running sum over the outputs of the
/// first weight, then of the second, and so on; chunks restart at each weight.
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
        refuse(
            check(OP, dy, w.out_features(), w)? != n || w.in_features() != width,
            OP,
            "one N and one width in a group",
            dys,
        )?;
    }
    backend(dys[0].device()).linear_backward_input(dys, ws)
}

/// `dw[o][k] += rowsum dy[o] x[k]`. Each chunk is added to the gradient itself, so the split of a step into
/// micro-batches does not change the gradient.
///
/// `dw` is `[out, in]` f32; `dy [N, out]` and `x [N, in]` in one dtype, f32 or bf16.
///
/// # Errors
/// [`Error::Shape`] if shapes or samples do not match, [`Error::Dtype`] if `dy` and `x` differ.
pub fn linear_backward_weight(dw: &mut Tensor, dy: &Tensor, x: &Tensor, samples: &Samples) -> Result<()> {
    const OP: &str = "linear_backward_weight";
    let (&[out, width], &[n, o], &[m, k]) = (dw.shape(), dy.shape(), x.shape()) else {
        return Err(misfit(OP, "dw [out, in], dy [N, out], x [N, in]", &[dw, dy, x]));
    };
    refuse((out, width, n) != (o, k, m), OP, "dw [out, in], dy [N, out], x [N, in]", &[dw, dy, x])?;
    refuse_dtype(dy.dtype() != x.dtype(), OP, "dy and x in one dtype", dy.dtype())?;
    samples.check(OP, n)?;
    backend(&dw.device().clone()).linear_backward_weight(dw, dy, x, samples)
}

/// `db[o] += rowsum dy[o]`, f32.
///
/// # Errors
/// [`Error::Shape`] if shapes or samples do not match.
pub fn linear_backward_bias(db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
    const OP: &str = "linear_backward_bias";
    refuse(dy.shape().len() != 2 || db.shape() != [dy.width()], OP, "db [out], dy [N, out]", &[db, dy])?;
    samples.check(OP, dy.shape()[0])?;
    backend(&db.device().clone()).linear_backward_bias(db, dy, samples)
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
    refuse_dtype(x.dtype() != w.dtype(), op, "x in the dtype of the packed weight", x.dtype())?;
    Ok(x.shape()[0])
}
