//! The optimizer's elementwise update and the gradient norms. Each is one job over all parameters.
use super::Cpu;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::value::blocks;
use crate::backend::HostBackend;
use crate::error::Result;
use crate::operands::{AdamWScalars, Update};
use crate::tensor::Tensor;

/// Elements per work item. It grows with `total`, the elements of all parameters, to bound the number of work items.
fn grain(total: usize) -> usize {
    4096.max((total / 4096).next_multiple_of(LANES))
}

impl HostBackend for Cpu {
    fn row_squares(&self, gs: &[&Tensor]) -> Result<Vec<f32>> {
        let mut sums = vec![0f32; gs.iter().map(|g| g.rows()).sum()];
        let grain = grain(gs.iter().map(|g| g.len()).sum());
        let (mut rest, mut pieces) = (&mut sums[..], Vec::new());
        for g in gs {
            let (width, sums) =
                (g.width().max(1), rest.split_off_mut(..g.rows()).expect("a sum for each row"));
            let rows = (grain / width).max(1);
            let parts = sums.chunks_mut(rows).zip(g.data()?.chunks(rows * width));
            pieces.extend(parts.map(|(sums, g)| Squares { g, width, sums }));
        }
        self.pool.parts(&mut pieces, 1, |_, piece| dispatch(self.simd, &mut piece[0]));
        Ok(sums)
    }

    fn sum(&self, x: &[f32]) -> f32 {
        dispatch(self.simd, Sum { x })
    }

    fn update(&self, all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<bool> {
        let grain = grain(all.iter().map(|update| update.g.len()).sum());
        let mut pieces = Vec::new();
        for Update { w, g, m, v } in all {
            let decay = if w.shape().len() > 1 { s.keep } else { 1.0 };
            let (w, m) = (w.data_mut()?.chunks_mut(grain), m.data_mut()?.chunks_mut(grain));
            let parts = w.zip(m).zip(v.data_mut()?.chunks_mut(grain)).zip(g.data()?.chunks(grain));
            pieces.extend(parts.map(|(((w, m), v), g)| AdamW { w, m, v, g, clip, decay, s, finite: true }));
        }
        self.pool.parts(&mut pieces, 1, |_, piece| piece[0].finite = dispatch(self.simd, &mut piece[0]));
        Ok(pieces.iter().all(|piece| piece.finite))
    }
}

struct AdamW<'a> {
    w: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    g: &'a [f32],
    clip: f32,
    decay: f32,
    s: &'a AdamWScalars,
    finite: bool,
}

impl Kernel<bool> for &mut AdamW<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let AdamWScalars { s1, s2, s3, step, c2, eps, .. } = *self.s;
        let c = |x: f32| l.splat(x);
        let mut finite = l.zero(); // 0 times NaN or infinity is NaN
        blocks!(self.w.len(), |b| {
            let g = l.mul(l.load_partial(&self.g[b.clone()]), c(self.clip));
            let (m, v) = (l.load_partial(&self.m[b.clone()]), l.load_partial(&self.v[b.clone()]));
            let m = l.fma(c(s1), l.sub(g, m), m);
            let v = l.fma(c(s2), v, l.mul(c(s3), l.mul(g, g)));
            let w = l.mul(l.load_partial(&self.w[b.clone()]), c(self.decay));
            let d = l.div(m, l.add(l.div(l.sqrt(v), c(c2)), c(eps)));
            l.store_partial(&mut self.w[b.clone()], l.fma(c(-step), d, w));
            // read back, because register lanes past the end do not belong to any element
            finite = l.fma(l.load_partial(&self.w[b.clone()]), l.zero(), finite);
            l.store_partial(&mut self.m[b.clone()], m);
            l.store_partial(&mut self.v[b], v);
        });
        l.sum32(finite) == 0.0
    }
}

struct Squares<'a> {
    g: &'a [f32],
    width: usize,
    sums: &'a mut [f32],
}

impl Kernel for &mut Squares<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (g, sum) in self.g.chunks_exact(self.width).zip(self.sums.iter_mut()) {
            let mut v = l.zero();
            blocks!(g.len(), |b| {
                let g = l.load_partial(&g[b]);
                v = l.fma(g, g, v);
            });
            *sum = l.sum32(v);
        }
    }
}

struct Sum<'a> {
    x: &'a [f32],
}

impl Kernel<f32> for Sum<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut v = l.zero();
        for x in self.x.chunks(LANES) {
            v = l.add(v, l.load_partial(x));
        }
        l.sum32(v)
    }
}
