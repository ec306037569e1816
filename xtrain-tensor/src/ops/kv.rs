//! Keys and values as tensors of their own: appended, or expanded to the query heads.
//!
//! The hot path does neither: it writes in place and indexes the kv head.
use half::bf16;

use super::shapes;
use crate::{Device, Dtype, Error, Result, Tensor, gpu};

/// `a` followed by `b` along the sequence axis: `[T, ..]` and `[U, ..]` → `[T + U, ..]`, f32 or bf16.
///
/// # Errors
/// [`Error::Shape`] unless all but the first dimension agree, and for bf16 rows of an odd number of values: a row is
/// copied as 32-bit words on a GPU. [`Error::Dtype`] unless both are f32 or both bf16.
pub fn cat_seq(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    const OP: &str = "cat_seq";
    let ([t, rest @ ..], [u, tail @ ..]) = (a.shape(), b.shape()) else {
        return Err(Error::Shape { op: OP, want: "a [T, ..], b [U, ..]", got: shapes(&[a, b]) });
    };
    if rest != tail {
        return Err(Error::Shape { op: OP, want: "a [T, ..], b [U, ..]", got: shapes(&[a, b]) });
    }
    let row_bytes = rest.iter().product::<usize>() * a.dtype().bytes();
    if !row_bytes.is_multiple_of(4) {
        return Err(Error::Shape { op: OP, want: "bf16 rows of an even size", got: shapes(&[a, b]) });
    }
    let shape = [&[t + u], rest].concat();
    if let Device::Gpu(gpu) = a.device() {
        return gpu::cat_seq(gpu, a, b, &shape);
    }
    match a.dtype() {
        Dtype::BF16 => Tensor::new(a.device(), &shape, [a.data::<bf16>()?, b.data()?].concat()),
        _ => Tensor::new(a.device(), &shape, [a.data::<f32>()?, b.data()?].concat()),
    }
}

/// Query head `h` reads kv head `h / (nh / nkv)`: `[N, nkv, hd]` → `[N, nh, hd]`, f32.
///
/// # Errors
/// [`Error::Shape`] unless `x` has three dimensions and `nkv` divides `n_heads`.
pub fn repeat_kv(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (n, nkv, hd) = check("repeat_kv", x, n_heads)?;
    if let Device::Gpu(gpu) = x.device() {
        return gpu::repeat_kv(gpu, x, n_heads);
    }
    let data = x.data::<f32>()?;
    let head = |i: usize| (i / n_heads) * nkv + (i % n_heads) / (n_heads / nkv);
    let y = (0..n * n_heads).flat_map(|i| data[head(i) * hd..][..hd].iter().copied()).collect();
    Tensor::new(x.device(), &[n, n_heads, hd], y)
}

/// The gradient of [`repeat_kv`]: the query heads of a group added in rising order, from +0.
/// `dy [N, nh, hd]` → `[N, n_kv_heads, hd]`.
///
/// # Errors
/// As [`repeat_kv`].
pub fn repeat_kv_backward(dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
    const OP: &str = "repeat_kv_backward";
    let &[n, nh, hd] = dy.shape() else {
        return Err(Error::Shape { op: OP, want: "dy [N, nh, hd]", got: shapes(&[dy]) });
    };
    if n_kv_heads == 0 || !nh.is_multiple_of(n_kv_heads) {
        return Err(Error::Shape {
            op: OP,
            want: "nkv that divides nh",
            got: vec![vec![nh], vec![n_kv_heads]],
        });
    }
    if let Device::Gpu(gpu) = dy.device() {
        return gpu::repeat_kv_backward(gpu, dy, n_kv_heads);
    }
    let (data, group) = (dy.data::<f32>()?, nh / n_kv_heads);
    let mut dx = vec![0f32; n * n_kv_heads * hd];
    for (i, dx) in dx.chunks_exact_mut(hd).enumerate() {
        for dy in data[i * group * hd..][..group * hd].chunks_exact(hd) {
            dx.iter_mut().zip(dy).for_each(|(a, b)| *a += b);
        }
    }
    Tensor::new(dy.device(), &[n, n_kv_heads, hd], dx)
}

fn check(op: &'static str, x: &Tensor, n_heads: usize) -> Result<(usize, usize, usize)> {
    match *x.shape() {
        [n, nkv, hd] if nkv > 0 && n_heads.is_multiple_of(nkv) => Ok((n, nkv, hd)),
        _ => Err(Error::Shape { op, want: "x [N, nkv, hd], nkv a divisor of n_heads", got: shapes(&[x]) }),
    }
}
