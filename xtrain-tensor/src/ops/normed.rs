//! Products of one normed `x`: what begins each half of a block. On a GPU one launch, with the norm of a few rows
//! inside.
use super::{Weight, linear, rms_norm, shapes, silu_mul};
use crate::gpu::Source;
use crate::{Device, Dtype, Error, Result, Tensor, gpu};

/// `x -> x Wᵀ + b`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// `[out, in]`.
    pub weight: &'a Weight,
    /// `[out]`, f32.
    pub bias: Option<&'a Tensor>,
}

/// [`linear`] of `x [N, in]` by each weight, `[N, out_i]` in the weights' dtype, which is that of `x`.
///
/// # Errors
/// Those of [`linear`]; [`Error::Argument`] where there is no weight.
pub fn linears(x: &Tensor, ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    const OP: &str = "linears";
    let dtype = check_plain(OP, x, ws)?;
    if let (Device::Gpu(gpu), source) = (x.device(), Source::Plain(x))
        && gpu::takes(source, ws)
    {
        return gpu::linears(gpu, source, ws);
    }
    ws.iter().map(|w| linear(x, w.weight, w.bias, dtype)).collect()
}

/// `silu(gate(x)) up(x)`, `[N, out]` in the weights' dtype, to which both products are rounded: the bits of [`linears`]
/// and [`silu_mul`].
///
/// # Errors
/// Those of its parts.
pub fn swiglu(x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
    const OP: &str = "swiglu";
    let dtype = check_plain(OP, x, &gate_up)?;
    check_pair(OP, &gate_up)?;
    if let (Device::Gpu(gpu), source) = (x.device(), Source::Plain(x))
        && gpu::takes(source, &gate_up)
    {
        return gpu::swiglu(gpu, source, gate_up);
    }
    let [gate, up] = gate_up.map(|w| linear(x, w.weight, w.bias, dtype));
    silu_mul(&gate?, &up?, dtype)
}

/// `rms_norm(h)` rounded to the weights' dtype, then [`linears`]: `h [N, in]` and `gain [in]` f32. The bits of its
/// parts.
///
/// # Errors
/// Those of [`rms_norm`] and [`linears`].
pub fn norm_linears(h: &Tensor, norm: (&Tensor, f32), ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    const OP: &str = "norm_linears";
    let dtype = check(OP, h, norm.0, ws)?;
    if let (Device::Gpu(gpu), source) = (h.device(), Source::Normed(h, norm))
        && gpu::takes(source, ws)
    {
        return gpu::linears(gpu, source, ws);
    }
    linears(&rms_norm(h, norm.0, norm.1, dtype)?, ws)
}

/// [`swiglu`] of `rms_norm(h)`. The bits of its parts.
///
/// # Errors
/// Those of its parts.
pub fn norm_swiglu(h: &Tensor, norm: (&Tensor, f32), gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
    const OP: &str = "norm_swiglu";
    let dtype = check(OP, h, norm.0, &gate_up)?;
    check_pair(OP, &gate_up)?;
    if let (Device::Gpu(gpu), source) = (h.device(), Source::Normed(h, norm))
        && gpu::takes(source, &gate_up)
    {
        return gpu::swiglu(gpu, source, gate_up);
    }
    swiglu(&rms_norm(h, norm.0, norm.1, dtype)?, gate_up)
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
        bias.map_or(Ok(()), |b| linear::check_bias(weight, Some(b)))?;
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
