//! A linear map.
use super::weight::Weight;
use crate::tensor::Tensor;

/// `x -> x Wᵀ + b`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// `[out, in]`.
    pub weight: &'a Weight,
    /// `[out]`, f32. `None`: no bias.
    pub bias: Option<&'a Tensor>,
}
