//! The matrix products of attention: a few rows times 16 to 64 columns, one chain per output.
#![allow(clippy::needless_range_loop, reason = "loops over registers, with constant length")]

use std::array;
use std::marker::PhantomData;
use std::ops::Range;

use super::chunk::Chunk;
use crate::cpu::gemm::{Beta, Matrix};
use crate::cpu::lanes::{Kernel, Lanes, Reg};
use crate::reference;

/// `out[r][c] = beta out[r][c] + sum over k, ascending, of a(r, k) b(k, c)` for the rows of `a`, the columns `cols` and
/// the indices `depth`.
///
/// `b(k, c)` is `b.rows[k * b.stride + c]`, `out(r, c)` is `out[r * out_row_step + c]`. Columns are computed in groups
/// of two registers. Columns of these groups outside `cols` are overwritten and must exist.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) a: Matrix<'a>,
    pub(crate) b: Chunk<'a>,
    pub(crate) out: &'a mut [f32],
    pub(crate) out_row_step: usize,
    pub(crate) beta: Beta,
    pub(crate) cols: Range<usize>,
    pub(crate) depth: Range<usize>,
}

/// The arithmetic that forms the sum of an output.
pub(crate) trait Arithmetic {
    /// Accumulators per output.
    const CHAINS: usize;

    /// Adds the products of the indices `depth` to `y`.
    ///
    /// # Safety
    /// `a(r, k)` is readable for r < R and k in `depth`, and so are the `C` registers at `b(k)`.
    unsafe fn sum<L: Lanes, const R: usize, const C: usize>(
        l: L,
        ab: &TileOperands,
        depth: Range<usize>,
        y: [[L::R; C]; R],
    ) -> [[L::R; C]; R];
}

#[derive(Debug)]
pub(crate) struct TileOperands {
    a: *const f32,
    a_row_step: usize,
    a_k_step: usize,
    b: *const f32,
    b_row_step: usize,
}

impl TileOperands {
    /// `acc[r][c] = fma(a(r, k), b(k)[c], acc[r][c])`. `FLUSH`: a tiny result becomes zero.
    #[inline(always)]
    unsafe fn step<const FLUSH: bool, L: Lanes, const R: usize, const C: usize>(
        &self,
        l: L,
        k: usize,
        mut acc: [[L::R; C]; R],
    ) -> [[L::R; C]; R] {
        // SAFETY: all these elements are readable, by contract.
        unsafe {
            let b_row = self.b.add(k.wrapping_mul(self.b_row_step));
            let a_column = self.a.add(k.wrapping_mul(self.a_k_step));
            let fma = |a, b, acc| if FLUSH { fma_flushed(l, a, b, acc) } else { Reg::fma(l, a, b, acc) };
            // The smaller side stays in registers.
            if R < C {
                let a: [L::R; R] =
                    array::from_fn(|r| Reg::splat(l, *a_column.add(r.wrapping_mul(self.a_row_step))));
                for c in 0..C {
                    let b = Reg::load(l, b_row.add(c * L::WIDTH));
                    for r in 0..R {
                        acc[r][c] = fma(a[r], b, acc[r][c]);
                    }
                }
            } else {
                let b: [L::R; C] = array::from_fn(|c| Reg::load(l, b_row.add(c * L::WIDTH)));
                for r in 0..R {
                    let a = Reg::splat(l, *a_column.add(r.wrapping_mul(self.a_row_step)));
                    for c in 0..C {
                        acc[r][c] = fma(a, b[c], acc[r][c]);
                    }
                }
            }
        }
        acc
    }
}

/// f32: one fma chain over all indices.
#[derive(Debug)]
pub(crate) struct Chain;

impl Arithmetic for Chain {
    const CHAINS: usize = 1;

    #[inline(always)]
    unsafe fn sum<L: Lanes, const R: usize, const C: usize>(
        l: L,
        ab: &TileOperands,
        depth: Range<usize>,
        mut y: [[L::R; C]; R],
    ) -> [[L::R; C]; R] {
        for k in depth {
            // SAFETY: k is in `depth`; the rest is this function's contract.
            y = unsafe { ab.step::<false, L, R, C>(l, k, y) };
        }
        y
    }
}

/// bf16: blocks of 32 indices with an even and an odd chain each. `FLUSH`: some result may be tiny.
#[derive(Debug)]
pub(crate) struct Blocks<const FLUSH: bool>;

impl<const FLUSH: bool> Arithmetic for Blocks<FLUSH> {
    const CHAINS: usize = 2;

    #[inline(always)]
    unsafe fn sum<L: Lanes, const R: usize, const C: usize>(
        l: L,
        ab: &TileOperands,
        depth: Range<usize>,
        mut y: [[L::R; C]; R],
    ) -> [[L::R; C]; R] {
        let mut from = depth.start;
        while from < depth.end {
            let to = depth.end.min((from / 32 + 1) * 32);
            let mut even = [[Reg::splat(l, 0.0); C]; R];
            let mut odd = even;
            while from < to {
                // SAFETY: the bounds are even, as `run` checks, and inside `depth`; the rest is this function's
                // contract.
                unsafe {
                    even = ab.step::<FLUSH, L, R, C>(l, from, even);
                    odd = ab.step::<FLUSH, L, R, C>(l, from + 1, odd);
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

/// Lanes of the widest register.
const MAX_WIDTH: usize = 16;

/// `a * b + c`, or zero of its sign if the result is tiny (docs/numerics.md, section 2): x86's rule, on registers. It
/// is exact, and slow only if a result is tiny.
#[inline(always)]
fn fma_flushed<L: Lanes>(l: L, a: L::R, b: L::R, c: L::R) -> L::R {
    let r = Reg::fma(l, a, b, c);
    if !Reg::any_tiny(l, r) {
        return r;
    }
    let mut lanes = [[0.0; MAX_WIDTH]; 3];
    for (lanes, v) in lanes.iter_mut().zip([a, b, c]) {
        // SAFETY: no register has more than MAX_WIDTH lanes.
        unsafe { Reg::store(l, lanes.as_mut_ptr(), v) }
    }
    let flushed = flush_lanes(&lanes);
    // SAFETY: as above.
    unsafe { Reg::load(l, flushed.as_ptr()) }
}

/// `a + b` with the same rule.
#[inline(always)]
fn add_flushed<L: Lanes>(l: L, a: L::R, b: L::R) -> L::R {
    fma_flushed(l, a, Reg::splat(l, 1.0), b)
}

#[cold]
#[inline(never)]
fn flush_lanes([a, b, c]: &[[f32; MAX_WIDTH]; 3]) -> [f32; MAX_WIDTH] {
    std::array::from_fn(|i| reference::fma_flushed(a[i], b[i], c[i]))
}

pub(crate) struct ProductKernel<'a, A>(Product<'a>, PhantomData<A>);

impl<'a, A: Arithmetic> ProductKernel<'a, A> {
    #[inline(always)]
    pub(crate) fn new(product: Product<'a>) -> Self {
        ProductKernel(product, PhantomData)
    }

    /// Computes the rows `row..row + R`.
    ///
    /// # Safety
    /// The bounds that [`ProductKernel::run`] checks hold, and `row + R <= rows`.
    #[inline(always)]
    unsafe fn strip<L: Lanes, const R: usize>(&mut self, l: L, row: usize, cols: Range<usize>) -> usize {
        let mut col = cols.start;
        // SAFETY: the groups are inside `cols`; the rest is this function's contract.
        unsafe {
            if const { R <= L::WIDE_ROWS && A::CHAINS == 1 } {
                while col + 4 * L::WIDTH <= cols.end {
                    self.tile::<L, R, 4>(l, row, col);
                    col += 4 * L::WIDTH;
                }
            }
            while col < cols.end {
                self.tile::<L, R, 2>(l, row, col);
                col += 2 * L::WIDTH;
            }
        }
        R
    }

    /// Computes R rows and C registers of columns.
    ///
    /// # Safety
    /// As for [`ProductKernel::strip`], with `C` registers inside the checked columns from `col` on.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const C: usize>(&mut self, l: L, row: usize, col: usize) {
        let p = &mut self.0;
        // SAFETY: `run` has checked the first and the last element of each operand.
        unsafe {
            let ab = TileOperands {
                a: p.a.data.as_ptr().add(row * p.a.row_step),
                a_row_step: p.a.row_step,
                a_k_step: p.a.k_step,
                b: p.b.rows.as_ptr().add(col),
                b_row_step: p.b.stride,
            };
            let out = p.out.as_mut_ptr().add(row * p.out_row_step + col);
            let mut y = [[Reg::splat(l, 0.0); C]; R];
            if p.beta == Beta::One {
                for r in 0..R {
                    for c in 0..C {
                        y[r][c] = Reg::load(l, out.add(r * p.out_row_step + c * L::WIDTH));
                    }
                }
            }
            let y = A::sum(l, &ab, p.depth.clone(), y);
            for r in 0..R {
                for c in 0..C {
                    Reg::store(l, out.add(r * p.out_row_step + c * L::WIDTH), y[r][c]);
                }
            }
        }
    }
}

impl<A: Arithmetic> Kernel for ProductKernel<'_, A> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let p = &self.0;
        let group = 2 * L::WIDTH;
        let (rows, cols) = (p.a.rows, p.cols.start / group * group..p.cols.end.next_multiple_of(group));
        if rows == 0 || cols.is_empty() {
            return;
        }
        let even = p.depth.start.is_multiple_of(2) && p.depth.end.is_multiple_of(2);
        assert!(even || A::CHAINS == 1, "blocks need even bounds of the depth");
        let end = p.depth.end.max(1);
        assert!((rows - 1) * p.a.row_step + (end - 1) * p.a.k_step < p.a.data.len(), "a is out of bounds");
        assert!((end - 1) * p.b.stride + cols.end <= p.b.rows.len(), "b is out of bounds");
        assert!((rows - 1) * p.out_row_step + cols.end <= p.out.len(), "out is out of bounds");
        let mut row = 0;
        while row < rows {
            let rest = rows - row;
            // A condition in a `const` block: a strip taller than the registers allow is not compiled at all.
            macro_rules! strip {
                ($($height:literal)*) => {
                    $(if const { $height <= L::TILE_ROWS / A::CHAINS } && rest >= $height {
                        // SAFETY: the bounds were checked, and the strip has no more rows than remain.
                        unsafe { self.strip::<L, $height>(l, row, cols.clone()) }
                    } else)* {
                        unreachable!("every tile has a row")
                    }
                };
            }
            row += strip!(12 6 3 2 1);
        }
    }
}
