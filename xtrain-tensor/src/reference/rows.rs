//! Operations that copy or add whole rows, for both host backends: gather, scatter, copy, repeat.
use crate::backend::{HostBackend, RowOps};
use crate::dtype::by_dtype;
use crate::error::Result;
use crate::operands::SlotRange;
use crate::tensor::Tensor;

fn row_len(x: &Tensor) -> usize {
    x.shape()[1..].iter().product()
}

impl<B: HostBackend> RowOps for B {
    fn gather_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        let (width, shape) = (row_len(x), [&[rows.len()], &x.shape()[1..]].concat());
        by_dtype!(x.dtype(), T => {
            let data = x.data::<T>()?;
            let mut y = Vec::with_capacity(rows.len() * width);
            rows.iter().for_each(|&row| y.extend_from_slice(&data[row as usize * width..][..width]));
            Tensor::new(x.device(), &shape, y)
        })
    }

    fn scatter_rows(&self, pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
        let width = row_len(pool);
        by_dtype!(x.dtype(), T => {
            let (pool, x) = (pool.data_mut::<T>()?, x.data::<T>()?);
            for (n, &slot) in slots.iter().enumerate() {
                pool[slot as usize * width..][..width].copy_from_slice(&x[n * width..][..width]);
            }
        });
        Ok(())
    }

    fn copy_slots(&self, to: &mut Tensor, from: &Tensor, ranges: &[SlotRange]) -> Result<()> {
        let w = row_len(to);
        by_dtype!(from.dtype(), T => {
            let (to, from) = (to.data_mut::<T>()?, from.data::<T>()?);
            for r in ranges {
                to[r.to * w..][..r.len * w].copy_from_slice(&from[r.from * w..][..r.len * w]);
            }
        });
        Ok(())
    }

    fn copy_slots_within(&self, pool: &mut Tensor, SlotRange { from, to, len }: SlotRange) -> Result<()> {
        let w = row_len(pool);
        by_dtype!(pool.dtype(), T => pool.data_mut::<T>()?.copy_within(from * w..(from + len) * w, to * w));
        Ok(())
    }

    fn cat_seq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let shape = [&[a.shape()[0] + b.shape()[0]], &a.shape()[1..]].concat();
        by_dtype!(a.dtype(), T => Tensor::new(a.device(), &shape, [a.data::<T>()?, b.data()?].concat()))
    }

    fn repeat_kv(&self, x: &Tensor, n_heads: usize) -> Result<Tensor> {
        let &[n, nkv, hd] = x.shape() else { unreachable!("ops::repeat_kv checks its shapes") };
        let data = x.data::<f32>()?;
        let head = |i: usize| (i / n_heads) * nkv + (i % n_heads) / (n_heads / nkv);
        let y = (0..n * n_heads).flat_map(|i| data[head(i) * hd..][..hd].iter().copied()).collect();
        Tensor::new(x.device(), &[n, n_heads, hd], y)
    }

    fn repeat_kv_backward(&self, dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
        let &[n, nh, hd] = dy.shape() else { unreachable!("ops::repeat_kv_backward checks its shapes") };
        let (data, group) = (dy.data::<f32>()?, nh / n_kv_heads);
        let mut dx = vec![0f32; n * n_kv_heads * hd];
        for (i, dx) in dx.chunks_exact_mut(hd.max(1)).enumerate() {
            for dy in data[i * group * hd..][..group * hd].chunks_exact(hd.max(1)) {
                dx.iter_mut().zip(dy).for_each(|(a, b)| *a += b);
            }
        }
        Tensor::new(dy.device(), &[n, n_kv_heads, hd], dx)
    }
}
