//! Elementwise operations.
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::lanes::{Kernel, Lanes, dispatch};
use super::value::{Value, blocks};
use super::{Cpu, Disjoint, GRAIN, rows_per_part};
use crate::faults::{self, Fault};

/// `y = silu(g) u`.
pub(crate) fn silu_mul<T: Value, O: Value>(cpu: &Cpu, g: &[T], u: &[T]) -> Vec<O> {
    let mut y = cpu.recycler.acquire(g.len());
    cpu.pool.parts(&mut y, GRAIN, |i, y| {
        let at = i * GRAIN..i * GRAIN + y.len();
        dispatch(cpu.simd, SiluMul { g: &g[at.clone()], u: &u[at], y });
    });
    y
}

struct SiluMul<'a, T, O> {
    g: &'a [T],
    u: &'a [T],
    y: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for SiluMul<'_, T, O> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let one = l.splat(1.0);
        blocks!(self.y.len(), |r| {
            let (g, u) = (T::read(l, &self.g[r.clone()]), T::read(l, &self.u[r.clone()]));
            let silu = l.div(g, l.add(one, l.exp(l.neg(g))));
            O::write(l, &mut self.y[r], l.mul(silu, u));
        });
    }
}

/// `(dg, du)` of [`silu_mul`].
pub(crate) fn silu_mul_backward<T: Value, O: Value>(
    cpu: &Cpu,
    g: &[T],
    u: &[T],
    dy: &[f32],
) -> (Vec<O>, Vec<O>) {
    let (mut dg, mut du) = (cpu.recycler.acquire(dy.len()), cpu.recycler.acquire(dy.len()));
    let parts = Disjoint::new(&mut du);
    cpu.pool.parts(&mut dg, GRAIN, |i, dg| {
        let at = i * GRAIN..i * GRAIN + dg.len();
        // SAFETY: `at` is the range of this part of `dg`; parts are disjoint.
        let du = unsafe { parts.slice(at.clone()) };
        dispatch(cpu.simd, SiluMulBackward { g: &g[at.clone()], u: &u[at.clone()], dy: &dy[at], dg, du });
    });
    (dg, du)
}

struct SiluMulBackward<'a, T, O> {
    g: &'a [T],
    u: &'a [T],
    dy: &'a [f32],
    dg: &'a mut [O],
    du: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for SiluMulBackward<'_, T, O> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let one = l.splat(1.0);
        blocks!(self.dy.len(), |r| {
            let (g, u) = (T::read(l, &self.g[r.clone()]), T::read(l, &self.u[r.clone()]));
            let dy = l.load_partial(&self.dy[r.clone()]);
            let q = l.div(one, l.add(one, l.exp(l.neg(g))));
            let slope = l.mul(q, l.fma(g, l.sub(one, q), one));
            O::write(l, &mut self.dg[r.clone()], l.mul(l.mul(dy, u), slope));
            O::write(l, &mut self.du[r], l.mul(dy, l.mul(g, q)));
        });
    }
}

/// `a = a + b`.
pub(crate) fn accumulate(cpu: &Cpu, a: &mut [f32], b: &[f32]) {
    cpu.pool.parts(a, GRAIN, |i, a| {
        a.iter_mut().zip(&b[i * GRAIN..]).for_each(|(a, b)| *a += b);
    });
}

/// `a = a + b` for each row of `a`; rows are as long as `b`.
pub(crate) fn add_to_rows(cpu: &Cpu, a: &mut [f32], b: &[f32]) {
    let rows = rows_per_part(b.len());
    cpu.pool.parts(a, rows * b.len(), |_, a| {
        a.chunks_exact_mut(b.len()).for_each(|a| a.iter_mut().zip(b).for_each(|(a, b)| *a += b));
    });
}

pub(crate) fn all_finite<T: Value>(cpu: &Cpu, x: &[T]) -> bool {
    let all = AtomicBool::new(true);
    let parts = x.len().div_ceil(4 * GRAIN);
    let omitted = parts > 1 && faults::on(Fault::FiniteTailNotChecked);
    cpu.pool.run(parts - usize::from(omitted), |i| {
        let x = &x[i * 4 * GRAIN..x.len().min((i + 1) * 4 * GRAIN)];
        if !dispatch(cpu.simd, AllFinite { x }) {
            all.store(false, Relaxed);
        }
    });
    all.into_inner()
}

struct AllFinite<'a, T> {
    x: &'a [T],
}

impl<T: Value> Kernel<bool> for AllFinite<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        // 0 times NaN or infinity is NaN
        let mut v = l.zero();
        blocks!(self.x.len(), |r| v = l.fma(T::read(l, &self.x[r]), l.zero(), v));
        l.sum32(v) == 0.0
    }
}

/// Converts each element, rounding to nearest even.
pub(crate) fn cast<T: Value, O: Value>(cpu: &Cpu, x: &[T]) -> Vec<O> {
    let mut y = cpu.recycler.acquire(x.len());
    cast_to(cpu, x, &mut y);
    y
}

/// [`cast`] into `y`, which is as long as `x`.
pub(crate) fn cast_to<T: Value, O: Value>(cpu: &Cpu, x: &[T], y: &mut [O]) {
    cpu.pool.parts(y, 4 * GRAIN, |i, y| {
        dispatch(cpu.simd, Cast { x: &x[i * 4 * GRAIN..][..y.len()], y });
    });
}

struct Cast<'a, T, O> {
    x: &'a [T],
    y: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for Cast<'_, T, O> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        blocks!(self.x.len(), |r| O::write(l, &mut self.y[r.clone()], T::read(l, &self.x[r])));
    }
}
