//! The parameters of RMSNorm.
use crate::tensor::Tensor;

/// `x -> x / sqrt(mean(x²) + eps) * gain`.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// The norm's weight `[C]`, f32.
    pub gain: &'a Tensor,
    /// Added to the mean of the squares.
    pub eps: f32,
}
