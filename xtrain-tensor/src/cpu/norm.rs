//! RMSNorm, forward and backward.
use std::ops::Range;

use super::gemm::Beta;
use super::lanes::{Kernel, Lanes, dispatch};
use super::rowsum::{ParamGrad, rowsum};
use super::value::{Value, blocks};
use super::{Cpu, Disjoint, rows_per_part};

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

    /// `dx = beta dx + ...` for one row, with beta = 1 if `ACCUMULATE`, else 0; `sums += dy xh`.
    #[inline(always)]
    pub(super) fn row_backward<L: Lanes, T: Value, const ACCUMULATE: bool>(
        self,
        l: L,
        x: &[T],
        dy: &[f32],
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
            if ACCUMULATE {
                d = l.add(l.load_partial(&dx[b.clone()]), d);
            }
            l.store_partial(&mut dx[b], d);
        });
    }
}

pub(crate) fn rms_norm<T: Value, O: Value>(cpu: &Cpu, x: &[T], norm: Norm<'_>) -> Vec<O> {
    let mut y = cpu.recycler.acquire(x.len());
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
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.norm.gain.len();
        for (x, y) in self.x.chunks_exact(c).zip(self.y.chunks_exact_mut(c)) {
            self.norm.row(l, x, y);
        }
    }
}

/// `dx = beta dx + ...`; `dw += rowsum dy xh` in chunks of 256 rows counted from each sample's first row.
pub(crate) fn rms_norm_backward<T: Value>(
    cpu: &Cpu,
    x: &[T],
    dy: &[f32],
    norm: Norm<'_>,
    dw: ParamGrad<'_>,
    dx: &mut [f32],
    beta: Beta,
) {
    by_chunks(cpu, dw, dx, |at, dx, sums| {
        let (x, dy) = (&x[at.clone()], &dy[at]);
        match beta {
            Beta::One => dispatch(cpu.simd, Backward::<T, true> { x, dy, norm, dx, sums }),
            Beta::Zero => dispatch(cpu.simd, Backward::<T, false> { x, dy, norm, dx, sums }),
        }
    });
}

/// A chunk of rows: its `dx`, and its part of the gradient of the gain.
struct Backward<'a, T, const ACCUMULATE: bool> {
    x: &'a [T],
    dy: &'a [f32],
    norm: Norm<'a>,
    dx: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<T: Value, const ACCUMULATE: bool> Kernel for Backward<'_, T, ACCUMULATE> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let c = self.norm.gain.len();
        let rows = self.x.chunks_exact(c).zip(self.dy.chunks_exact(c));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(c)) {
            self.norm.row_backward::<L, T, ACCUMULATE>(l, x, dy, dx, self.sums);
        }
    }
}

/// Runs `add_chunk(elements, their part of dx, sums)` for each chunk of a [`rowsum`].
pub(super) fn by_chunks(
    cpu: &Cpu,
    dw: ParamGrad<'_>,
    dx: &mut [f32],
    add_chunk: impl Fn(Range<usize>, &mut [f32], &mut [f32]) + Sync,
) {
    let c = dw.grad.len();
    let parts = Disjoint::new(dx);
    rowsum(cpu, dw, |rows, sums| {
        let at = rows.start * c..rows.end * c;
        // SAFETY: the rows of this chunk; chunks are disjoint.
        add_chunk(at.clone(), unsafe { parts.slice(at) }, sums);
    });
}
