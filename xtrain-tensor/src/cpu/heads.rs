//! Heads normed and turned in one walk, forward and backward: the bits of [`super::norm`] and [`super::rope`], one
//! after another.
use super::Cpu;
use super::lanes::{Kernel, Lanes, dispatch};
use super::norm::{Norm, by_chunks};
use super::rope::{Way, turn_head};
use super::scratch::Buffer;
use super::value::Value;
use crate::RopeTable;
use crate::operands::Samples;

/// By what angles the rows `[H, hd]` of a tensor are turned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Angles<'a> {
    pub(crate) table: &'a RopeTable,
    /// The position of each row.
    pub(crate) pos: &'a [u32],
}

impl Angles<'_> {
    /// Cosines and sines of head `i` of all rows, of which each has `heads`.
    #[inline(always)]
    fn of(&self, i: usize, heads: usize) -> (&[f32], &[f32]) {
        self.table.row(self.pos[i / heads] as usize)
    }
}

/// Each head of `x [N, H, hd]` normed in f32, then turned by the angles of its row.
pub(crate) fn norm_rope<T: Value>(cpu: &Cpu, x: &[T], norm: Norm<'_>, turn: Angles<'_>) -> Vec<T> {
    let mut y = cpu.recycler.take(x.len());
    let width = x.len() / turn.pos.len().max(1);
    let rows = (8192 / width.max(1)).max(1);
    cpu.pool.parts(&mut y, rows * width, |i, y| {
        let (n, row) = (y.len() / width, i * rows);
        let turn = Angles { pos: &turn.pos[row..][..n], ..turn };
        dispatch(cpu.simd, Forward { x: &x[row * width..][..y.len()], norm, turn, y });
    });
    y
}

struct Forward<'a, T> {
    x: &'a [T],
    norm: Norm<'a>,
    turn: Angles<'a>,
    y: &'a mut [T],
}

impl<T: Value> Kernel for Forward<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let hd = self.norm.gain.len();
        let heads = self.x.len() / hd / self.turn.pos.len();
        let mut normed = Buffer::<f32>::of(hd);
        for (i, (x, y)) in self.x.chunks_exact(hd).zip(self.y.chunks_exact_mut(hd)).enumerate() {
            self.norm.row(l, x, &mut normed[..]);
            turn_head(l, &normed[..], self.turn.of(i, heads), Way::Forward, y);
        }
    }
}

/// `dx` of [`norm_rope`]; `dw += rowsum dy xh`, `dy` turned back, as [`super::norm::rms_norm_backward`] sums it.
pub(crate) fn norm_rope_backward<T: Value>(
    cpu: &Cpu,
    (x, dy): (&[T], &[f32]),
    (norm, turn): (Norm<'_>, Angles<'_>),
    dw: (&mut [f32], &Samples),
) -> Vec<f32> {
    let mut dx = cpu.recycler.take::<f32>(x.len());
    let hd = norm.gain.len();
    let heads = x.len() / hd / turn.pos.len().max(1);
    by_chunks(cpu, dw, &mut dx, |at, dx, sums| {
        let (first, x, dy) = (at.start / hd, &x[at.clone()], &dy[at]);
        dispatch(cpu.simd, Backward { x, dy, norm, turn, heads, first, dx, sums });
    });
    dx
}

struct Backward<'a, T> {
    x: &'a [T],
    dy: &'a [f32],
    norm: Norm<'a>,
    turn: Angles<'a>,
    /// Heads of a row, and the first head's place among those of all rows.
    heads: usize,
    first: usize,
    dx: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<T: Value> Kernel for Backward<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let hd = self.norm.gain.len();
        let mut back = Buffer::<f32>::of(hd);
        let heads = self.x.chunks_exact(hd).zip(self.dy.chunks_exact(hd));
        for (i, ((x, dy), dx)) in heads.zip(self.dx.chunks_exact_mut(hd)).enumerate() {
            turn_head(l, dy, self.turn.of(self.first + i, self.heads), Way::Back, &mut back[..]);
            self.norm.row_backward::<L, T, false>(l, (x, &back[..]), dx, self.sums);
        }
    }
}
