//! Fused QK-norm and RoPE, forward and backward. The bits are those of [`super::norm`] followed by [`super::rope`].
use super::lanes::{Kernel, Lanes, dispatch};
use super::norm::{Norm, by_chunks};
use super::rope::{Direction, rotate_head};
use super::rowsum::ParamGrad;
use super::scratch::Buffer;
use super::value::Value;
use super::{Cpu, rows_per_part};
use crate::operands::RopeArgs;

/// Cosines and sines of head `i`, counted over all rows of `heads` heads.
#[inline(always)]
fn angles(rope: RopeArgs<'_>, i: usize, heads: usize) -> (&[f32], &[f32]) {
    rope.table.row(rope.positions[i / heads] as usize)
}

/// Normalizes each head of `x [N, H, hd]` in f32, then rotates it by the angles of its row's position.
pub(crate) fn norm_rope<T: Value>(cpu: &Cpu, x: &[T], norm: Norm<'_>, rope: RopeArgs<'_>) -> Vec<T> {
    let mut y = cpu.recycler.acquire(x.len());
    let width = x.len() / rope.positions.len().max(1);
    let rows = rows_per_part(width);
    cpu.pool.parts(&mut y, rows * width, |i, y| {
        let (n, row) = (y.len() / width, i * rows);
        let rope = RopeArgs { positions: &rope.positions[row..][..n], ..rope };
        dispatch(cpu.simd, Forward { x: &x[row * width..][..y.len()], norm, rope, y });
    });
    y
}

struct Forward<'a, T> {
    x: &'a [T],
    norm: Norm<'a>,
    rope: RopeArgs<'a>,
    y: &'a mut [T],
}

impl<T: Value> Kernel for Forward<'_, T> {
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

/// Returns `dx` of [`norm_rope`]; `dw += rowsum dy xh` with `dy` rotated back, summed like
/// [`super::norm::rms_norm_backward`].
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
        dispatch(cpu.simd, Backward { x, dy, norm, rope, heads, first, dx, sums });
    });
    dx
}

struct Backward<'a, T> {
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

impl<T: Value> Kernel for Backward<'_, T> {
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
