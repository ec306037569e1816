//! Finiteness check of several tensors with one download of four bytes per tensor.
use super::{At, Gpu, Grid, args};
use crate::{Dtype, Result, Tensor};

/// Index of the first tensor of `xs` that contains a NaN or an infinity. Synchronizes once.
pub(crate) fn first_non_finite(gpu: &Gpu, xs: &[&Tensor]) -> Result<Option<usize>> {
    let found = gpu.zeros(4 * xs.len())?;
    for (at, x) in xs.iter().enumerate() {
        let (dtype, kernel) = match x.dtype() {
            Dtype::BF16 => (Dtype::BF16, "all_finite_bf16"),
            _ => (Dtype::F32, "all_finite_f32"),
        };
        let blocks = x.len().div_ceil(256).min(1024);
        let args = args![x.at(gpu, dtype)?, At(found.at() + 4 * at as u64), x.len() as u64];
        // SAFETY: x has `x.len()` elements, `found` one u32 per tensor.
        unsafe { gpu.launch(kernel, Grid::blocks([blocks, 1, 1], 256), args)? };
    }
    Ok(gpu.download::<u32>(&found)?.iter().position(|&found| found != 0))
}
