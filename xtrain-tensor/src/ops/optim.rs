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
}

/// The updates of checked parameters on a processor. Whether all values are finite after it.
fn apply(all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<bool> {
    let Some(device) = all.first().map(|one| one.w.device().clone()) else { return Ok(true) };
    let mut parts = Vec::with_capacity(all.len());
    for Update { w, g, m, v } in all {
        let decay = if w.shape().len() > 1 { s.keep } else { 1.0 };
        let (w, m, v) = (w.data_mut()?, m.data_mut()?, v.data_mut()?);
        parts.push(cpu::optim::Update { w, m, v, g: g.data()?, decay });
    }
    if let Some(cpu) = device.fast() {
        return Ok(cpu::optim::adamw(cpu, parts, clip, s));
    }
    for cpu::optim::Update { w, m, v, g, decay } in &mut parts {
        for i in 0..w.len() {
            (w[i], m[i], v[i]) = reference::adamw(w[i], g[i] * clip, m[i], v[i], s, *decay);
        }
    }
    Ok(parts.iter().all(|one| one.w.iter().all(|w| w.is_finite())))
}

/// What [`adamw_all`] found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Updated {
    /// The [`global_norm`] of the gradients, before they were shortened.
    pub norm: f32,
    /// Whether all values of all parameters are finite now; true where nothing was changed.
    pub finite: bool,
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
    apply(&mut one, clip, s).map(|_| ())
}

/// [`adamw`] of every parameter, the gradients together shortened to `max_norm`: by
/// `min(1, max_norm / (norm + 1e-6))`, always. Where the norm is not finite, nothing is changed. On a GPU a few
/// launches for all parameters, and what is returned is all that comes back.
///
/// Order: that of `all`, which is the walk order of the model.
///
/// # Errors
/// [`Error::Shape`] unless the four tensors of a parameter have one shape.
pub fn adamw_all(all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated> {
    all.iter().try_for_each(|one| one.check("adamw_all"))?;
    if let Some(Device::Gpu(gpu)) = all.first().map(|one| one.w.device().clone()) {
        return gpu::adamw_all(&gpu, all, max_norm, s);
    }
    let norm = global_norm(&all.iter().map(|one| one.g).collect::<Vec<_>>())?;
    let ratio = max_norm / (norm + 1e-6);
    let clip = if ratio < 1.0 { ratio } else { 1.0 };
    let finite = !norm.is_finite() || apply(all, clip, s)?;
    Ok(Updated { norm, finite })
}

/// The root of the sum of [`sum_of_squares`] over `gs`, from +0 in their order.
///
/// # Errors
/// [`Error::Dtype`] unless all are f32.
pub fn global_norm(gs: &[&Tensor]) -> Result<f32> {
    if let Some(Device::Gpu(gpu)) = gs.first().map(|g| g.device()) {
        return Ok(gpu::squares(gpu, gs)?[1]);
    }
    let total = squares(gs)?.into_iter().fold(0f32, |total, sum| total + sum);
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
    Ok(squares(&[g])?[0])
}

/// The sum of squares of each of `gs`, on one processor.
fn squares(gs: &[&Tensor]) -> Result<Vec<f32>> {
    let mut rows = Vec::with_capacity(gs.len());
    for g in gs {
        rows.push(cpu::optim::GradRows { values: g.data()?, width: g.width().max(1) });
    }
    Ok(match gs.first().and_then(|g| g.device().fast()) {
        Some(cpu) => cpu::optim::sums_of_squares(cpu, &rows),
        None => rows.iter().map(|g| reference::sum_of_squares(g.values, g.width)).collect(),
    })
}
