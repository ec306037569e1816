//! Root-mean-square normalisation, forward and backward.
use super::lanes::{Kernel, Lanes, dispatch};
use super::scratch::Buffer;
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

/// Rows of a chunk of a sum over rows.
const CHUNK: usize = 256;

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
    let chunk = |from: usize, end: usize| from..end.min(from + CHUNK);
    let chunks: Vec<_> =
        samples.ranges().flat_map(|s| s.clone().step_by(CHUNK).map(move |from| chunk(from, s.end))).collect();
    let mut sums = Buffer::<f32>::of(chunks.len() * c);
    let parts = Disjoint::new(&mut dx);
    let one = |i: usize, sums: &mut [f32]| {
        let at = chunks[i].start * c..chunks[i].end * c;
        // SAFETY: the rows of this chunk, and chunks do not meet.
        let dx = unsafe { parts.slice(at.clone()) };
        dispatch(cpu.simd, Backward { x: &x[at.clone()], w, dy: &dy[at], eps, dx, sums });
    };
    if x.len() < GRAIN {
        sums.chunks_exact_mut(c.max(1)).enumerate().for_each(|(i, sums)| one(i, sums));
    } else {
        cpu.pool.parts(&mut sums, c, one);
    }
    for sums in sums.chunks_exact(c.max(1)) {
        dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw += sum);
    }
    dx
}

/// A chunk of rows: `dx`, and the chunk's part of the gradient of the gains.
struct Backward<'a, T> {
    x: &'a [T],
    w: &'a [f32],
    dy: &'a [f32],
    eps: f32,
    dx: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<T: Value> Kernel for Backward<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.w.len();
        self.sums.fill(0.0);
        let rows = self.x.chunks_exact(c).zip(self.dy.chunks_exact(c));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(c)) {
            let rs = l.splat(rrms(l, x, self.eps));
            let mut v = l.zero();
            blocks!(c, |b| {
                let e = l.mul(l.load_partial(&dy[b.clone()]), l.load_partial(&self.w[b.clone()]));
                v = l.fma(e, l.mul(T::read(l, &x[b]), rs), v);
            });
            let t = l.splat(l.sum32(v) / c as f32);
            blocks!(c, |b| {
                let dy = l.load_partial(&dy[b.clone()]);
                let e = l.mul(dy, l.load_partial(&self.w[b.clone()]));
                let h = l.mul(T::read(l, &x[b.clone()]), rs);
                let sum = l.fma(dy, h, l.load_partial(&self.sums[b.clone()]));
                l.store_partial(&mut self.sums[b.clone()], sum);
                l.store_partial(&mut dx[b], l.mul(l.fma(l.neg(h), t, e), rs));
            });
        }
    }
}
