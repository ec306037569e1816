//! Some rows of a tensor.
use half::bf16;
use xtrain_model::Result;
use xtrain_tensor::{Dtype, Stored, Tensor};

/// Rows `which` of `x [N, C]`, in that order; `x` itself, shared, when they are all of its rows.
pub(super) fn rows(x: &Tensor, which: &[usize]) -> Result<Tensor> {
    if which.len() == x.shape()[0] && which.iter().enumerate().all(|(at, &n)| at == n) {
        return Ok(x.clone());
    }
    match x.dtype() {
        Dtype::BF16 => copied::<bf16>(x, which),
        _ => copied::<f32>(x, which),
    }
}

fn copied<T: Stored>(x: &Tensor, which: &[usize]) -> Result<Tensor> {
    let (data, c) = (x.data::<T>()?, x.width());
    let mut values = Vec::with_capacity(which.len() * c);
    which.iter().for_each(|&n| values.extend_from_slice(&data[n * c..][..c]));
    Ok(Tensor::new(x.device(), &[which.len(), c], values)?)
}
