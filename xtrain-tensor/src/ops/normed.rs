//! Products of normed rows: what begins each half of a block. For a few rows on a GPU one launch each.
use super::{Weight, linear, rms_norm, shapes, silu_mul};
use crate::{Device, Error, Result, Tensor, gpu};

/// `x -> x Wᵀ + b`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// `[out, in]`.
    pub weight: &'a Weight,
    /// `[out]`, f32.
    pub bias: Option<&'a Tensor>,
}

/// `rms_norm(h)` rounded to the weights' dtype, then [`linear`] by each: `h [N, in]` and `gain [in]` f32,
/// returns `[N, out_i]` in the weights' dtype. The bits of its parts.
///
/// # Errors
/// Those of [`rms_norm`] and [`linear`]; [`Error::Argument`] where there is no weight.
pub fn norm_linears(h: &Tensor, norm: (&Tensor, f32), ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    const OP: &str = "norm_linears";
    let dtype = check(OP, h, norm.0, ws)?.weight.dtype();
    if let Device::Gpu(gpu) = h.device()
        && gpu::takes_normed(h, ws)
    {
        return gpu::norm_linears(gpu, h, norm, ws);
    }
    let x = rms_norm(h, norm.0, norm.1, dtype)?;
    ws.iter().map(|w| linear(&x, w.weight, w.bias, dtype)).collect()
}

/// `silu(gate(n)) up(n)` with `n = rms_norm(h)`, `[N, out]` in the weights' dtype, to which both products are
/// rounded. The bits of [`norm_linears`] and [`silu_mul`].
///
/// # Errors
/// Those of its parts.
pub fn norm_swiglu(h: &Tensor, norm: (&Tensor, f32), [gate, up]: [Affine<'_>; 2]) -> Result<Tensor> {
    const OP: &str = "norm_swiglu";
    let dtype = check(OP, h, norm.0, &[gate, up])?.weight.dtype();
    if gate.weight.out() != up.weight.out() {
        let got = [gate, up].map(|w| vec![w.weight.out(), w.weight.width()]).to_vec();
        return Err(Error::Shape { op: OP, want: "gate and up [out, in]", got });
    }
    if let Device::Gpu(gpu) = h.device()
        && gpu::takes_normed(h, &[gate, up])
    {
        return gpu::norm_swiglu(gpu, h, norm, [gate, up]);
    }
    let x = rms_norm(h, norm.0, norm.1, dtype)?;
    let [gate, up] = [gate, up].map(|w| linear(&x, w.weight, w.bias, dtype));
    silu_mul(&gate?, &up?, dtype)
}

/// The first weight, if all operands fit.
fn check<'a>(op: &'static str, h: &Tensor, gain: &Tensor, ws: &[Affine<'a>]) -> Result<Affine<'a>> {
    let Some(&first) = ws.first() else {
        return Err(Error::Argument { op, want: "at least one weight", got: "none".into() });
    };
    if h.shape().len() != 2 || gain.shape() != [h.width()] {
        return Err(Error::Shape { op, want: "h [N, in], gain [in]", got: shapes(&[h, gain]) });
    }
    for Affine { weight, bias } in ws {
        let bias = bias.map_or(Ok(()), |b| linear::check_bias(weight, Some(b)));
        bias?;
        if weight.width() != h.width() || weight.dtype() != first.weight.dtype() {
            let got = vec![h.shape().to_vec(), vec![weight.out(), weight.width()]];
            return Err(Error::Shape { op, want: "h [N, in], weights [out, in] of one dtype", got });
        }
    }
    Ok(first)
}
