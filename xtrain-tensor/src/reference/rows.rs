//! Operations that move rows without arithmetic: gather, scatter, copy, repeat.
use half::bf16;

use crate::dtype::{Dtype, by_dtype};
use crate::error::Result;
use crate::operands::SlotRange;
use crate::tensor::{Stored, Tensor};

/// The number of values of a row.
fn width(x: &Tensor) -> usize {
    x.shape()[1..].iter().product()
}

/// `y[n] = x[rows[n]]`.
pub(crate) fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    fn gather<T: Stored>(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        let (data, width) = (x.data::<T>()?, width(x));
        let mut y = Vec::with_capacity(rows.len() * width);
        rows.iter().for_each(|&row| y.extend_from_slice(&data[row as usize * width..][..width]));
        Tensor::new(x.device(), &[&[rows.len()], &x.shape()[1..]].concat(), y)
    }
    by_dtype!(x.dtype(), gather(x, rows))
}

/// `pool[slots[n]] = x[n]`.
pub(crate) fn scatter_rows(pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
    fn scatter<T: Stored>(pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
        let width = width(pool);
        let (pool, x) = (pool.data_mut::<T>()?, x.data::<T>()?);
        for (n, &slot) in slots.iter().enumerate() {
            pool[slot as usize * width..][..width].copy_from_slice(&x[n * width..][..width]);
        }
        Ok(())
    }
    by_dtype!(x.dtype(), scatter(pool, x, slots))
}

/// `to[r.to + i] = from[r.from + i]` for every range.
pub(crate) fn copy_slots(to: &mut Tensor, from: &Tensor, ranges: &[SlotRange]) -> Result<()> {
    fn copy<T: Stored>(to: &mut Tensor, from: &Tensor, ranges: &[SlotRange]) -> Result<()> {
        let w = width(to);
        let (to, from) = (to.data_mut::<T>()?, from.data::<T>()?);
        for r in ranges {
            to[r.to * w..][..r.len * w].copy_from_slice(&from[r.from * w..][..r.len * w]);
        }
        Ok(())
    }
    by_dtype!(from.dtype(), copy(to, from, ranges))
}

/// `pool[r.to + i] = pool[r.from + i]`.
pub(crate) fn copy_slots_within(pool: &mut Tensor, range: SlotRange) -> Result<()> {
    fn copy<T: Stored>(pool: &mut Tensor, SlotRange { from, to, len }: SlotRange) -> Result<()> {
        let w = width(pool);
        pool.data_mut::<T>()?.copy_within(from * w..(from + len) * w, to * w);
        Ok(())
    }
    by_dtype!(pool.dtype(), copy(pool, range))
}

/// `a` followed by `b` along the first dimension.
pub(crate) fn cat_seq(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = [&[a.shape()[0] + b.shape()[0]], &a.shape()[1..]].concat();
    match a.dtype() {
        Dtype::BF16 => Tensor::new(a.device(), &shape, [a.data::<bf16>()?, b.data()?].concat()),
        _ => Tensor::new(a.device(), &shape, [a.data::<f32>()?, b.data()?].concat()),
    }
}

/// `[N, nkv, hd]` to `[N, nh, hd]`: query head `h` reads kv head `h / (nh / nkv)`.
pub(crate) fn repeat_kv(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let &[n, nkv, hd] = x.shape() else { unreachable!("repeat_kv checks its shapes") };
    let data = x.data::<f32>()?;
    let head = |i: usize| (i / n_heads) * nkv + (i % n_heads) / (n_heads / nkv);
    let y = (0..n * n_heads).flat_map(|i| data[head(i) * hd..][..hd].iter().copied()).collect();
    Tensor::new(x.device(), &[n, n_heads, hd], y)
}

/// The query heads of a group, added in ascending order from +0.
pub(crate) fn repeat_kv_backward(dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
    let &[n, nh, hd] = dy.shape() else { unreachable!("repeat_kv_backward checks its shapes") };
    let (data, group) = (dy.data::<f32>()?, nh / n_kv_heads);
    let mut dx = vec![0f32; n * n_kv_heads * hd];
    for (i, dx) in dx.chunks_exact_mut(hd).enumerate() {
        for dy in data[i * group * hd..][..group * hd].chunks_exact(hd) {
            dx.iter_mut().zip(dy).for_each(|(a, b)| *a += b);
        }
    }
    Tensor::new(dy.device(), &[n, n_kv_heads, hd], dx)
}
