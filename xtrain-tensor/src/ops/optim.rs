//! The optimizer's operations, elementwise and norms. All f32.
use super::shapes;
use crate::{Device, Error, Result, Tensor, cpu, gpu, reference};

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

/// A parameter with its gradient and its two moments, all f32 of one shape.
#[derive(Debug)]
pub struct Update<'a> {
    /// The values.
    pub w: &'a mut Tensor,
    /// The gradient.
    pub g: &'a Tensor,
    /// The first moment.
    pub m: &'a mut Tensor,
    /// The second moment.
    pub v: &'a mut Tensor,
}

impl Update<'_> {
    fn check(&self, op: &'static str) -> Result<()> {
        let Update { w, g, m, v } = self;
        if [g.shape(), m.shape(), v.shape()].iter().any(|x| *x != w.shape()) {
            return Err(Error::Shape { op, want: "one shape", got: shapes(&[w, g, m, v]) });
        }
        Ok(())
    }

    /// The update of a checked parameter on a processor.
    fn apply(&mut self, clip: f32, s: &AdamWScalars) -> Result<()> {
        let device = self.w.device().clone();
        let decay = if self.w.shape().len() > 1 { s.keep } else { 1.0 };
        let (w, g) = (self.w.data_mut::<f32>()?, self.g.data::<f32>()?);
        let (m, v) = (self.m.data_mut::<f32>()?, self.v.data_mut::<f32>()?);
        if let Some(cpu) = device.fast() {
            cpu::optim::adamw(cpu, [w, m, v], g, (clip, decay), s);
            return Ok(());
        }
        for i in 0..w.len() {
            (w[i], m[i], v[i]) = reference::adamw([w[i], g[i] * clip, m[i], v[i]], s, decay);
        }
        Ok(())
    }
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
    let mut one = [Update { w, g, m, v }];
    one[0].check("adamw")?;
    if let Device::Gpu(gpu) = &g.device().clone() {
        return gpu::adamw(gpu, &mut one, clip, s);
    }
    one[0].apply(clip, s)
}

/// [`adamw`] of every parameter, the gradients together shortened to `max_norm`: by
/// `min(1, max_norm / (norm + 1e-6))`, always. Returns [`global_norm`]; where that is not finite, nothing
/// is changed. On a GPU a few launches for all parameters, and the norm is all that comes back.
///
/// Order: that of `all`, which is the walk order of the model.
///
/// # Errors
/// [`Error::Shape`] unless the four tensors of a parameter have one shape.
pub fn adamw_all(all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<f32> {
    all.iter().try_for_each(|one| one.check("adamw_all"))?;
    if let Some(Device::Gpu(gpu)) = all.first().map(|one| one.w.device().clone()) {
        return gpu::adamw_all(&gpu, all, max_norm, s);
    }
    let norm = global_norm(&all.iter().map(|one| one.g).collect::<Vec<_>>())?;
    if norm.is_finite() {
        let ratio = max_norm / (norm + 1e-6);
        let clip = if ratio < 1.0 { ratio } else { 1.0 };
        all.iter_mut().try_for_each(|one| one.apply(clip, s))?;
    }
    Ok(norm)
}

/// The root of the sum of [`sum_of_squares`] over `gs`, from +0 in their order.
///
/// # Errors
/// [`Error::Dtype`] unless all are f32.
pub fn global_norm(gs: &[&Tensor]) -> Result<f32> {
    if let Some(Device::Gpu(gpu)) = gs.first().map(|g| g.device()) {
        return Ok(gpu::squares(gpu, gs)?[1]);
    }
    let total = gs.iter().try_fold(0f32, |total, g| Ok::<f32, Error>(total + sum_of_squares(g)?))?;
    Ok(total.sqrt())
}

/// The sum of squares of `g`: *sum32* of each row (a vector is one row), then *sum32* over the rows'
/// sums.
///
/// # Errors
/// [`Error::Dtype`] unless `g` is f32.
pub fn sum_of_squares(g: &Tensor) -> Result<f32> {
    if let Device::Gpu(gpu) = g.device() {
        return Ok(gpu::squares(gpu, &[g])?[0]);
    }
    let (width, data) = (g.width().max(1), g.data::<f32>()?);
    Ok(match g.device().fast() {
        Some(cpu) => cpu::optim::sum_of_squares(cpu, data, width),
        None => reference::sum_of_squares(data, width),
    })
}
