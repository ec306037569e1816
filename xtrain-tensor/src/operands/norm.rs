//! The parameters of RMSNorm, and the gradient of one of them.
use super::Samples;
use crate::tensor::Tensor;

/// `x -> x / sqrt(mean(x²) + eps) * gain`.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// The norm's weight `[C]`, f32.
    pub gain: &'a Tensor,
    /// Added to the mean of the squares.
    pub eps: f32,
}

/// The gradient of a norm's gain, to which the rows of the samples are added in order.
#[derive(Debug)]
pub struct GainGradient<'a> {
    /// `[C]`, f32.
    pub dw: &'a mut Tensor,
    /// The samples of the rows.
    pub samples: &'a Samples,
}
