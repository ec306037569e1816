//! Rotary position embedding, alone and fused with QK-norm, forward and backward.
use super::lanes::{Kernel, Lanes, dispatch};
use super::norm::{Norm, by_chunks};
use super::rowsum::ParamGrad;
use super::scratch::Buffer;
use super::value::{Value, blocks};
use super::{Cpu, rows_per_part};
use crate::operands::RopeArgs;

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
    by_rows(cpu, x, rope, |x, rope, y| dispatch(cpu.simd, RotateRows { x, rope, direction, y }))
}

/// Runs `rotate(rows, their rope, their part of the result)` for parts of the rows of `x`.
fn by_rows<T: Value, O: Value>(
    cpu: &Cpu,
    x: &[T],
    rope: RopeArgs<'_>,
    rotate: impl Fn(&[T], RopeArgs<'_>, &mut [O]) + Sync,
) -> Vec<O> {
    let mut y = cpu.recycler.acquire(x.len());
    let width = x.len() / rope.positions.len().max(1);
    let rows = rows_per_part(width);
    cpu.pool.parts(&mut y, rows * width, |i, y| {
        let (first, n) = (i * rows, y.len() / width);
        let rope = RopeArgs { positions: &rope.positions[first..][..n], ..rope };
        rotate(&x[first * width..][..y.len()], rope, y);
    });
    y
}

struct RotateRows<'a, T, O> {
    x: &'a [T],
    rope: RopeArgs<'a>,
    direction: Direction,
    y: &'a mut [O],
}

impl<T: Value, O: Value> Kernel for RotateRows<'_, T, O> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let RopeArgs { table, positions } = self.rope;
        let (hd, width) = (table.head_dim(), self.x.len() / positions.len());
        let rows = self.x.chunks_exact(width).zip(self.y.chunks_exact_mut(width));
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

/// Cosines and sines of head `i`, counted over all rows of `heads` heads.
#[inline(always)]
fn angles(rope: RopeArgs<'_>, i: usize, heads: usize) -> (&[f32], &[f32]) {
    rope.table.row(rope.positions[i / heads] as usize)
}

/// Normalizes each head of `x [N, H, hd]` in f32, then rotates it by the angles of its row's position. The bits are
/// those of [`super::norm`] followed by [`rope`].
pub(crate) fn norm_rope<T: Value>(cpu: &Cpu, x: &[T], norm: Norm<'_>, rope: RopeArgs<'_>) -> Vec<T> {
    by_rows(cpu, x, rope, |x, rope, y| dispatch(cpu.simd, NormRotate { x, norm, rope, y }))
}

struct NormRotate<'a, T> {
    x: &'a [T],
    norm: Norm<'a>,
    rope: RopeArgs<'a>,
    y: &'a mut [T],
}

impl<T: Value> Kernel for NormRotate<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let hd = self.norm.gain.len();
        let heads = self.x.len() / hd / self.rope.positions.len();
        let mut normed = Buffer::<f32>::new(hd);
        for (i, (x, y)) in self.x.chunks_exact(hd).zip(self.y.chunks_exact_mut(hd)).enumerate() {
            self.norm.row(l, x, &mut normed[..]);
            let (cos, sin) = angles(self.rope, i, heads);
            rotate_head(l, &normed[..], cos, sin, Direction::Forward, y);
        }
    }
}

/// `dx` of [`norm_rope`]; `dw += rowsum dy xh` with `dy` rotated back, as in [`super::norm::rms_norm_backward`].
pub(crate) fn norm_rope_backward<T: Value>(
    cpu: &Cpu,
    x: &[T],
    dy: &[f32],
    norm: Norm<'_>,
    rope: RopeArgs<'_>,
    dw: ParamGrad<'_>,
) -> Vec<f32> {
    let mut dx = cpu.recycler.acquire::<f32>(x.len());
    let hd = norm.gain.len();
    let heads = x.len() / hd / rope.positions.len().max(1);
    by_chunks(cpu, dw, &mut dx, |at, dx, sums| {
        let (first, x, dy) = (at.start / hd, &x[at.clone()], &dy[at]);
        dispatch(cpu.simd, NormRotateBackward { x, dy, norm, rope, heads, first, dx, sums });
    });
    dx
}

struct NormRotateBackward<'a, T> {
    x: &'a [T],
    dy: &'a [f32],
    norm: Norm<'a>,
    rope: RopeArgs<'a>,
    /// Heads per row, and the index of the first head among those of all rows.
    heads: usize,
    first: usize,
    dx: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<T: Value> Kernel for NormRotateBackward<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let hd = self.norm.gain.len();
        let mut rotated = Buffer::<f32>::new(hd);
        let heads = self.x.chunks_exact(hd).zip(self.dy.chunks_exact(hd));
        for (i, ((x, dy), dx)) in heads.zip(self.dx.chunks_exact_mut(hd)).enumerate() {
            let (cos, sin) = angles(self.rope, self.first + i, self.heads);
            rotate_head(l, dy, cos, sin, Direction::Inverse, &mut rotated[..]);
            self.norm.row_backward::<L, T, false>(l, x, &rotated[..], dx, self.sums);
        }
    }
}
