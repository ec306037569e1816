//! Operations on keys and values stored as separate tensors.
use super::{Gpu, Grid, args};
use crate::{Dtype, Result, Tensor};

/// `a` followed by `b`, f32 or bf16, copied as 32-bit words. The operation has checked that they are whole words.
pub(crate) fn cat_seq(gpu: &Gpu, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let dtype = if a.dtype() == Dtype::BF16 { Dtype::BF16 } else { Dtype::F32 };
    let y = Tensor::on_gpu(gpu, shape, dtype)?;
    let words = |x: &Tensor| x.len() * dtype.bytes() / 4;
    let args = args![a.at(gpu, dtype)?, b.at(gpu, dtype)?, y.at(gpu, dtype)?, words(a), words(b)];
    // SAFETY: a of m words, b of n, y of m + n.
    unsafe { gpu.launch("cat_seq_f32", Grid::over(words(&y), 256), args)? };
    Ok(y)
}

/// Repeats `x [N, nkv, hd]` for `n_heads` query heads; `nkv` divides `n_heads`.
pub(crate) fn repeat_kv(gpu: &Gpu, x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let &[n, nkv, hd] = x.shape() else { unreachable!("repeat_kv checks its shapes") };
    regroup(gpu, "repeat_kv_f32", x, [n, n_heads, hd], n_heads / nkv)
}

/// Sums `dy [N, nh, hd]` over the query heads of each of `n_kv_heads` groups; `n_kv_heads` divides `nh`.
pub(crate) fn repeat_kv_backward(gpu: &Gpu, dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
    let &[n, nh, hd] = dy.shape() else { unreachable!("repeat_kv_backward checks its shapes") };
    regroup(gpu, "repeat_kv_backward_f32", dy, [n, n_kv_heads, hd], nh / n_kv_heads)
}

fn regroup(gpu: &Gpu, kernel: &'static str, x: &Tensor, shape: [usize; 3], group: usize) -> Result<Tensor> {
    let y = Tensor::on_gpu(gpu, &shape, Dtype::F32)?;
    let args = args![x.at(gpu, Dtype::F32)?, y.at(gpu, Dtype::F32)?, group, shape[2], y.len()];
    // SAFETY: one of x and y is [N, nkv, hd], the other [N, nkv * group, hd]; y has the given length.
    unsafe { gpu.launch(kernel, Grid::over(y.len(), 256), args)? };
    Ok(y)
}
