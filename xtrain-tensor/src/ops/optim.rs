//! The optimizer's operations, elementwise and norms. All f32.
use super::shapes;
use crate::{Error, Result, Tensor, cpu, reference};

/// The scalars of one AdamW step (Loshchilov & Hutter 2019, arXiv:1711.05101), each formed in f64 and
/// rounded once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWScalars {
    /// `1 - b1`.
    pub s1: f32,
    /// `b2`.
    pub s2: f32,
    /// `1 - b2`.
    pub s3: f32,
    /// `1 - lr wd`: what a decayed parameter keeps.
    pub keep: f32,
    /// `lr / (1 - b1^t)`.
    pub step: f32,
    /// `sqrt(1 - b2^t)`.
    pub c2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

/// `g = g clip`, `m = fma(s1, g - m, m)`, `v = fma(s2, v, s3 (g g))`, `w = w keep`,
/// `w = fma(-step, m / (sqrt(v) / c2 + eps), w)`. `keep` is that of `s` for a matrix, 1 for a vector:
/// gains and biases are not decayed.
///
/// # Errors
/// [`Error::Shape`] unless all four have one shape.
pub fn adamw(
    w: &mut Tensor,
    g: &Tensor,
    [m, v]: [&mut Tensor; 2],
    clip: f32,
    s: &AdamWScalars,
) -> Result<()> {
    if [g.shape(), m.shape(), v.shape()].iter().any(|x| *x != w.shape()) {
        return Err(Error::Shape { op: "adamw", want: "one shape", got: shapes(&[w, g, m, v]) });
    }
    let device = w.device().clone();
    let decay = if w.shape().len() > 1 { s.keep } else { 1.0 };
    let (w, g, m, v) = (w.data_mut::<f32>()?, g.data::<f32>()?, m.data_mut::<f32>()?, v.data_mut::<f32>()?);
    if let Some(cpu) = device.fast() {
        cpu::optim::adamw(cpu, [w, m, v], g, (clip, decay), s);
        return Ok(());
    }
    for i in 0..w.len() {
        (w[i], m[i], v[i]) = reference::adamw([w[i], g[i] * clip, m[i], v[i]], s, decay);
    }
    Ok(())
}

/// The sum of squares of `g`: *sum32* of each row (a vector is one row), then *sum32* over the rows'
/// sums.
///
/// # Errors
/// [`Error::Dtype`] unless `g` is f32.
pub fn sum_of_squares(g: &Tensor) -> Result<f32> {
    let (width, data) = (g.width(), g.data::<f32>()?);
    Ok(match g.device().fast() {
        Some(cpu) => cpu::optim::sum_of_squares(cpu, data, width),
        None => reference::sum_of_squares(data, width),
    })
}
