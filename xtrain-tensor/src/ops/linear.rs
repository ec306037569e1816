//! The linear map `x Wᵀ + b`, groups of them with the same input, and the three gradients.
use super::checks::{check_float, misfit, misfit_shapes, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{Affine, Samples, Weight};
use crate::tensor::{Tensor, Tensors};

/// `y[n][o] = dot(x[n], w[o]) + b[o]`, rounded to `out`.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, in]` | in the weight's dtype |
/// | `w` | `[out, in]` | packed |
/// | `bias` | `[out]` | f32, added in f32 before any rounding |
/// | returns | `[N, out]` | in `out` |
///
/// Order: *dot* of docs/numerics.md. Chunks of 256; bf16: on the CPU blocks of 32, on a GPU chunks of 256 in steps of
/// 16. The bits of an output do not depend on `N`.
///
/// # Errors
/// [`Error::Shape`] if widths differ, [`Error::Dtype`] if `x` is not in the weight's dtype or `out` is neither f32 nor
/// bf16.
pub fn linear(x: &Tensor, w: &Weight, bias: Option<&Tensor>, out: Dtype) -> Result<Tensor> {
    let affine = Affine { weight: w, bias };
    check_bias(affine)?;
    check("linear", x, w.in_features(), w)?;
    check_float("linear", out)?;
    backend(x.device()).linear(x, affine, out)
}

/// `h + linear(x, w, b)`, all f32: the projection back into the residual stream.
///
/// # Errors
/// As [`linear`]; [`Error::Shape`] if `h` does not have the shape of the product.
pub fn linear_add(h: &Tensor, x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "linear_add";
    let n = check(OP, x, w.in_features(), w)?;
    refuse(h.shape() != [n, w.out_features()], OP, "h as the product", &[h, x])?;
    let affine = Affine { weight: w, bias };
    check_bias(affine)?;
    backend(x.device()).linear_add(h, x, affine)
}

/// [`linear`] of `x [N, in]` with each weight: `[N, out_i]` in the weights' dtype, which is that of
/// `x`. A GPU runs them in one launch.
///
/// # Errors
/// Those of [`linear`]; [`Error::Argument`] for an empty list of weights.
pub fn linears(x: &Tensor, ws: &[Affine<'_>]) -> Result<Tensors> {
    check_group("linears", x, ws)?;
    backend(x.device()).linears(x, ws)
}

/// `silu(gate(x)) up(x)`: `[N, out]` in the weights' dtype, to which both products are rounded. Bit-identical to
/// [`linears`] followed by [`silu_mul`](super::silu_mul). A GPU runs it in one launch.
///
/// # Errors
/// Those of the two operations.
pub fn swiglu(x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
    check_swiglu("swiglu", x, &gate_up)?;
    backend(x.device()).swiglu(x, gate_up)
}

/// [`swiglu`], and the values that its gradient reads: `[y, gate(x), up(x)]`, all `[N, out]` in the weights' dtype.
///
/// # Errors
/// As [`swiglu`].
pub fn swiglu_kept(x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<[Tensor; 3]> {
    check_swiglu("swiglu_kept", x, &gate_up)?;
    backend(x.device()).swiglu_kept(x, gate_up)
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
/// [`Error::Shape`] if shapes or samples do not match, [`Error::Dtype`] unless `dy` and `x` are both f32 or both bf16.
pub fn linear_backward_weight(dw: &mut Tensor, dy: &Tensor, x: &Tensor, samples: &Samples) -> Result<()> {
    const OP: &str = "linear_backward_weight";
    let (&[out, width], &[n, o], &[m, k]) = (dw.shape(), dy.shape(), x.shape()) else {
        return Err(misfit(OP, "dw [out, in], dy [N, out], x [N, in]", &[dw, dy, x]));
    };
    refuse((out, width, n) != (o, k, m), OP, "dw [out, in], dy [N, out], x [N, in]", &[dw, dy, x])?;
    refuse_dtype(dy.dtype() != x.dtype(), OP, "dy and x in one dtype", dy.dtype())?;
    check_float(OP, x.dtype())?;
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

/// Returns the number of rows.
fn check(op: &'static str, x: &Tensor, width: usize, w: &Weight) -> Result<usize> {
    if x.shape().len() != 2 || x.width() != width {
        let want = "x [N, in] and w [out, in] (a gradient: [N, out])";
        return Err(misfit_shapes(op, want, &[x.shape(), &w.shape()]));
    }
    refuse_dtype(x.dtype() != w.dtype(), op, "x in the dtype of the packed weight", x.dtype())?;
    Ok(x.shape()[0])
}

fn check_bias(Affine { weight, bias }: Affine<'_>) -> Result<()> {
    match bias {
        Some(b) if b.shape() != [weight.out_features()] => {
            Err(misfit_shapes("linear", "bias [out] of w [out, in]", &[b.shape(), &weight.shape()]))
        }
        _ => Ok(()),
    }
}

fn check_swiglu(op: &'static str, x: &Tensor, gate_up: &[Affine<'_>; 2]) -> Result<()> {
    check_group(op, x, gate_up)?;
    let [gate, up] = gate_up.each_ref().map(|w| w.weight.shape());
    match gate == up {
        true => Ok(()),
        false => Err(misfit_shapes(op, "gate and up [out, in]", &[&gate, &up])),
    }
}

fn check_group(op: &'static str, x: &Tensor, ws: &[Affine<'_>]) -> Result<()> {
    refuse(x.shape().len() != 2, op, "x [N, in]", &[x])?;
    let Some(first) = ws.first() else {
        return Err(Error::Argument { op, want: "at least one weight", got: "none".into() });
    };
    for &w in ws {
        check_bias(w)?;
        if w.weight.in_features() != x.width() || w.weight.dtype() != first.weight.dtype() {
            let want = "rows [N, in], weights [out, in] of one dtype";
            return Err(misfit_shapes(op, want, &[x.shape(), &w.weight.shape()]));
        }
    }
    refuse_dtype(x.dtype() != first.weight.dtype(), op, "the weights' dtype", x.dtype())
}
