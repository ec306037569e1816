//! The products of attention: a few rows against 16 to 64 columns, one chain to an output.
#![allow(clippy::needless_range_loop, reason = "loops over registers, of known length")]

use std::marker::PhantomData;
use std::ops::Range;

use super::flush::{add_flushed, fma_flushed};
use crate::cpu::gemm::Beta;
use crate::cpu::lanes::{Kernel, Lanes, Reg};

/// `out[r][c] = start + sum over k of left(r, k) right(k, c)`, k rising, for `rows` rows, the columns
/// `cols` and the indices `depth`.
///
/// `left(r, k) = left[r * left_row + k * left_step]`, `right(k, c) = right[k * right_row + c]`,
/// `out(r, c) = out[r * out_row + c]`. Columns are computed in groups of two registers: those around
/// `cols` are overwritten, and must exist.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) left: &'a [f32],
    pub(crate) left_row: usize,
    pub(crate) left_step: usize,
    pub(crate) right: &'a [f32],
    pub(crate) right_row: usize,
    pub(crate) out: &'a mut [f32],
    pub(crate) out_row: usize,
    pub(crate) beta: Beta,
    pub(crate) rows: usize,
    pub(crate) cols: Range<usize>,
    pub(crate) depth: Range<usize>,
}

/// How the sum of an output is formed.
pub(crate) trait Arithmetic {
    /// Accumulators that an output takes.
    const SHARE: usize;

    /// Adds the products of indices `depth` to `y`.
    ///
    /// # Safety
    /// `at.left(r, k)` is readable for r < R and k in `depth`, and so are the `C` registers at
    /// `at.right(k)`.
    unsafe fn sum<L: Lanes, const R: usize, const C: usize>(
        l: L,
        at: &At,
        depth: Range<usize>,
        y: [[L::R; C]; R],
    ) -> [[L::R; C]; R];
}

/// Where a tile's operands lie.
#[derive(Debug)]
pub(crate) struct At {
    left: *const f32,
    left_row: usize,
    left_step: usize,
    right: *const f32,
    right_row: usize,
}

impl At {
    /// `acc[r][c] = fma(left(r, k), right(k)[c], acc[r][c])`; `FLUSH`: where it is tiny, zero.
    ///
    /// # Safety
    /// As [`Arithmetic::sum`], for this `k`.
    #[inline(always)]
    unsafe fn step<const FLUSH: bool, L: Lanes, const R: usize, const C: usize>(
        &self,
        l: L,
        k: usize,
        mut acc: [[L::R; C]; R],
    ) -> [[L::R; C]; R] {
        // SAFETY: all these elements are readable, by contract.
        unsafe {
            let right = self.right.add(k.wrapping_mul(self.right_row));
            let left = self.left.add(k.wrapping_mul(self.left_step));
            let mut b = [Reg::splat(l, 0.0); C];
            for c in 0..C {
                b[c] = Reg::load(l, right.add(c * L::WIDTH));
            }
            for r in 0..R {
                let a = Reg::splat(l, *left.add(r.wrapping_mul(self.left_row)));
                for c in 0..C {
                    acc[r][c] = if FLUSH {
                        fma_flushed(l, a, b[c], acc[r][c])
                    } else {
                        Reg::fma(l, a, b[c], acc[r][c])
                    };
                }
            }
        }
        acc
    }
}

/// One fma chain over all indices: f32.
#[derive(Debug)]
pub(crate) struct Chain;

impl Arithmetic for Chain {
    const SHARE: usize = 1;

    #[inline(always)]
    unsafe fn sum<L: Lanes, const R: usize, const C: usize>(
        l: L,
        at: &At,
        depth: Range<usize>,
        mut y: [[L::R; C]; R],
    ) -> [[L::R; C]; R] {
        for k in depth {
            // SAFETY: k is in `depth`; the rest is this function's contract.
            y = unsafe { at.step::<false, L, R, C>(l, k, y) };
        }
        y
    }
}

/// Blocks of 32 indices, each an even and an odd chain: bf16. `FLUSH`: some result may be tiny.
#[derive(Debug)]
pub(crate) struct Blocks<const FLUSH: bool>;

impl<const FLUSH: bool> Arithmetic for Blocks<FLUSH> {
    const SHARE: usize = 2;

    #[inline(always)]
    unsafe fn sum<L: Lanes, const R: usize, const C: usize>(
        l: L,
        at: &At,
        depth: Range<usize>,
        mut y: [[L::R; C]; R],
    ) -> [[L::R; C]; R] {
        let mut from = depth.start;
        while from < depth.end {
            let to = depth.end.min((from / 32 + 1) * 32);
            let mut even = [[Reg::splat(l, 0.0); C]; R];
            let mut odd = even;
            while from < to {
                // SAFETY: the range is of even bounds, as `run` checks, and inside `depth`; the rest is this function's
                // contract.
                unsafe {
                    even = at.step::<FLUSH, L, R, C>(l, from, even);
                    odd = at.step::<FLUSH, L, R, C>(l, from + 1, odd);
                }
                from += 2;
            }
            for r in 0..R {
                for c in 0..C {
                    y[r][c] = if FLUSH {
                        add_flushed(l, y[r][c], add_flushed(l, even[r][c], odd[r][c]))
                    } else {
                        Reg::add(l, y[r][c], Reg::add(l, even[r][c], odd[r][c]))
                    };
                }
            }
        }
        y
    }
}

/// A product as work for an instruction set.
pub(crate) struct Run<'a, A>(Product<'a>, PhantomData<A>);

impl<'a, A: Arithmetic> Run<'a, A> {
    #[inline(always)]
    pub(crate) fn new(product: Product<'a>) -> Self {
        Run(product, PhantomData)
    }

    /// Rows `row..row + R`.
    ///
    /// # Safety
    /// The bounds that [`Run::run`] checks hold, and `row + R <= rows`.
    #[inline(always)]
    unsafe fn strip<L: Lanes, const R: usize>(&mut self, l: L, row: usize, cols: Range<usize>) -> usize {
        let mut col = cols.start;
        // SAFETY: the groups lie in `cols`; the rest is this function's contract.
        unsafe {
            while R <= L::WIDE_ROWS && A::SHARE == 1 && col + 4 * L::WIDTH <= cols.end {
                self.tile::<L, R, 4>(l, row, col);
                col += 4 * L::WIDTH;
            }
            while col < cols.end {
                self.tile::<L, R, 2>(l, row, col);
                col += 2 * L::WIDTH;
            }
        }
        R
    }

    /// # Safety
    /// As [`Run::strip`], with `C` registers inside the checked columns from `col` on.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const C: usize>(&mut self, l: L, row: usize, col: usize) {
        let p = &mut self.0;
        // SAFETY: `run` has checked the first and the last element of each operand.
        unsafe {
            let at = At {
                left: p.left.as_ptr().add(row * p.left_row),
                left_row: p.left_row,
                left_step: p.left_step,
                right: p.right.as_ptr().add(col),
                right_row: p.right_row,
            };
            let out = p.out.as_mut_ptr().add(row * p.out_row + col);
            let mut y = [[Reg::splat(l, 0.0); C]; R];
            if p.beta == Beta::One {
                for r in 0..R {
                    for c in 0..C {
                        y[r][c] = Reg::load(l, out.add(r * p.out_row + c * L::WIDTH));
                    }
                }
            }
            let y = A::sum(l, &at, p.depth.clone(), y);
            for r in 0..R {
                for c in 0..C {
                    Reg::store(l, out.add(r * p.out_row + c * L::WIDTH), y[r][c]);
                }
            }
        }
    }
}

impl<A: Arithmetic> Kernel for Run<'_, A> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let p = &self.0;
        let group = 2 * L::WIDTH;
        let (rows, cols) = (p.rows, p.cols.start / group * group..p.cols.end.next_multiple_of(group));
        if rows == 0 || cols.is_empty() {
            return;
        }
        let even = p.depth.start.is_multiple_of(2) && p.depth.end.is_multiple_of(2);
        assert!(even || A::SHARE == 1, "blocks take indices in pairs");
        let end = p.depth.end.max(1);
        assert!((rows - 1) * p.left_row + (end - 1) * p.left_step < p.left.len(), "left leaves its slice");
        assert!((end - 1) * p.right_row + cols.end <= p.right.len(), "right leaves its slice");
        assert!((rows - 1) * p.out_row + cols.end <= p.out.len(), "out leaves its slice");
        let most = L::TILE_ROWS / A::SHARE;
        let mut row = 0;
        while row < rows {
            let left = rows - row;
            // SAFETY: the bounds were checked, and the strip has no more rows than are left.
            row += unsafe {
                match most.min(left) {
                    12.. => self.strip::<L, 12>(l, row, cols.clone()),
                    6.. => self.strip::<L, 6>(l, row, cols.clone()),
                    3.. => self.strip::<L, 3>(l, row, cols.clone()),
                    2 => self.strip::<L, 2>(l, row, cols.clone()),
                    _ => self.strip::<L, 1>(l, row, cols.clone()),
                }
            };
        }
    }
}
