//! The micro-kernel of products with few rows, which dequantizes in registers.
use super::panels::{Factors, View};
use crate::cpu::gemm::Beta;
use crate::cpu::gemm::split::CHUNK;
use crate::cpu::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use crate::cpu::{Disjoint, Simd};
use crate::operands::QUANT_BLOCK as BLOCK;

/// Maximum rows of a tile. More rows read a dequantized panel.
pub(super) const MAX_ROWS: usize = 4;
/// Panels that a tile computes together, so that it has enough independent sums.
pub(super) const PANELS: usize = 4;

/// `y = beta y + a b`, and `y = residual + (..)`, for up to [`MAX_ROWS`] rows and up to [`PANELS`] panels.
pub(super) struct Tile<'a> {
    /// The rows of a, `depth` elements each.
    pub(super) a: &'a [f32],
    pub(super) b: View<'a>,
    pub(super) panel: usize,
    pub(super) panels: usize,
    /// The index of the first element of y, and the distance between rows.
    pub(super) y: &'a Disjoint<'a, f32>,
    pub(super) first: usize,
    pub(super) y_step: usize,
    pub(super) beta: Beta,
    pub(super) residual: Option<&'a [f32]>,
}

impl Tile<'_> {
    /// Computes the tile.
    ///
    /// # Safety
    /// No other thread accesses these elements of y.
    pub(super) unsafe fn run(self, simd: Simd) {
        let (rows, nibbles) = (self.a.len() / self.b.depth, self.b.layout.nibbles());
        macro_rules! pick {
            ($($m:literal)*) => {
                match (rows, nibbles) {
                    $(
                        ($m, false) => dispatch(simd, MicroKernel::<$m, false>(self)),
                        ($m, true) => dispatch(simd, MicroKernel::<$m, true>(self)),
                    )*
                    _ => unreachable!("a tile has 1 to {MAX_ROWS} rows"),
                }
            };
        }
        pick!(1 2 3 4)
    }
}

/// A tile of M rows.
struct MicroKernel<'a, const M: usize, const NIBBLES: bool>(Tile<'a>);

impl<const M: usize, const NIBBLES: bool> Kernel for MicroKernel<'_, M, NIBBLES> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let all = self.0.panels * L::REGS;
        let mut at = 0;
        // SAFETY: registers inside the panels of the tile; the contract of `Tile::run`.
        unsafe {
            if M == 1 && L::REGS == 2 {
                while at + 8 <= all {
                    self.columns::<L, 8>(l, at);
                    at += 8;
                }
            }
            if M <= 2 || L::REGS == 2 {
                while at + 4 <= all {
                    self.columns::<L, 4>(l, at);
                    at += 4;
                }
            }
            while at + 2 <= all {
                self.columns::<L, 2>(l, at);
                at += 2;
            }
        }
    }
}

impl<const M: usize, const NIBBLES: bool> MicroKernel<'_, M, NIBBLES> {
    /// Computes R registers of columns from register `at` on, over the whole depth.
    ///
    /// # Safety
    /// The registers are inside the tile's panels; no other thread accesses these elements of y.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize>(&self, l: L, at: usize) {
        let Tile { a, b, panel, .. } = self.0;
        let (zero, layout, depth) = (<L as Reg>::splat(l, 0.0), b.layout, b.depth);
        let (bytes, codes_at) = (layout.bytes(), layout.codes());
        let mut blocks: [*const u8; R] =
            std::array::from_fn(|j| b.panel(panel + (at + j) / L::REGS).as_ptr());
        let column: [usize; R] = std::array::from_fn(|j| (at + j) % L::REGS * L::WIDTH);
        let mut y = [[zero; R]; M];
        self.load(l, at, &mut y);
        let a: [&[f32]; M] = std::array::from_fn(|i| &a[i * depth..][..depth]);
        for from in (0..depth).step_by(CHUNK) {
            let mut chunk = [[zero; R]; M];
            for k in (from..depth.min(from + CHUNK)).step_by(BLOCK) {
                for half in 0..2 {
                    // SAFETY: `blocks` are at the block of depth k, which has 32 columns.
                    let factors: [Factors<L>; R] = std::array::from_fn(|j| unsafe {
                        Factors::load(l, layout, blocks[j], half, column[j])
                    });
                    let k = k + half * BLOCK / 2;
                    if NIBBLES {
                        for r in 0..BLOCK / 4 {
                            let row = codes_at + (half * BLOCK / 4 + r) * LANES;
                            let mut high = [zero; R];
                            for j in 0..R {
                                // SAFETY: as above.
                                let codes = unsafe { Reg::load_nibbles(l, blocks[j].add(row + column[j])) };
                                high[j] = factors[j].of(l, codes.1);
                                let low = factors[j].of(l, codes.0);
                                for (chunk, a) in chunk.iter_mut().zip(&a) {
                                    chunk[j] = Reg::fma(l, Reg::splat(l, a[k + 2 * r]), low, chunk[j]);
                                }
                            }
                            for (chunk, a) in chunk.iter_mut().zip(&a) {
                                let x = Reg::splat(l, a[k + 2 * r + 1]);
                                for (chunk, high) in chunk.iter_mut().zip(&high) {
                                    *chunk = Reg::fma(l, x, *high, *chunk);
                                }
                            }
                        }
                    } else {
                        for r in 0..BLOCK / 2 {
                            let row = codes_at + (half * BLOCK / 2 + r) * LANES;
                            for j in 0..R {
                                // SAFETY: as above.
                                let codes = unsafe { Reg::load_i8(l, blocks[j].add(row + column[j]).cast()) };
                                let w = factors[j].of(l, codes);
                                for (chunk, a) in chunk.iter_mut().zip(&a) {
                                    chunk[j] = Reg::fma(l, Reg::splat(l, a[k + r]), w, chunk[j]);
                                }
                            }
                        }
                    }
                }
                blocks.iter_mut().for_each(|block| *block = block.wrapping_add(bytes));
            }
            for (y, chunk) in y.iter_mut().zip(&chunk) {
                y.iter_mut().zip(chunk).for_each(|(y, chunk)| *y = Reg::add(l, *y, *chunk));
            }
        }
        self.store(l, at, &y);
    }

    /// The columns of y that register `at` holds: the first one, and their number.
    #[inline(always)]
    fn place<L: Lanes>(&self, at: usize) -> (usize, usize) {
        let column = at * L::WIDTH;
        let columns = self.0.b.columns - self.0.panel * LANES;
        (column, columns.saturating_sub(column).min(L::WIDTH))
    }

    /// Reads the old y of [`Beta::One`].
    #[inline(always)]
    fn load<L: Lanes, const R: usize>(&self, l: L, at: usize, y: &mut [[L::R; R]; M]) {
        if self.0.beta == Beta::Zero {
            return;
        }
        for (i, y) in y.iter_mut().enumerate() {
            for (j, y) in y.iter_mut().enumerate() {
                let (column, n) = self.place::<L>(at + j);
                if n == 0 {
                    continue;
                }
                let first = self.0.first + i * self.0.y_step + column;
                // SAFETY: these elements of y are accessed by no other thread, by the contract of `Tile::run`.
                let from = unsafe { self.0.y.slice(first..first + n) };
                // SAFETY: the slice has n elements.
                *y = unsafe { Reg::load_first(l, from.as_ptr(), n) };
            }
        }
    }

    #[inline(always)]
    fn store<L: Lanes, const R: usize>(&self, l: L, at: usize, y: &[[L::R; R]; M]) {
        for (i, y) in y.iter().enumerate() {
            for (j, &y) in y.iter().enumerate() {
                let (column, n) = self.place::<L>(at + j);
                if n == 0 {
                    continue;
                }
                let first = self.0.first + i * self.0.y_step + column;
                let mut y = y;
                if let Some(residual) = self.0.residual {
                    let residual = &residual[first..first + n];
                    // SAFETY: the slice has n elements.
                    y = Reg::add(l, unsafe { Reg::load_first(l, residual.as_ptr(), n) }, y);
                }
                // SAFETY: these elements of y are accessed by no other thread, by the contract of `Tile::run`.
                let to = unsafe { self.0.y.slice(first..first + n) };
                // SAFETY: the slice has n elements.
                unsafe { Reg::store_first(l, to.as_mut_ptr(), n, y) };
            }
        }
    }
}
