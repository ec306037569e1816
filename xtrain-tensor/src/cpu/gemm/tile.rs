//! The one microkernel of all f32 products: a tile of up to 12 rows, one chunk of the depth.
use super::super::Simd;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};

/// What a chunk is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// To +0: the output's old values are not read.
    Zero,
    /// To the output's values: the running sum of earlier chunks.
    Continue,
}

/// `c[i][j] = start + chunk`, where `chunk = fma(a[i][k], b[k][j], chunk)` for k rising from +0:
/// `a[i][k] = a[i * row_step + k * k_step]`, and column j of panel p of row k is
/// `b[p * panel_step + k * b_step + j]`; c has `32 * panels` columns in rows of `c_step`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub(super) a: *const f32,
    pub(super) row_step: usize,
    pub(super) k_step: usize,
    pub(super) b: *const f32,
    pub(super) b_step: usize,
    pub(super) panel_step: usize,
    pub(super) panels: usize,
    pub(super) depth: usize,
    pub(super) c: *mut f32,
    pub(super) c_step: usize,
    pub(super) start: Start,
}

/// The most rows of a tile.
pub(super) const MOST_ROWS: usize = 12;

/// The rows of a tile that use the registers of `simd` best.
pub(super) fn tile_rows(simd: Simd) -> usize {
    struct Ask;
    impl Kernel for Ask {
        type Out = usize;
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) -> usize {
            L::TILE_ROWS
        }
    }
    dispatch(simd, Ask)
}

impl Tile {
    /// Computes `rows` rows, at most [`MOST_ROWS`].
    ///
    /// # Safety
    /// All elements named above are readable (a, b) and writable (c), and no other thread touches
    /// those of c.
    pub(super) unsafe fn run(self, simd: Simd, rows: usize) {
        macro_rules! pick {
            ($($m:literal)*) => {
                match rows {
                    0 => {}
                    $($m => dispatch(simd, Rows::<$m>(self)),)*
                    _ => unreachable!("a tile has at most {MOST_ROWS} rows"),
                }
            };
        }
        pick!(1 2 3 4 5 6 7 8 9 10 11 12)
    }
}

/// A tile of M rows. Made by [`Tile::run`] only, whose contract holds for its pointers.
struct Rows<const M: usize>(Tile);

impl<const M: usize> Kernel for Rows<M> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // Few rows: several panels at once, so that there are enough independent chains to hide the
        // latency of an fma. R registers across, M * R chains.
        let wide = if L::WIDTH == 16 { M <= 4 } else { M <= 3 };
        if L::WIDTH == 16 && M <= 2 || M == 1 {
            self.walk::<L, 8>(l);
        } else if wide {
            self.walk::<L, 4>(l);
        } else {
            self.walk::<L, 2>(l);
        }
    }
}

impl<const M: usize> Rows<M> {
    /// All columns, R registers at a time, then what is left panel by panel.
    #[inline(always)]
    fn walk<L: Lanes, const R: usize>(&self, l: L) {
        let registers = self.0.panels * L::REGS;
        let mut at = 0;
        while at + R <= registers {
            self.chunk::<L, R>(l, at);
            at += R;
        }
        while at < registers {
            self.chunk::<L, 2>(l, at);
            at += 2;
        }
    }

    /// R registers of columns from register `at` on.
    #[inline(always)]
    fn chunk<L: Lanes, const R: usize>(&self, l: L, at: usize) {
        let t = &self.0;
        let zero = <L as Reg>::splat(l, 0.0);
        let mut acc = [[zero; R]; M];
        let mut column = [t.b; R];
        for (j, p) in column.iter_mut().enumerate() {
            let (panel, register) = ((at + j) / L::REGS, (at + j) % L::REGS);
            // SAFETY: a column of b, readable by the contract of `Tile::run`.
            *p = unsafe { t.b.add(panel * t.panel_step + register * L::WIDTH) };
        }
        let mut a = t.a;
        for k in 0..t.depth {
            let mut b = [zero; R];
            for j in 0..R {
                // SAFETY: row k < depth of a column of b, readable by the contract of `Tile::run`.
                b[j] = unsafe { Reg::load(l, column[j].add(k * t.b_step)) };
            }
            for (i, row) in acc.iter_mut().enumerate() {
                // SAFETY: element (i, k) of a, readable by the contract of `Tile::run`.
                let x = Reg::splat(l, unsafe { *a.add(i * t.row_step) });
                for (c, b) in row.iter_mut().zip(&b) {
                    *c = Reg::fma(l, x, *b, *c);
                }
            }
            a = a.wrapping_add(t.k_step);
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, chunk) in row.iter().enumerate() {
                // SAFETY: an element of c, writable by the contract of `Tile::run`.
                unsafe {
                    let c = t.c.add(i * t.c_step + (at + j) * L::WIDTH);
                    let y = if t.start == Start::Zero { zero } else { Reg::load(l, c) };
                    Reg::store(l, c, Reg::add(l, y, *chunk));
                }
            }
        }
    }
}

const _: () = assert!(LANES == 32, "a panel is one value of 32 lanes");
