//! The micro-kernel of all f32 products: tiles of up to 12 rows, one chunk of the depth.
use std::array;

use super::super::Simd;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::super::scratch::Buffer;

/// The factor of the old output values, as in BLAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beta {
    /// The sum starts from +0. The old values are not read.
    Zero,
    /// The sum continues from the old values.
    One,
}

/// A column of `count` tiles and one chunk of the depth: `c[i][j] = beta c[i][j] + chunk`, where
/// `chunk = fma(a[i][k], b[k][j], chunk)` for ascending k, from +0.
///
/// `a[i][k]` is `a[i * row_step + k * k_step]`. Column j of panel p of row k is `b[p * panel_step + k * b_step + j]`.
/// c has `columns` columns, 32 per panel, and its rows are `c_step` apart. If `residual` is not null, the epilogue
/// computes `c[i][j] = residual[i][j] + c[i][j]`; its rows are also `c_step` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileJob {
    pub(super) a: *const f32,
    pub(super) row_step: usize,
    pub(super) k_step: usize,
    pub(super) b: *const f32,
    pub(super) b_step: usize,
    pub(super) panel_step: usize,
    pub(super) depth: usize,
    pub(super) c: *mut f32,
    pub(super) c_step: usize,
    pub(super) columns: usize,
    pub(super) residual: *const f32,
    pub(super) beta: Beta,
    pub(super) count: usize,
    /// Prefetch into the L1 cache: data that is read soon.
    pub(super) l1: Prefetch,
    /// Prefetch into the L2 cache: data that is read later.
    pub(super) l2: Later,
}

/// Data that a column of tiles prefetches into the L2 cache.
#[derive(Debug, Clone, Copy)]
pub(super) enum Later {
    /// Nothing: b is in the L1 cache.
    Nothing,
    /// The rows of b that a single tile, which walks all panels, reads next; at the end of a chunk, rows of the next one.
    Walk,
    /// Other data.
    Next(Prefetch),
}

/// Data that tiles prefetch while they compute: one cache line per step over the depth. Any address is valid. A
/// prefetch occupies a load port even if the line is in the cache, so a tile with nothing to prefetch executes none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefetch {
    /// Address for the first step of the first tile.
    pub(super) from: *const f32,
    /// Elements between steps, and between tiles.
    pub(super) step: usize,
    pub(super) tile_step: usize,
    /// Number of tiles that use this prefetch.
    pub(super) tiles: usize,
}

#[derive(Debug, Clone, Copy)]
struct TilePtrs {
    a: *const f32,
    c: *mut f32,
    residual: *const f32,
    l1: Option<Stream>,
    l2: Option<Stream>,
}

/// A prefetch stream: one line from `from` on for each step over the depth.
#[derive(Debug, Clone, Copy)]
struct Stream {
    from: *const f32,
    step: usize,
}

impl Stream {
    const NONE: Stream = Stream { from: std::ptr::null(), step: 0 };

    #[inline(always)]
    fn next(&mut self) -> *const f32 {
        let line = self.from;
        self.from = line.wrapping_add(self.step);
        line
    }
}

/// Elements between the row of a panel that is read and the one that is prefetched: 4 KiB.
const AHEAD: usize = 32 * LANES;

/// Maximum rows of a tile, for the instruction set with the most registers.
const MAX_ROWS: usize = 12;

/// Number of rows of a tile that uses the registers of `simd` best.
pub(super) fn tile_rows(simd: Simd) -> usize {
    struct TileRows;
    impl Kernel<usize> for TileRows {
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) -> usize {
            L::GEMM_ROWS
        }
    }
    dispatch(simd, TileRows)
}

impl TileJob {
    /// Computes tiles of `rows` rows, at most [`tile_rows`] of `simd`.
    ///
    /// # Safety
    /// All elements of the operands are readable (a, b, residual) or writable (c), and no other thread accesses those
    /// of c.
    pub(super) unsafe fn run(&self, simd: Simd, rows: usize) {
        macro_rules! pick {
            ($($m:literal)*) => {
                match rows {
                    0 => {}
                    $(
                        $m if self.row_step == 1 => dispatch(simd, MicroKernel::<$m, true>(self)),
                        $m => dispatch(simd, MicroKernel::<$m, false>(self)),
                    )*
                    _ => unreachable!("a tile has at most {MAX_ROWS} rows"),
                }
            };
        }
        pick!(1 2 3 4 5 6 7 8 9 10 11 12)
    }

    /// Address in b of register `at` of the columns.
    #[inline(always)]
    fn column<L: Lanes>(&self, at: usize) -> *const f32 {
        self.b.wrapping_add((at / L::REGS).wrapping_mul(self.panel_step) + at % L::REGS * L::WIDTH)
    }
}

/// Tiles of M rows. `UNIT_STRIDE`: the rows of a are adjacent in memory (`row_step` 1), so they need one address
/// instead of one each. Created by [`TileJob::run`] only, whose contract holds for the pointers. It holds a reference
/// because a copy would be read back before its stores have left the store buffer, which stalls until all older
/// stores are done.
struct MicroKernel<'a, const M: usize, const UNIT_STRIDE: bool>(&'a TileJob);

impl<const M: usize, const UNIT_STRIDE: bool> Kernel for MicroKernel<'_, M, UNIT_STRIDE> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // Conditions in `const` blocks: what they exclude is not compiled at all. Few rows: compute several panels at
        // once, for enough independent chains to hide the latency of fma. R registers across make M * R chains.
        if const { M > L::GEMM_ROWS } {
            unreachable!("a tile of {M} rows exceeds the maximum of {}", L::GEMM_ROWS);
        } else if const { M <= L::WIDE_ROWS / 2 } {
            self.tiles::<L, 8>(l);
        } else if const { M <= L::WIDE_ROWS } {
            self.tiles::<L, 4>(l);
        } else {
            self.tiles::<L, 2>(l);
        }
    }
}

impl<const M: usize, const UNIT_STRIDE: bool> MicroKernel<'_, M, UNIT_STRIDE> {
    #[inline(always)]
    fn pointers(&self, i: usize) -> TilePtrs {
        let t = self.0;
        let rows = i.wrapping_mul(M);
        let down = rows.wrapping_mul(t.c_step);
        let a = t.a.wrapping_add(rows.wrapping_mul(if UNIT_STRIDE { 1 } else { t.row_step }));
        let stream = |f: &Prefetch| {
            let from = f.from.wrapping_add(i.wrapping_mul(f.tile_step));
            (i < f.tiles).then_some(Stream { from, step: f.step })
        };
        TilePtrs {
            a,
            c: t.c.wrapping_add(down),
            residual: if t.residual.is_null() { t.residual } else { t.residual.wrapping_add(down) },
            l1: stream(&t.l1),
            l2: if let Later::Next(next) = &t.l2 { stream(next) } else { None },
        }
    }

    /// Computes all columns of each tile: R registers at a time, then two, then one.
    #[inline(always)]
    fn tiles<L: Lanes, const R: usize>(&self, l: L) {
        let (whole, part) = (self.0.columns / L::WIDTH, self.0.columns % L::WIDTH);
        for i in 0..self.0.count {
            let ptrs = self.pointers(i);
            let mut at = 0;
            while at + R <= whole {
                self.chunk::<L, R>(l, self.0, ptrs, at);
                at += R;
            }
            if const { R > 2 } {
                while at + 2 <= whole {
                    self.chunk::<L, 2>(l, self.0, ptrs, at);
                    at += 2;
                }
            }
            if at < whole {
                self.chunk::<L, 1>(l, self.0, ptrs, at);
                at += 1;
            }
            if part > 0 {
                self.edge(l, ptrs, at, part);
            }
        }
    }

    /// Computes the last register of columns, at `at`, which has only `n` columns, in padded copies.
    #[inline(always)]
    fn edge<L: Lanes>(&self, l: L, ptrs: TilePtrs, at: usize, n: usize) {
        let t = self.0;
        let from = t.column::<L>(at);
        let mut b = Buffer::<f32>::new(t.depth * L::WIDTH);
        for (k, b) in b.chunks_exact_mut(L::WIDTH).enumerate() {
            // SAFETY: row k of b has n more columns, by the contract of `TileJob::run`.
            unsafe { Reg::store(l, b.as_mut_ptr(), Reg::load_first(l, from.wrapping_add(k * t.b_step), n)) }
        }
        let mut c = [[0f32; LANES]; M];
        let mut residual = [[0f32; LANES]; M];
        let offset = |i: usize| i.wrapping_mul(t.c_step) + at * L::WIDTH;
        for (i, (c, residual)) in c.iter_mut().zip(&mut residual).enumerate() {
            // SAFETY: row i has n more columns, by the contract of `TileJob::run`.
            unsafe {
                Reg::store(l, c.as_mut_ptr(), Reg::load_first(l, ptrs.c.wrapping_add(offset(i)), n));
                if !ptrs.residual.is_null() {
                    Reg::store(
                        l,
                        residual.as_mut_ptr(),
                        Reg::load_first(l, ptrs.residual.wrapping_add(offset(i)), n),
                    );
                }
            }
        }
        let residual = if ptrs.residual.is_null() { ptrs.residual } else { residual.as_ptr().cast() };
        let whole = TileJob { b: b.as_ptr(), b_step: L::WIDTH, c_step: LANES, ..*t };
        self.chunk::<L, 1>(l, &whole, TilePtrs { c: c.as_mut_ptr().cast(), residual, ..ptrs }, 0);
        for (i, row) in c.iter().enumerate() {
            // SAFETY: as above, and no other thread accesses them.
            unsafe { Reg::store_first(l, ptrs.c.wrapping_add(offset(i)), n, Reg::load(l, row.as_ptr())) }
        }
    }

    /// Computes R whole registers of columns of one tile, starting at register `at`.
    ///
    /// Addresses use wrapping arithmetic. They are inside the operands by contract, and an overflow check in the loop
    /// over the depth would cost a quarter of its time.
    #[inline(always)]
    fn chunk<L: Lanes, const R: usize>(&self, l: L, t: &TileJob, ptrs: TilePtrs, at: usize) {
        let walk = match t.l2 {
            // A part of a panel skips cache lines, but the hardware prefetcher expects consecutive lines. Prefetch the
            // rest of the panel.
            Later::Walk if !(at + R).is_multiple_of(L::REGS) => Some(t.column::<L>(at + R)),
            // The hardware prefetcher stops at the end of a page. With several panels the others hide it.
            Later::Walk if const { M > L::WIDE_ROWS } => Some(t.column::<L>(at).wrapping_add(AHEAD)),
            _ => None,
        };
        let (l1, l2) = (ptrs.l1, ptrs.l2.or(walk.map(|from| Stream { from, step: t.b_step })));
        let acc = match [l1.or(l2), l2.or(l1)] {
            [Some(l1), Some(l2)] => self.sums::<L, R, true>(l, t, ptrs.a, at, [l1, l2]),
            _ => self.sums::<L, R, false>(l, t, ptrs.a, at, [Stream::NONE; 2]),
        };
        let zero = <L as Reg>::splat(l, 0.0);
        for (i, row) in acc.iter().enumerate() {
            for (j, chunk) in row.iter().enumerate() {
                let offset = i.wrapping_mul(t.c_step) + (at + j) * L::WIDTH;
                let c = ptrs.c.wrapping_add(offset);
                // SAFETY: elements of c, writable, and of residual, readable unless it is null, by the contract
                // of `TileJob::run`.
                unsafe {
                    let start = if t.beta == Beta::Zero { zero } else { Reg::load(l, c) };
                    let mut y = Reg::add(l, start, *chunk);
                    if !ptrs.residual.is_null() {
                        y = Reg::add(l, Reg::load(l, ptrs.residual.wrapping_add(offset)), y);
                    }
                    Reg::store(l, c, y);
                }
            }
        }
    }

    /// The sums over the depth of R registers of columns from register `at` on, with or without prefetches.
    #[inline(always)]
    fn sums<L: Lanes, const R: usize, const PREFETCH: bool>(
        &self,
        l: L,
        t: &TileJob,
        mut a: *const f32,
        at: usize,
        [mut l1, mut l2]: [Stream; 2],
    ) -> [[<L as Reg>::R; R]; M] {
        let zero = <L as Reg>::splat(l, 0.0);
        let mut acc = [[zero; R]; M];
        let mut column = [t.b; R];
        for (j, p) in column.iter_mut().enumerate() {
            *p = t.column::<L>(at + j);
        }
        let row_step = if UNIT_STRIDE { 1 } else { t.row_step };
        for _ in 0..t.depth {
            if PREFETCH {
                Reg::prefetch_l1(l, l1.next());
                Reg::prefetch_l2(l, l2.next());
            }
            // SAFETY: element (i, k) of a, readable by the contract of `TileJob::run`.
            let x = |i: usize| Reg::splat(l, unsafe { *a.wrapping_add(i.wrapping_mul(row_step)) });
            let load = |p: &mut *const f32| {
                // SAFETY: row k < depth of a column of b, readable by the contract of `TileJob::run`.
                let b = unsafe { Reg::load(l, *p) };
                *p = p.wrapping_add(t.b_step);
                b
            };
            // The smaller side stays in registers.
            if M < R {
                let x: [<L as Reg>::R; M] = array::from_fn(x);
                for (j, p) in column.iter_mut().enumerate() {
                    let b = load(p);
                    for (row, x) in acc.iter_mut().zip(&x) {
                        row[j] = Reg::fma(l, *x, b, row[j]);
                    }
                }
            } else {
                let mut b = [zero; R];
                b.iter_mut().zip(&mut column).for_each(|(b, p)| *b = load(p));
                for (i, row) in acc.iter_mut().enumerate() {
                    let x = x(i);
                    for (c, b) in row.iter_mut().zip(&b) {
                        *c = Reg::fma(l, x, *b, *c);
                    }
                }
            }
            a = a.wrapping_add(t.k_step);
        }
        acc
    }
}

const _: () = assert!(LANES == 32, "a row of a panel is one value of 32 lanes");
