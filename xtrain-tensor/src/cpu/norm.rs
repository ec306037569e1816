//! Root-mean-square normalisation, forward and backward.
use std::ops::Range;

use super::lanes::{Kernel, Lanes, dispatch};
use super::rowsum::rowsum;
use super::value::{Value, blocks};
use super::{Cpu, Disjoint};
use crate::operands::Samples;

/// Elements that one thread takes at a time, in whole rows.
const GRAIN: usize = 8192;

fn rows_per_part(c: usize) -> usize {
    (GRAIN / c.max(1)).max(1)
}

/// The norm of a row: its gain `[C]`, and what is added under the root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) gain: &'a [f32],
    pub(crate) eps: f32,
}

impl Norm<'_> {
    /// `y_i = (x_i r) gain_i`.
    #[inline(always)]
    pub(super) fn row<L: Lanes, T: Value, O: Value>(self, l: L, x: &[T], y: &mut [O]) {
        let r = l.splat(self.rrms(l, x));
        blocks!(x.len(), |b| {
            let xh = l.mul(T::read(l, &x[b.clone()]), r);
            O::write(l, &mut y[b.clone()], l.mul(xh, l.load_partial(&self.gain[b])));
        });
    }

    /// `1 / sqrt(sum32(x²) / C + eps)`.
    #[inline(always)]
    fn rrms<L: Lanes, T: Value>(self, l: L, x: &[T]) -> f32 {
        let mut v = l.zero();
        blocks!(x.len(), |b| {
            let x = T::read(l, &x[b]);
            v = l.fma(x, x, v);
        });
        1.0 / (l.sum32(v) / x.len() as f32 + self.eps).sqrt()
    }

    /// `dx`, with `ONTO` added to what it holds, of a row; `sums += dy xh`.
    #[inline(always)]
    pub(super) fn row_backward<L: Lanes, T: Value, const ONTO: bool>(
        self,
        l: L,
        (x, dy): (&[T], &[f32]),
        dx: &mut [f32],
        sums: &mut [f32],
    ) {
        let c = x.len();
        let rs = l.splat(self.rrms(l, x));
        let mut v = l.zero();
        blocks!(c, |b| {
            let e = l.mul(l.load_partial(&dy[b.clone()]), l.load_partial(&self.gain[b.clone()]));
            v = l.fma(e, l.mul(T::read(l, &x[b]), rs), v);
        });
        let t = l.splat(l.sum32(v) / c as f32);
        blocks!(c, |b| {
            let dy = l.load_partial(&dy[b.clone()]);
            let e = l.mul(dy, l.load_partial(&self.gain[b.clone()]));
            let h = l.mul(T::read(l, &x[b.clone()]), rs);
            let sum = l.fma(dy, h, l.load_partial(&sums[b.clone()]));
            l.store_partial(&mut sums[b.clone()], sum);
            let mut d = l.mul(l.fma(l.neg(h), t, e), rs);
            if ONTO {
                d = l.add(l.load_partial(&dx[b.clone()]), d);
            }
            l.store_partial(&mut dx[b], d);
        });
    }
}

/// [`Norm::row`] of each row of `x`.
pub(crate) fn rms_norm<T: Value, O: Value>(cpu: &Cpu, x: &[T], norm: Norm<'_>) -> Vec<O> {
    let mut y = cpu.recycler.take(x.len());
    let len = rows_per_part(norm.gain.len()) * norm.gain.len();
    cpu.pool.parts(&mut y, len, |i, y| {
        dispatch(cpu.simd, Forward { x: &x[i * len..][..y.len()], norm, y });
    });
    y
}

struct Forward<'a, T, O> {
    x: &'a [T],
    norm: Norm<'a>,
    y: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for Forward<'_, T, O> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.norm.gain.len();
        for (x, y) in self.x.chunks_exact(c).zip(self.y.chunks_exact_mut(c)) {
            self.norm.row(l, x, y);
        }
    }
}

/// `dx`, or with `onto` what it holds plus that; `dw += rowsum dy xh`, chunks of 256 rows from each sample's first.
pub(crate) fn rms_norm_backward<T: Value>(
    cpu: &Cpu,
    (x, dy): (&[T], &[f32]),
    norm: Norm<'_>,
    (dw, samples): (&mut [f32], &Samples),
    (dx, onto): (&mut [f32], bool),
) {
    by_chunks(cpu, (dw, samples), dx, |at, dx, sums| {
        let (x, dy) = (&x[at.clone()], &dy[at]);
        match onto {
            true => dispatch(cpu.simd, Backward::<T, true> { x, dy, norm, dx, sums }),
            false => dispatch(cpu.simd, Backward::<T, false> { x, dy, norm, dx, sums }),
        }
    });
}

/// A chunk of rows: `dx`, and the chunk's part of the gradient of the gains.
struct Backward<'a, T, const ONTO: bool> {
    x: &'a [T],
    dy: &'a [f32],
    norm: Norm<'a>,
    dx: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<T: Value, const ONTO: bool> Kernel for Backward<'_, T, ONTO> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.norm.gain.len();
        let rows = self.x.chunks_exact(c).zip(self.dy.chunks_exact(c));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(c)) {
            self.norm.row_backward::<L, T, ONTO>(l, (x, dy), dx, self.sums);
        }
    }
}

/// `one(elements, their part of dx, sums)` for every chunk of a [`rowsum`].
pub(super) fn by_chunks(
    cpu: &Cpu,
    dw: (&mut [f32], &Samples),
    dx: &mut [f32],
    one: impl Fn(Range<usize>, &mut [f32], &mut [f32]) + Sync,
) {
    let c = dw.0.len();
    let parts = Disjoint::new(dx);
    rowsum(cpu, dw, |rows, sums| {
        let at = rows.start * c..rows.end * c;
        // SAFETY: the rows of this chunk, and chunks do not meet.
        one(at.clone(), unsafe { parts.slice(at) }, sums);
    });
}
