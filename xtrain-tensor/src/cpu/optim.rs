//! The optimizer's elementwise update and the norms of gradients.
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::value::blocks;
use super::{Cpu, Disjoint};
use crate::ops::AdamWScalars;

/// Elements that one thread takes at a time.
const GRAIN: usize = 4096;

/// One AdamW update of `w`, its gradient shortened by `clip` first.
pub(crate) fn adamw(
    cpu: &Cpu,
    [w, m, v]: [&mut [f32]; 3],
    g: &[f32],
    (clip, decay): (f32, f32),
    s: &AdamWScalars,
) {
    let (m, v) = (Disjoint::new(m), Disjoint::new(v));
    cpu.pool.parts(w, GRAIN, |i, w| {
        let at = i * GRAIN..i * GRAIN + w.len();
        // SAFETY: the range of this part of `w`, and parts do not meet.
        let (m, v) = unsafe { (m.slice(at.clone()), v.slice(at.clone())) };
        dispatch(cpu.simd, AdamW { w, m, v, g: &g[at], clip, decay, s });
    });
}

struct AdamW<'a> {
    w: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    g: &'a [f32],
    clip: f32,
    decay: f32,
    s: &'a AdamWScalars,
}

impl Kernel for AdamW<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let AdamWScalars { s1, s2, s3, step, c2, eps, .. } = *self.s;
        let c = |x: f32| l.splat(x);
        blocks!(self.w.len(), |b| {
            let g = l.mul(l.load_partial(&self.g[b.clone()]), c(self.clip));
            let (m, v) = (l.load_partial(&self.m[b.clone()]), l.load_partial(&self.v[b.clone()]));
            let m = l.fma(c(s1), l.sub(g, m), m);
            let v = l.fma(c(s2), v, l.mul(c(s3), l.mul(g, g)));
            let w = l.mul(l.load_partial(&self.w[b.clone()]), c(self.decay));
            let d = l.div(m, l.add(l.div(l.sqrt(v), c(c2)), c(eps)));
            l.store_partial(&mut self.w[b.clone()], l.fma(c(-step), d, w));
            l.store_partial(&mut self.m[b.clone()], m);
            l.store_partial(&mut self.v[b], v);
        });
    }
}

/// sum32 of each row's squares, then sum32 over the rows' sums.
pub(crate) fn sum_of_squares(cpu: &Cpu, g: &[f32], width: usize) -> f32 {
    let mut sums = vec![0f32; g.len() / width.max(1)];
    let rows = (GRAIN / width.max(1)).max(1);
    cpu.pool.parts(&mut sums, rows, |i, sums| {
        dispatch(cpu.simd, Squares { g: &g[i * rows * width..][..sums.len() * width], width, sums });
    });
    dispatch(cpu.simd, Sum { x: &sums })
}

struct Squares<'a> {
    g: &'a [f32],
    width: usize,
    sums: &'a mut [f32],
}

impl Kernel for Squares<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (g, sum) in self.g.chunks_exact(self.width).zip(self.sums) {
            let mut v = l.zero();
            blocks!(g.len(), |b| {
                let g = l.load_partial(&g[b]);
                v = l.fma(g, g, v);
            });
            *sum = l.sum32(v);
        }
    }
}

/// sum32 of a list.
struct Sum<'a> {
    x: &'a [f32],
}

impl Kernel for Sum<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut v = l.zero();
        for x in self.x.chunks(LANES) {
            v = l.add(v, l.load_partial(x));
        }
        l.sum32(v)
    }
}
