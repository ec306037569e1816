//! Operands and results of an optimizer step.
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The scalars of one AdamW step (Loshchilov & Hutter 2019, arXiv:1711.05101). Each is computed in f64 and rounded
/// once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWScalars {
    /// `1 - b1`.
    pub s1: f32,
    /// `b2`.
    pub s2: f32,
    /// `1 - b2`.
    pub s3: f32,
    /// `1 - lr wd`: the factor of the weight decay.
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
    /// Checks that the four tensors of each parameter have one shape.
    pub(crate) fn check(op: &'static str, all: &[Update<'_>]) -> Result<()> {
        for Update { w, g, m, v } in all {
            let shapes = [w.shape(), g.shape(), m.shape(), v.shape()];
            if shapes.iter().any(|shape| *shape != w.shape()) {
                let got = shapes.map(<[usize]>::to_vec).into();
                return Err(Error::Shape { op, want: "w, g, m and v of one shape", got });
            }
        }
        Ok(())
    }
}

/// The result of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Updated {
    /// The global norm of the gradients before clipping.
    pub norm: f32,
    /// Whether all values of all parameters are finite after the step. True if the step was skipped.
    pub finite: bool,
}
