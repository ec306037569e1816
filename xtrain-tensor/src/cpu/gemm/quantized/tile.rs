//! The micro-kernel of products with few rows, which dequantizes in registers.
use super::codes::{Codes, Factors};
use super::panels::{COLUMNS, OCTET, View};
use crate::cpu::gemm::Beta;
use crate::cpu::gemm::split::CHUNK;
use crate::cpu::lanes::{Kernel, Lanes, Reg, dispatch};
use crate::cpu::{Disjoint, Simd};

/// Maximum rows of a tile. More rows read a dequantized panel.
pub(super) fn max_rows(simd: Simd) -> usize {
    struct MaxRows;
    impl Kernel<usize> for MaxRows {
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) -> usize {
            max_rows_of::<L>()
        }
    }
    dispatch(simd, MaxRows)
}

const fn max_rows_of<L: Lanes>() -> usize {
    if L::REGS == 2 { 16 } else { 4 }
}

/// Registers of columns in a tile of `rows` rows: as many as the register file holds sums for.
const fn width<L: Lanes>(rows: usize) -> usize {
    match rows {
        1 | 2 => 4,
        3 | 4 if L::REGS == 2 => 4,
        ..=12 => 2,
        _ => 1,
    }
}

/// `y = beta y + a b`, and `y = residual + (..)`, for up to [`max_rows`] rows and columns of one panel of b.
pub(super) struct Tile<'a> {
    /// The elements of a, `[depth][rows]`.
    pub(super) a: &'a [f32],
    pub(super) b: View<'a>,
    /// The first column and the number of columns, multiples of 32 inside one panel. The last ones may be padding.
    pub(super) column: usize,
    pub(super) columns: usize,
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
        let column = self.b.panel(self.column).column;
        assert!(column + self.columns <= COLUMNS, "columns of one panel");
        let rows = self.a.len() / self.b.depth;
        let layout = self.b.layout;
        macro_rules! pick {
            ($($m:literal)*) => {
                match (rows, layout.nibbles(), layout.has_offsets()) {
                    $(
                        ($m, false, false) => dispatch(simd, MicroKernel::<$m, false, false>(self)),
                        ($m, false, true) => dispatch(simd, MicroKernel::<$m, false, true>(self)),
                        ($m, true, false) => dispatch(simd, MicroKernel::<$m, true, false>(self)),
                        ($m, true, true) => dispatch(simd, MicroKernel::<$m, true, true>(self)),
                    )*
                    _ => unreachable!("a tile has 1 to 16 rows"),
                }
            };
        }
        pick!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
    }
}

/// A tile of M rows.
struct MicroKernel<'a, const M: usize, const NIBBLES: bool, const OFFSETS: bool>(Tile<'a>);

impl<const M: usize, const NIBBLES: bool, const OFFSETS: bool> Kernel
    for MicroKernel<'_, M, NIBBLES, OFFSETS>
{
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // Conditions in `const` blocks: what they exclude is not compiled at all.
        if const { M > max_rows_of::<L>() } {
            unreachable!("a tile has at most {} rows", max_rows_of::<L>());
        }
        let all = self.0.columns / L::WIDTH;
        let mut at = 0;
        // SAFETY: registers inside the columns of the tile; the contract of `Tile::run`.
        unsafe {
            if const { width::<L>(M) == 4 } {
                while at + 4 <= all {
                    self.columns::<L, 4>(l, at);
                    at += 4;
                }
            }
            if const { width::<L>(M) >= 2 } {
                while at + 2 <= all {
                    self.columns::<L, 2>(l, at);
                    at += 2;
                }
            } else {
                while at < all {
                    self.columns::<L, 1>(l, at);
                    at += 1;
                }
            }
        }
    }
}

impl<const M: usize, const NIBBLES: bool, const OFFSETS: bool> MicroKernel<'_, M, NIBBLES, OFFSETS> {
    /// Computes R registers of columns from register `at` on, over the whole depth.
    ///
    /// # Safety
    /// The registers are inside the tile's columns; no other thread accesses these elements of y.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize>(&self, l: L, at: usize) {
        let Tile { a, b, column, .. } = self.0;
        let (zero, layout, depth) = (<L as Reg>::splat(l, 0.0), b.layout, b.depth);
        let (from, bytes) = (b.panel(column), layout.bytes());
        let (mut block, first) = (from.blocks.as_ptr(), from.column + at * L::WIDTH);
        let mut y = [[zero; R]; M];
        self.load(l, at, &mut y);
        let (a, _) = a.as_chunks::<M>();
        for from in (0..depth).step_by(CHUNK) {
            let mut chunk = [[zero; R]; M];
            for k in (from..depth.min(from + CHUNK)).step_by(layout.depths()) {
                // SAFETY: `block` is the block of depth k; the registers are inside its columns.
                let factors: [Factors<L, OFFSETS>; R] =
                    std::array::from_fn(|j| unsafe { Factors::load(l, layout, block, first + j * L::WIDTH) });
                for octet in 0..layout.depths() / OCTET {
                    let a = &a[k + octet * OCTET..][..OCTET];
                    // SAFETY: as above.
                    let mut codes: [Codes<L, NIBBLES>; R] = std::array::from_fn(|j| unsafe {
                        Codes::load(l, layout, block, octet, first + j * L::WIDTH)
                    });
                    for n in 0..OCTET {
                        for j in 0..R {
                            // SAFETY: n < 8.
                            let w = factors[j].of(l, unsafe { codes[j].take::<OFFSETS>(l, n) });
                            for (chunk, &a) in chunk.iter_mut().zip(&a[n]) {
                                chunk[j] = Reg::fma(l, Reg::splat(l, a), w, chunk[j]);
                            }
                        }
                    }
                }
                block = block.wrapping_add(bytes);
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
        let columns = self.0.b.columns - self.0.column;
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
