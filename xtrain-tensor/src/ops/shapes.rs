//! Shapes for error messages.
use crate::tensor::Tensor;

/// The shapes of operands, for an error message.
pub(super) fn shapes(xs: &[&Tensor]) -> Vec<Vec<usize>> {
    xs.iter().map(|x| x.shape().to_vec()).collect()
}
