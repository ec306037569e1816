//! The microkernel of bf16 products in lanes: a tile of up to 6 rows over the whole depth.
use half::bf16;

use super::super::Simd;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::left::Wide;
use super::tiles::{BLOCK_ROWS, Pairs};
use super::{BLOCK, model, widen};

/// `c = start + a b`, block after block. a: rows of `blocks` blocks; b: one panel; c: rows of 32.
pub(super) struct Tile<'a> {
    pub(super) a: &'a [Wide],
    pub(super) b: &'a [Pairs],
    pub(super) c: &'a mut [[f32; LANES]],
    /// Whether no result can be tiny: see the module's lattice argument.
    pub(super) flush: Flush,
}

/// What is known about tiny results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// There are none.
    Never,
    /// There may be some: look at each.
    Check,
}

/// The most rows of a tile.
pub(super) const MOST_ROWS: usize = 6;

/// The rows of a tile that use the registers of `simd` best.
pub(super) fn tile_rows(simd: Simd) -> usize {
    match simd {
        Simd::Amx | Simd::Avx512 => MOST_ROWS,
        Simd::Neon => 4,
        _ => 2,
    }
}

impl Tile<'_> {
    /// Computes all rows of c, at most [`MOST_ROWS`].
    pub(super) fn run(self, simd: Simd) {
        let blocks = self.b.len() / BLOCK_ROWS;
        assert_eq!(self.a.len(), self.c.len() * blocks, "a has a row of blocks for each row of c");
        macro_rules! pick {
            ($($m:literal)*) => {
                match self.c.len() {
                    0 => {}
                    $($m => dispatch(simd, Rows::<$m>(self)),)*
                    _ => unreachable!("a tile has at most {MOST_ROWS} rows"),
                }
            };
        }
        pick!(1 2 3 4 5 6)
    }
}

struct Rows<'a, const M: usize>(Tile<'a>);

impl<const M: usize> Kernel for Rows<'_, M> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        match self.0.flush {
            Flush::Never if M == 1 => self.walk::<L, 4, false>(l),
            Flush::Never => self.walk::<L, 2, false>(l),
            Flush::Check => self.walk::<L, 1, true>(l),
        }
    }
}

impl<const M: usize> Rows<'_, M> {
    /// All 32 columns, up to R registers at a time.
    #[inline(always)]
    fn walk<L: Lanes, const R: usize, const CHECK: bool>(&mut self, l: L) {
        if L::REGS < R {
            return self.walk_pairs::<L, CHECK>(l);
        }
        for at in (0..L::REGS).step_by(R) {
            self.columns::<L, R, CHECK>(l, at);
        }
    }

    /// All 32 columns, two registers at a time: every set has at least two.
    #[inline(always)]
    fn walk_pairs<L: Lanes, const CHECK: bool>(&mut self, l: L) {
        for at in (0..L::REGS).step_by(2) {
            self.columns::<L, 2, CHECK>(l, at);
        }
    }

    /// R registers of columns from register `at` on, over the whole depth.
    #[inline(always)]
    fn columns<L: Lanes, const R: usize, const CHECK: bool>(&mut self, l: L, at: usize) {
        let zero = <L as Reg>::splat(l, 0.0);
        let blocks = self.0.b.len() / BLOCK_ROWS;
        let mut y = [[zero; R]; M];
        for (i, y) in y.iter_mut().enumerate() {
            for (j, y) in y.iter_mut().enumerate() {
                // SAFETY: register at + j < REGS of a row of 32.
                *y = unsafe { Reg::load(l, self.0.c[i].as_ptr().add((at + j) * L::WIDTH)) };
            }
        }
        for block in 0..blocks {
            let b: &[Pairs; BLOCK_ROWS] =
                self.0.b[block * BLOCK_ROWS..][..BLOCK_ROWS].try_into().expect("a panel is whole blocks");
            let a: [&Wide; M] = std::array::from_fn(|i| &self.0.a[i * blocks + block]);
            let mut even = [[zero; R]; M];
            let mut odd = [[zero; R]; M];
            let mut tiny = false;
            for r in 0..BLOCK / 2 {
                let mut pairs = [(zero, zero); R];
                for (j, pair) in pairs.iter_mut().enumerate() {
                    let column = (at + j) * L::WIDTH;
                    let row = &b[column / 16 * 16 + r].0[column % 16 * 2..];
                    // SAFETY: WIDTH <= 16 divides 16, so 2 * WIDTH elements of the row are left.
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
                            y[i][j] = repeat(l, y[i][j], a[i], b, (at + j) * L::WIDTH);
                            continue;
                        }
                    }
                    y[i][j] = sum;
                }
            }
        }
        for (i, y) in y.iter().enumerate() {
            for (j, y) in y.iter().enumerate() {
                // SAFETY: register at + j < REGS of a row of 32.
                unsafe { Reg::store(l, self.0.c[i].as_mut_ptr().add((at + j) * L::WIDTH), *y) };
            }
        }
    }
}

/// One block of one register by the model.
#[inline(always)]
fn repeat<L: Lanes>(l: L, y: L::R, a: &Wide, b: &[Pairs; BLOCK_ROWS], column: usize) -> L::R {
    let mut lanes = [0.0; LANES];
    // SAFETY: WIDTH <= 32 lanes.
    unsafe { Reg::store(l, lanes.as_mut_ptr(), y) };
    by_model(&mut lanes[..L::WIDTH], a, b, column);
    // SAFETY: as above.
    unsafe { Reg::load(l, lanes.as_ptr()) }
}

#[cold]
fn by_model(y: &mut [f32], a: &Wide, b: &[Pairs; BLOCK_ROWS], column: usize) {
    for (lane, y) in y.iter_mut().enumerate() {
        let (tile, j) = ((column + lane) / 16 * 16, (column + lane) % 16);
        let at = |k: usize| -> bf16 { b[tile + k / 2].0[2 * j + k % 2] };
        *y = model::block(*y, &a.0, |k| widen(at(k)));
    }
}
