//! A borrowed tensor to be saved.

/// A named f32 tensor, row-major.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The name; for model tensors, the one used in Hugging Face checkpoints.
    pub name: &'a str,
    /// The dimensions, none of them zero.
    pub shape: &'a [usize],
    /// The elements; their number is the product of `shape`.
    pub data: &'a [f32],
}
