//! The one microkernel of all f32 products: tiles of up to 12 rows, one chunk of the depth.
use super::super::Simd;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::super::scratch::Buffer;

/// What a chunk is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beta {
    /// To +0: the output's old values are not read.
    Zero,
    /// To the output's values: the running sum of earlier chunks.
    One,
}

/// `c[i][j] = start + chunk`, where `chunk = fma(a[i][k], b[k][j], chunk)` for k rising from +0:
/// `a[i][k] = a[i * row_step + k * k_step]`, and column j of panel p of row k is
/// `b[p * panel_step + k * b_step + j]`; c has `columns` columns, 32 to a panel, in rows of `c_step`. Where `residual` is
/// not null, `c[i][j] = residual[i][j] + c[i][j]` at the end, in rows of `c_step` too. `count` tiles stand one below the
/// other.
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
    /// What is read soon, into the nearest cache.
    pub(super) l1: Prefetch,
    /// What is read later. None of a tile that walks all panels alone: a part of a panel asks for the next part.
    pub(super) l2: Option<Prefetch>,
}

/// What a tile asks for while it computes, one line of cache for each step over the depth. Any address will do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefetch {
    /// What the first tile asks for at the first step.
    pub(super) from: *const f32,
    /// Elements from one step to the next, and from one tile to the next.
    pub(super) step: usize,
    pub(super) tile_step: usize,
    /// So many tiles ask for it. Others ask for what they read, or for the l1 once more: the same line again and
    /// again would be waited for.
    pub(super) tiles: usize,
}

/// One of the tiles: where it begins in a, c and residual, and what it asks for: from where and in what steps.
#[derive(Debug, Clone, Copy)]
struct TilePtrs {
    a: *const f32,
    c: *mut f32,
    residual: *const f32,
    l1: (*const f32, usize),
    l2: Option<(*const f32, usize)>,
}

/// The most rows of a tile, with the instructions that have the most registers.
const MAX_ROWS: usize = 12;

/// The rows of a tile that use the registers of `simd` best.
pub(super) fn tile_rows(simd: Simd) -> usize {
    struct TileRows;
    impl Kernel for TileRows {
        type Out = usize;
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) -> usize {
            L::TILE_ROWS
        }
    }
    dispatch(simd, TileRows)
}

impl TileJob {
    /// Computes tiles of `rows` rows, at most [`tile_rows`] of `simd`.
    ///
    /// # Safety
    /// All elements named above are readable (a, b, residual) and writable (c), and no other thread touches
    /// those of c.
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

    /// Where register `at` of the columns begins in b.
    #[inline(always)]
    fn column<L: Lanes>(&self, at: usize) -> *const f32 {
        self.b.wrapping_add((at / L::REGS).wrapping_mul(self.panel_step) + at % L::REGS * L::WIDTH)
    }
}

/// TileJob of M rows; `UNIT_STRIDE`: those of a lie side by side, which takes one address where others take
/// one each. Made by [`TileJob::run`] only, whose contract holds for its pointers. By reference: a
/// copy would be read back before its stores have left the core, which waits for all older stores.
struct MicroKernel<'a, const M: usize, const UNIT_STRIDE: bool>(&'a TileJob);

impl<const M: usize, const UNIT_STRIDE: bool> Kernel for MicroKernel<'_, M, UNIT_STRIDE> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        assert!(M <= L::TILE_ROWS, "a tile of {M} rows, made for registers that hold {}", L::TILE_ROWS);
        // Few rows: several panels at once, so that there are enough independent chains to hide the
        // latency of an fma. R registers across, M * R chains.
        for i in 0..self.0.count {
            if M <= L::WIDE_ROWS / 2 {
                self.walk::<L, 8>(l, i);
            } else if M <= L::WIDE_ROWS {
                self.walk::<L, 4>(l, i);
            } else {
                self.walk::<L, 2>(l, i);
            }
        }
    }
}

impl<const M: usize, const UNIT_STRIDE: bool> MicroKernel<'_, M, UNIT_STRIDE> {
    /// Where tile `i` lies.
    #[inline(always)]
    fn place(&self, i: usize) -> TilePtrs {
        let t = self.0;
        let rows = i.wrapping_mul(M);
        let down = rows.wrapping_mul(t.c_step);
        let a = t.a.wrapping_add(rows.wrapping_mul(if UNIT_STRIDE { 1 } else { t.row_step }));
        let asked = |f: &Prefetch, or| match i < f.tiles {
            true => (f.from.wrapping_add(i.wrapping_mul(f.tile_step)), f.step),
            false => or,
        };
        let l1 = asked(&t.l1, (a, t.k_step));
        TilePtrs {
            a,
            c: t.c.wrapping_add(down),
            residual: if t.residual.is_null() { t.residual } else { t.residual.wrapping_add(down) },
            l1,
            l2: t.l2.as_ref().map(|l2| asked(l2, l1)),
        }
    }

    /// All columns of tile `i`, R registers at a time, then what is left by two and one.
    #[inline(always)]
    fn walk<L: Lanes, const R: usize>(&self, l: L, i: usize) {
        let here = self.place(i);
        let (whole, part) = (self.0.columns / L::WIDTH, self.0.columns % L::WIDTH);
        let mut at = 0;
        while at + R <= whole {
            self.chunk::<L, R>(l, self.0, here, at);
            at += R;
        }
        while at + 2 <= whole {
            self.chunk::<L, 2>(l, self.0, here, at);
            at += 2;
        }
        if at < whole {
            self.chunk::<L, 1>(l, self.0, here, at);
            at += 1;
        }
        if part > 0 {
            self.edge(l, here, at, part);
        }
    }

    /// The register of columns at `at`, of which only `n` columns exist: by way of whole ones.
    #[inline(always)]
    fn edge<L: Lanes>(&self, l: L, place: TilePtrs, at: usize, n: usize) {
        let t = self.0;
        let from = t.column::<L>(at);
        let mut b = Buffer::<f32>::new(t.depth * L::WIDTH);
        for (k, b) in b.chunks_exact_mut(L::WIDTH).enumerate() {
            // SAFETY: row k of b has n columns more, by the contract of `TileJob::run`.
            unsafe { Reg::store(l, b.as_mut_ptr(), Reg::load_first(l, from.wrapping_add(k * t.b_step), n)) }
        }
        let mut c = [[0f32; LANES]; M];
        let mut residual = [[0f32; LANES]; M];
        let here = |i: usize| i.wrapping_mul(t.c_step) + at * L::WIDTH;
        for (i, (c, residual)) in c.iter_mut().zip(&mut residual).enumerate() {
            // SAFETY: row i has n columns more, by the contract of `TileJob::run`.
            unsafe {
                Reg::store(l, c.as_mut_ptr(), Reg::load_first(l, place.c.wrapping_add(here(i)), n));
                if !place.residual.is_null() {
                    Reg::store(
                        l,
                        residual.as_mut_ptr(),
                        Reg::load_first(l, place.residual.wrapping_add(here(i)), n),
                    );
                }
            }
        }
        let residual = if place.residual.is_null() { place.residual } else { residual.as_ptr().cast() };
        let whole = TileJob { b: b.as_ptr(), b_step: L::WIDTH, c_step: LANES, ..*t };
        self.chunk::<L, 1>(l, &whole, TilePtrs { c: c.as_mut_ptr().cast(), residual, ..place }, 0);
        for (i, row) in c.iter().enumerate() {
            // SAFETY: as above, and nobody else touches them.
            unsafe { Reg::store_first(l, place.c.wrapping_add(here(i)), n, Reg::load(l, row.as_ptr())) }
        }
    }

    /// R registers of columns from register `at` on, all of them whole, of the tile of `t` at `place`.
    ///
    /// Addresses wrap: they lie inside operands by contract, and a check for overflow in the loop over the
    /// depth would cost a quarter of its time.
    #[inline(always)]
    fn chunk<L: Lanes, const R: usize>(&self, l: L, t: &TileJob, place: TilePtrs, at: usize) {
        let zero = <L as Reg>::splat(l, 0.0);
        let mut acc = [[zero; R]; M];
        let mut column = [t.b; R];
        for (j, p) in column.iter_mut().enumerate() {
            *p = t.column::<L>(at + j);
        }
        let row_step = if UNIT_STRIDE { 1 } else { t.row_step };
        // a part of a panel leaves lines out, and the hardware guesses lines that follow each other: ask for the rest
        let l2_stream = match place.l2 {
            Some(l2) => l2,
            None if (at + R).is_multiple_of(L::REGS) => place.l1,
            None => (t.column::<L>(at + R), t.b_step),
        };
        let (mut a, mut l1, mut l2) = (place.a, place.l1.0, l2_stream.0);
        for _ in 0..t.depth {
            Reg::prefetch_l1(l, l1);
            l1 = l1.wrapping_add(place.l1.1);
            Reg::prefetch_l2(l, l2);
            l2 = l2.wrapping_add(l2_stream.1);
            let mut b = [zero; R];
            for (b, p) in b.iter_mut().zip(&mut column) {
                // SAFETY: row k < depth of a column of b, readable by the contract of `TileJob::run`.
                *b = unsafe { Reg::load(l, *p) };
                *p = p.wrapping_add(t.b_step);
            }
            for (i, row) in acc.iter_mut().enumerate() {
                // SAFETY: element (i, k) of a, readable by the contract of `TileJob::run`.
                let x = Reg::splat(l, unsafe { *a.wrapping_add(i.wrapping_mul(row_step)) });
                for (c, b) in row.iter_mut().zip(&b) {
                    *c = Reg::fma(l, x, *b, *c);
                }
            }
            a = a.wrapping_add(t.k_step);
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, chunk) in row.iter().enumerate() {
                let here = i.wrapping_mul(t.c_step) + (at + j) * L::WIDTH;
                let c = place.c.wrapping_add(here);
                // SAFETY: elements of c, writable, and of residual, readable unless it is null, by the contract
                // of `TileJob::run`.
                unsafe {
                    let start = if t.beta == Beta::Zero { zero } else { Reg::load(l, c) };
                    let mut y = Reg::add(l, start, *chunk);
                    if !place.residual.is_null() {
                        y = Reg::add(l, Reg::load(l, place.residual.wrapping_add(here)), y);
                    }
                    Reg::store(l, c, y);
                }
            }
        }
    }
}

const _: () = assert!(LANES == 32, "a panel is one value of 32 lanes");
