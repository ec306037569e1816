//! Shapes in errors.
use crate::tensor::Tensor;

/// The shapes of operands, for an error.
pub(super) fn shapes(xs: &[&Tensor]) -> Vec<Vec<usize>> {
    xs.iter().map(|x| x.shape().to_vec()).collect()
}
