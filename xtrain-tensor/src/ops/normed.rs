//! Linear maps with the same input. A GPU runs them in one launch.
use super::checks::refuse;
use super::linear::check_bias;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::Affine;
use crate::tensor::Tensor;

/// [`linear`](super::linear) of `x [N, in]` with each weight: `[N, out_i]` in the weights' dtype, which is that of
/// `x`.
///
/// # Errors
/// Those of [`linear`](super::linear); [`Error::Argument`] for an empty list of weights.
pub fn linears(x: &Tensor, ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    check_plain("linears", x, ws)?;
    backend(x.device()).linears(x, ws)
}

/// `silu(gate(x)) up(x)`: `[N, out]` in the weights' dtype, to which both products are rounded. Bit-identical to
/// [`linears`] followed by [`silu_mul`](super::silu_mul).
///
/// # Errors
/// Those of the two operations.
pub fn swiglu(x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
    const OP: &str = "swiglu";
    check_plain(OP, x, &gate_up)?;
    check_pair(OP, &gate_up)?;
    backend(x.device()).swiglu(x, gate_up)
}

fn check_plain(op: &'static str, x: &Tensor, ws: &[Affine<'_>]) -> Result<Dtype> {
    refuse(x.shape().len() != 2, op, "x [N, in]", &[x])?;
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
