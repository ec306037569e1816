//! Rotary position embedding.
use super::lanes::{Kernel, Lanes, dispatch};
use super::value::{Value, blocks};
use super::{Cpu, rows_per_part};
use crate::operands::RopeArgs;

/// The direction of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// `y1 = fma(x1, c, -(x2 s))`, `y2 = fma(x2, c, x1 s)`.
    Forward,
    /// `x1 = fma(y1, c, y2 s)`, `x2 = fma(y2, c, -(y1 s))`.
    Inverse,
}

/// Rotates each head of the rows `[H, hd]` of `x` by the angles of the rows' positions.
pub(crate) fn rope<T: Value, O: Value>(
    cpu: &Cpu,
    x: &[T],
    rope: RopeArgs<'_>,
    direction: Direction,
) -> Vec<O> {
    let mut y = cpu.recycler.acquire(x.len());
    let width = x.len() / rope.positions.len().max(1);
    let rows = rows_per_part(width);
    cpu.pool.parts(&mut y, rows * width, |i, y| {
        let (x, positions) =
            (&x[i * rows * width..][..y.len()], &rope.positions[i * rows..][..y.len() / width]);
        dispatch(cpu.simd, RotateRows { x, rope: RopeArgs { positions, ..rope }, width, direction, y });
    });
    y
}

struct RotateRows<'a, T, O> {
    x: &'a [T],
    rope: RopeArgs<'a>,
    width: usize,
    direction: Direction,
    y: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for RotateRows<'_, T, O> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let RopeArgs { table, positions } = self.rope;
        let hd = table.head_dim();
        let rows = self.x.chunks_exact(self.width).zip(self.y.chunks_exact_mut(self.width));
        for ((x, y), &pos) in rows.zip(positions) {
            let (cos, sin) = table.row(pos as usize);
            for (x, y) in x.chunks_exact(hd).zip(y.chunks_exact_mut(hd)) {
                rotate_head(l, x, cos, sin, self.direction, y);
            }
        }
    }
}

/// Rotates one head by angles with these cosines and sines.
#[inline(always)]
pub(super) fn rotate_head<L: Lanes, T: Value, O: Value>(
    l: L,
    x: &[T],
    cos: &[f32],
    sin: &[f32],
    direction: Direction,
    y: &mut [O],
) {
    let half = x.len() / 2;
    let ((x1, x2), (y1, y2)) = (x.split_at(half), y.split_at_mut(half));
    blocks!(half, |b| {
        let (c, s) = (l.load_partial(&cos[b.clone()]), l.load_partial(&sin[b.clone()]));
        let (a, d) = (T::read(l, &x1[b.clone()]), T::read(l, &x2[b.clone()]));
        let (ds, as_) = (l.mul(d, s), l.mul(a, s));
        let (p, q) = match direction {
            Direction::Forward => (l.neg(ds), as_),
            Direction::Inverse => (ds, l.neg(as_)),
        };
        O::write(l, &mut y1[b.clone()], l.fma(a, c, p));
        O::write(l, &mut y2[b], l.fma(d, c, q));
    });
}
