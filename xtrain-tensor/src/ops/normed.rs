//! Products of one normed `x`: what begins each half of a block. On a GPU one launch, with the norm of a few rows
//! inside.
use super::linear::check_bias;
use super::shapes;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{Affine, Norm};
use crate::tensor::Tensor;

/// [`linear`] of `x [N, in]` by each weight, `[N, out_i]` in the weights' dtype, which is that of `x`.
///
/// # Errors
/// Those of [`linear`]; [`Error::Argument`] where there is no weight.
pub fn linears(x: &Tensor, ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    check_plain("linears", x, ws)?;
    backend(x.device()).linears(x, ws)
}

/// `silu(gate(x)) up(x)`, `[N, out]` in the weights' dtype, to which both products are rounded: the bits of [`linears`]
/// and [`silu_mul`].
///
/// # Errors
/// Those of its parts.
pub fn swiglu(x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
    const OP: &str = "swiglu";
    check_plain(OP, x, &gate_up)?;
    check_pair(OP, &gate_up)?;
    backend(x.device()).swiglu(x, gate_up)
}

/// `rms_norm(h)` rounded to the weights' dtype, then [`linears`]: `h [N, in]` and `gain [in]` f32. The bits of its
/// parts.
///
/// # Errors
/// Those of [`rms_norm`] and [`linears`].
pub fn norm_linears(h: &Tensor, norm: (&Tensor, f32), ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    check("norm_linears", h, norm.0, ws)?;
    backend(h.device()).norm_linears(h, Norm { gain: norm.0, eps: norm.1 }, ws)
}

/// [`swiglu`] of `rms_norm(h)`. The bits of its parts.
///
/// # Errors
/// Those of its parts.
pub fn norm_swiglu(h: &Tensor, norm: (&Tensor, f32), gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
    const OP: &str = "norm_swiglu";
    check(OP, h, norm.0, &gate_up)?;
    check_pair(OP, &gate_up)?;
    backend(h.device()).norm_swiglu(h, Norm { gain: norm.0, eps: norm.1 }, gate_up)
}

/// The dtype of the weights, if all operands fit.
fn check(op: &'static str, h: &Tensor, gain: &Tensor, ws: &[Affine<'_>]) -> Result<Dtype> {
    if h.shape().len() != 2 || gain.shape() != [h.width()] {
        return Err(Error::Shape { op, want: "h [N, in], gain [in]", got: shapes(&[h, gain]) });
    }
    check_weights(op, h, ws)
}

fn check_plain(op: &'static str, x: &Tensor, ws: &[Affine<'_>]) -> Result<Dtype> {
    if x.shape().len() != 2 {
        return Err(Error::Shape { op, want: "x [N, in]", got: shapes(&[x]) });
    }
    let dtype = check_weights(op, x, ws)?;
    match x.dtype() == dtype {
        true => Ok(dtype),
        false => Err(Error::Dtype { op, want: "the weights' dtype", got: x.dtype() }),
    }
}

fn check_weights(op: &'static str, x: &Tensor, ws: &[Affine<'_>]) -> Result<Dtype> {
    let Some(first) = ws.first() else {
        return Err(Error::Argument { op, want: "at least one weight", got: "none".into() });
    };
    for Affine { weight, bias } in ws {
        bias.map_or(Ok(()), |b| check_bias(weight, Some(b)))?;
        if weight.in_features() != x.width() || weight.dtype() != first.weight.dtype() {
            let got = vec![x.shape().to_vec(), vec![weight.out_features(), weight.in_features()]];
            return Err(Error::Shape { op, want: "rows [N, in], weights [out, in] of one dtype", got });
        }
    }
    Ok(first.weight.dtype())
}

fn check_pair(op: &'static str, gate_up: &[Affine<'_>; 2]) -> Result<()> {
    let got = gate_up.map(|w| vec![w.weight.out_features(), w.weight.in_features()]);
    match got[0] == got[1] {
        true => Ok(()),
        false => Err(Error::Shape { op, want: "gate and up [out, in]", got: got.to_vec() }),
    }
}
