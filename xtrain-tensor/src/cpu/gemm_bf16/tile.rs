//! The micro-kernel of bf16 products for SIMD: a tile of up to 6 rows over the whole depth.
use std::ops::Range;

use super::super::gemm::Beta;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::super::{Disjoint, Simd};
use super::left::F32Block;
use super::operand::{BLOCK, LATTICE_MIN, widen};
use super::pairs::Pairs;
use super::tiles::{BLOCK_ROWS, View};
use crate::reference::{Bf16, Mode};

/// `y = beta y + a b`, block by block.
pub(super) struct Tile<'a> {
    pub(super) a: &'a [F32Block],
    pub(super) b: View<'a>,
    /// The panels of `b`, up to [`panels_across`].
    pub(super) panels: Range<usize>,
    /// The rows of y, up to [`tile_rows`], and the columns of the panels.
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) y: &'a Disjoint<'a, f32>,
    /// Elements between rows of y.
    pub(super) y_step: usize,
    pub(super) beta: Beta,
    /// Whether no sum from +0 can be tiny: see the module's lattice argument.
    pub(super) on_lattice: bool,
    /// Half of the next panel, to be prefetched: 16 rows of each block, 32 apart.
    pub(super) prefetch: Option<&'a [Pairs]>,
}

/// Number of rows of a tile that uses the registers of `simd` best.
pub(super) fn tile_rows(simd: Simd) -> usize {
    match simd {
        Simd::Amx | Simd::Avx512 => 6,
        Simd::Neon => 4,
        _ => 2,
    }
}

/// Panels per tile of `rows` rows. A few rows alone have too few independent sums to keep the CPU busy.
pub(super) fn panels_across(simd: Simd, rows: usize) -> usize {
    match (simd, rows) {
        (Simd::Amx | Simd::Avx512, 1) => 4,
        (Simd::Amx | Simd::Avx512, 2 | 3) => 2,
        _ => 1,
    }
}

impl Tile<'_> {
    /// Computes the tile.
    ///
    /// # Safety
    /// No other thread accesses these elements of y.
    pub(super) unsafe fn run(self, simd: Simd) {
        let blocks = self.b.blocks();
        assert_eq!(self.a.len(), self.rows.len() * blocks, "a has a row of blocks for each row of y");
        let across = self.panels.len();
        let width = self.columns.len();
        assert!(width <= across * LANES && width + LANES > across * LANES, "the panels' columns");
        macro_rules! pick {
            ($($rows:literal $across:literal),*) => {
                match (self.rows.len(), across) {
                    $(($rows, $across) => dispatch(simd, MicroKernel::<$rows, $across>(self)),)*
                    (rows, _) => unreachable!("no tile has {rows} rows and {across} panels"),
                }
            };
        }
        pick!(1 1, 1 4, 2 1, 2 2, 3 1, 3 2, 4 1, 5 1, 6 1)
    }
}

/// A tile of M rows and P panels.
struct MicroKernel<'a, const M: usize, const P: usize>(Tile<'a>);

impl<const M: usize, const P: usize> Kernel for MicroKernel<'_, M, P> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (y, stride) = (self.0.y, self.0.y_step);
        let width = self.0.columns.len();
        let row = |i: usize| (self.0.rows.start + i) * stride + self.0.columns.start;
        if width == P * LANES {
            // `at` checks the address one past the last element, so all elements are inside y
            y.at(row(M - 1) + width);
            // SAFETY: rows of P * LANES elements inside y; no other thread accesses them.
            return unsafe { self.walk(l, std::array::from_fn(|i| y.at(row(i)))) };
        }
        let mut whole = [[[0.0; LANES]; P]; M];
        for (i, whole) in whole.iter_mut().enumerate() {
            // SAFETY: no other thread accesses them, by the contract of `Tile::run`.
            whole.as_flattened_mut()[..width].copy_from_slice(unsafe { y.slice(row(i)..row(i) + width) });
        }
        // SAFETY: local rows of P * LANES elements.
        unsafe { self.walk(l, std::array::from_fn(|i| whole[i].as_flattened_mut().as_mut_ptr())) };
        for (i, whole) in whole.iter().enumerate() {
            // SAFETY: as above.
            unsafe { y.slice(row(i)..row(i) + width) }.copy_from_slice(&whole.as_flattened()[..width]);
        }
    }
}

impl<const M: usize, const P: usize> MicroKernel<'_, M, P> {
    /// Computes all columns, a few registers at a time.
    ///
    /// # Safety
    /// `y` points to the tile's columns of each row, padded to whole panels; no other thread accesses them.
    #[inline(always)]
    unsafe fn walk<L: Lanes>(&self, l: L, y: [*mut f32; M]) {
        let all = P * L::REGS;
        // SAFETY: the caller's promise; the registers are inside the panels.
        unsafe {
            if !self.0.on_lattice || self.0.beta == Beta::One && off_lattice::<L, M, P>(l, &y) {
                for at in 0..all {
                    self.columns::<L, 1, true>(l, &y, at);
                }
            } else if L::REGS == 2 && P == 4 {
                self.columns::<L, 8, false>(l, &y, 0);
            } else if L::REGS == 2 && P == 2 || L::REGS > 2 && M == 1 {
                for at in (0..all).step_by(4) {
                    self.columns::<L, 4, false>(l, &y, at);
                }
            } else {
                for at in (0..all).step_by(2) {
                    self.columns::<L, 2, false>(l, &y, at);
                }
            }
        }
    }

    /// Computes R registers of columns from register `at` on, over the whole depth. CHECK: some result may be tiny.
    ///
    /// # Safety
    /// As for [`MicroKernel::walk`]; `at + R` registers are at most P panels.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize, const CHECK: bool>(
        &self,
        l: L,
        rows: &[*mut f32; M],
        at: usize,
    ) {
        let zero = <L as Reg>::splat(l, 0.0);
        let blocks = self.0.b.blocks();
        let prefetch = if at == 0 { self.0.prefetch } else { None };
        let panels: [&[Pairs]; P] = std::array::from_fn(|p| self.0.b.panel(self.0.panels.start + p));
        let mut y = [[zero; R]; M];
        if self.0.beta == Beta::One {
            for (i, y) in y.iter_mut().enumerate() {
                for (j, y) in y.iter_mut().enumerate() {
                    // SAFETY: register at + j of a row.
                    *y = unsafe { Reg::load(l, rows[i].add((at + j) * L::WIDTH)) };
                }
            }
        }
        for block in 0..blocks {
            let b: [&[Pairs; BLOCK_ROWS]; P] = std::array::from_fn(|p| {
                panels[p][block * BLOCK_ROWS..][..BLOCK_ROWS].try_into().expect("a panel is whole blocks")
            });
            let a: [&F32Block; M] = std::array::from_fn(|i| &self.0.a[i * blocks + block]);
            let mut even = [[zero; R]; M];
            let mut odd = [[zero; R]; M];
            let mut tiny = false;
            for r in 0..BLOCK / 2 {
                if let Some(next) = prefetch {
                    Reg::prefetch_l2(l, next.as_ptr().wrapping_add(block * BLOCK_ROWS + r).cast());
                }
                let mut pairs = [(zero, zero); R];
                for (j, pair) in pairs.iter_mut().enumerate() {
                    let column = (at + j) % L::REGS * L::WIDTH;
                    let row = &b[(at + j) / L::REGS][column / 16 * 16 + r].0[column % 16 * 2..];
                    // SAFETY: WIDTH <= 16 divides 16, so the row has 2 * WIDTH more elements.
                    *pair = unsafe { Reg::load_pairs(l, row.as_ptr()) };
                }
                for i in 0..M {
                    let (x0, x1) = (Reg::splat(l, a[i].0[2 * r]), Reg::splat(l, a[i].0[2 * r + 1]));
                    for j in 0..R {
                        even[i][j] = Reg::fma(l, x0, pairs[j].0, even[i][j]);
                        odd[i][j] = Reg::fma(l, x1, pairs[j].1, odd[i][j]);
                        if CHECK {
                            tiny |= Reg::any_tiny(l, even[i][j]) | Reg::any_tiny(l, odd[i][j]);
                        }
                    }
                }
            }
            for i in 0..M {
                for j in 0..R {
                    let chunk = Reg::add(l, even[i][j], odd[i][j]);
                    let sum = Reg::add(l, y[i][j], chunk);
                    if CHECK {
                        let bad = tiny | Reg::any_tiny(l, y[i][j]);
                        if bad | Reg::any_tiny(l, chunk) | Reg::any_tiny(l, sum) {
                            let (b, register) = (b[(at + j) / L::REGS], (at + j) % L::REGS);
                            y[i][j] = recompute_block(l, y[i][j], a[i], b, register * L::WIDTH);
                            continue;
                        }
                    }
                    y[i][j] = sum;
                }
            }
        }
        for (i, y) in y.iter().enumerate() {
            for (j, y) in y.iter().enumerate() {
                // SAFETY: register at + j of a row.
                unsafe { Reg::store(l, rows[i].add((at + j) * L::WIDTH), *y) };
            }
        }
    }
}

/// Whether some old y is off the lattice: neither zero nor at least 2^-103.
///
/// # Safety
/// P panels of columns are readable at each of `y`.
#[inline(always)]
unsafe fn off_lattice<L: Lanes, const M: usize, const P: usize>(l: L, y: &[*mut f32; M]) -> bool {
    let (zero, one) = (l.zero(), Lanes::splat(l, 1.0));
    let mut any = zero;
    for row in y {
        for p in 0..P {
            // SAFETY: the caller's promise.
            let v = unsafe { l.load_ptr(row.add(p * LANES)) };
            let size = l.max(v, l.neg(v));
            let small = l.select_lt(size, Lanes::splat(l, LATTICE_MIN), one, zero);
            any = l.max(any, l.select_lt(zero, size, small, zero));
        }
    }
    l.max32(any) != 0.0
}

/// Recomputes one block of one register with the scalar implementation.
#[inline(always)]
fn recompute_block<L: Lanes>(l: L, y: L::R, a: &F32Block, b: &[Pairs; BLOCK_ROWS], column: usize) -> L::R {
    let mut lanes = [0.0; LANES];
    // SAFETY: WIDTH <= 32 lanes.
    unsafe { Reg::store(l, lanes.as_mut_ptr(), y) };
    by_reference(&mut lanes[..L::WIDTH], a, b, column);
    // SAFETY: as above.
    unsafe { Reg::load(l, lanes.as_ptr()) }
}

#[cold]
fn by_reference(y: &mut [f32], a: &F32Block, b: &[Pairs; BLOCK_ROWS], column: usize) {
    for (lane, y) in y.iter_mut().enumerate() {
        let (tile, j) = ((column + lane) / 16 * 16, (column + lane) % 16);
        let b = |k: usize| widen(b[tile + k / 2].0[2 * j + k % 2]);
        *y = Bf16::add(*y, Bf16::chunk(BLOCK, |k| a.0[k], b));
    }
}
