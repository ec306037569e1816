//! Root-mean-square normalisation, forward and backward.
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::value::{Value, blocks};
use super::{Cpu, Disjoint};
use crate::ops::Samples;

/// Elements that one thread takes at a time, in whole rows.
const GRAIN: usize = 8192;

fn rows_per_part(c: usize) -> usize {
    (GRAIN / c.max(1)).max(1)
}

/// `y_i = (x_i r) w_i` for each row of `w.len()`.
pub(crate) fn rms_norm<T: Value, O: Value>(cpu: &Cpu, x: &[T], w: &[f32], eps: f32) -> Vec<O> {
    let mut y = cpu.recycler.take(x.len());
    let len = rows_per_part(w.len()) * w.len();
    cpu.pool.parts(&mut y, len, |i, y| {
        dispatch(cpu.simd, Forward { x: &x[i * len..][..y.len()], w, eps, y });
    });
    y
}

struct Forward<'a, T, O> {
    x: &'a [T],
    w: &'a [f32],
    eps: f32,
    y: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for Forward<'_, T, O> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.w.len();
        for (x, y) in self.x.chunks_exact(c).zip(self.y.chunks_exact_mut(c)) {
            let r = l.splat(rrms(l, x, self.eps));
            blocks!(c, |b| {
                let xh = l.mul(T::read(l, &x[b.clone()]), r);
                O::write(l, &mut y[b.clone()], l.mul(xh, l.load_partial(&self.w[b])));
            });
        }
    }
}

/// `1 / sqrt(sum32(x²) / C + eps)`.
#[inline(always)]
fn rrms<L: Lanes, T: Value>(l: L, x: &[T], eps: f32) -> f32 {
    let mut v = l.zero();
    blocks!(x.len(), |b| {
        let x = T::read(l, &x[b]);
        v = l.fma(x, x, v);
    });
    1.0 / (l.sum32(v) / x.len() as f32 + eps).sqrt()
}

/// `dx`; `dw += rowsum dy xh`, chunks of 256 rows from each sample's first.
pub(crate) fn rms_norm_backward<T: Value>(
    cpu: &Cpu,
    x: &[T],
    [w, dy]: [&[f32]; 2],
    eps: f32,
    (dw, samples): (&mut [f32], &Samples),
) -> Vec<f32> {
    let c = w.len();
    let mut dx = cpu.recycler.take::<f32>(x.len());
    let mut r = vec![0f32; x.len() / c.max(1)];
    let rows = rows_per_part(c);
    let all_r = Disjoint::new(&mut r);
    cpu.pool.parts(&mut dx, rows * c, |i, dx| {
        let at = i * rows * c..i * rows * c + dx.len();
        // SAFETY: the rows of this part of `dx`, and parts do not meet.
        let r = unsafe { all_r.slice(at.start / c..at.end / c) };
        dispatch(cpu.simd, ByInput { x: &x[at.clone()], w, dy: &dy[at], eps, dx, r });
    });
    cpu.pool.parts(dw, LANES, |i, dw| {
        dispatch(cpu.simd, ByGain { x, r: &r, dy, c, first: i * LANES, dw, samples });
    });
    dx
}

struct ByInput<'a, T> {
    x: &'a [T],
    w: &'a [f32],
    dy: &'a [f32],
    eps: f32,
    dx: &'a mut [f32],
    r: &'a mut [f32],
}

impl<T: Value> Kernel for ByInput<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.w.len();
        let rows = self.x.chunks_exact(c).zip(self.dy.chunks_exact(c));
        for (((x, dy), dx), r) in rows.zip(self.dx.chunks_exact_mut(c)).zip(self.r) {
            *r = rrms(l, x, self.eps);
            let rs = l.splat(*r);
            let mut v = l.zero();
            blocks!(c, |b| {
                let e = l.mul(l.load_partial(&dy[b.clone()]), l.load_partial(&self.w[b.clone()]));
                v = l.fma(e, l.mul(T::read(l, &x[b]), rs), v);
            });
            let t = l.splat(l.sum32(v) / c as f32);
            blocks!(c, |b| {
                let e = l.mul(l.load_partial(&dy[b.clone()]), l.load_partial(&self.w[b.clone()]));
                let h = l.mul(T::read(l, &x[b.clone()]), rs);
                l.store_partial(&mut dx[b], l.mul(l.fma(l.neg(h), t, e), rs));
            });
        }
    }
}

/// The gradient of up to 32 gains, from column `first` on.
struct ByGain<'a, T> {
    x: &'a [T],
    r: &'a [f32],
    dy: &'a [f32],
    c: usize,
    first: usize,
    dw: &'a mut [f32],
    samples: &'a Samples,
}

impl<T: Value> Kernel for ByGain<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let n = self.dw.len();
        let mut g = l.load_partial(self.dw);
        for sample in self.samples.ranges() {
            for start in sample.clone().step_by(256) {
                let mut chunk = l.zero();
                for row in start..sample.end.min(start + 256) {
                    let at = row * self.c + self.first..row * self.c + self.first + n;
                    let h = l.mul(T::read(l, &self.x[at.clone()]), l.splat(self.r[row]));
                    chunk = l.fma(l.load_partial(&self.dy[at]), h, chunk);
                }
                g = l.add(g, chunk);
            }
        }
        l.store_partial(self.dw, g);
    }
}
