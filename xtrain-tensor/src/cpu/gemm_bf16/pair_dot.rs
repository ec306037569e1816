//! Kernels with `vdpbf16ps`: one instruction is two steps of a chain, for 16 columns. See [`Pairing::Parity`].
//!
//! The instruction reads denormals as zeros and flushes both results, as docs/numerics.md defines it, whatever the
//! floating-point mode. The two additions that end a block are flushed here, unless the lattice argument of [`super`]
//! shows that no sum is tiny. The sum of two f32 below 2^-126 is exact, so an exponent field of 0 is the test.
//!
//! [`Pairing::Parity`]: super::pairing::Pairing::Parity
#![allow(clippy::needless_range_loop, reason = "loops over registers, with constant length")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Simd;
use super::super::gemm::{Beta, tiles};
use super::super::lanes::LANES;
use super::left::{PackedA, ParityBlock, Rows};
use super::operand::{LATTICE_MIN, on_lattice};
use super::output::SharedOutput;
use super::pairs::{Pairs, TILE};
use super::sums::{Part, Sums};
use super::tile::{panels_across, tile_rows};
use super::tiles::{BLOCK_ROWS, View};
use crate::faults::{self, Fault};

/// A product with `vdpbf16ps`.
pub(super) struct Job<'a> {
    pub(super) a: &'a PackedA<'a>,
    /// Those of `a`: `[rows][blocks]`.
    pub(super) blocks: &'a [ParityBlock],
    pub(super) b: View<'a>,
    pub(super) out: SharedOutput<'a>,
}

impl Job<'_> {
    /// Computes the outputs of `rows` in `panels`. Each output belongs to one unit.
    ///
    /// # Panics
    /// If the machine has no AVX-512 BF16.
    pub(super) fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        assert!(Simd::Avx512Bf16.is_supported(), "the machine has no AVX-512 BF16");
        if rows.is_empty() {
            return;
        }
        let mut panel = panels.start;
        while panel < panels.end {
            let across = panels_across(Simd::Avx512, rows.len());
            let across = if panel + across <= panels.end { across } else { 1 };
            let next = (across == 1 && panel + 1 < panels.end).then(|| self.b.panel(panel + 1));
            let group = panel..panel + across;
            let part = Part {
                out: &self.out,
                rows: rows.clone(),
                panels: group.clone(),
                columns: self.b.shape()[1],
            };
            // SAFETY: these elements of the output belong to this unit alone. The instructions were detected, and they
            // include AVX-512F.
            unsafe { part.compute(|sums, beta| self.group(rows.clone(), group, sums, beta, next)) };
            panel += across;
        }
    }

    /// `sums = beta sums + a b` for the rows `rows` and a group of panels. The first two tiles prefetch half of the
    /// panel `next` each.
    ///
    /// # Safety
    /// The machine has AVX-512 BF16. The sums of these rows and panels are writable, and no other thread accesses them.
    unsafe fn group(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: Sums,
        beta: Beta,
        next: Option<&[Pairs]>,
    ) {
        let blocks = self.b.blocks();
        let b = self.b.panel(panels.start);
        assert!(
            self.blocks.len() >= rows.end * blocks && b.len() == blocks * BLOCK_ROWS,
            "a and b have one depth"
        );
        if blocks == 0 {
            // SAFETY: the caller's promise.
            return unsafe { sums.without_products(rows.len(), panels.len(), beta) };
        }
        for (i, (row, height)) in tiles(rows.len(), tile_rows(Simd::Avx512)).enumerate() {
            let prefetch = next.filter(|_| i < 2).and_then(|next| next.get(i * TILE..));
            let counted = if faults::on(Fault::PairExponentOfFirstRow) { 1 } else { height };
            let row_exp = self.a.min_exp(rows.start + row..rows.start + row + counted);
            let tile = Tile {
                a: Rows { blocks: &self.blocks[(rows.start + row) * blocks..], step: blocks, len: height },
                b: self.b,
                on_lattice: panels.clone().all(|panel| on_lattice(row_exp, self.b.min_exp(panel))),
                panels: panels.clone(),
                sums: Sums { start: sums.start.wrapping_add(row * sums.step), ..sums },
                beta,
                next: prefetch.map(<[Pairs]>::as_ptr),
            };
            // SAFETY: the caller's promise, for the rows of this tile.
            unsafe { tile.run() };
        }
    }
}

/// `out = beta out + a b` for a few rows and the panels `panels` of b. Rows of `out` are `out_step` elements apart; its
/// columns are those of b, whole panels.
///
/// # Safety
/// The machine has AVX-512F and AVX-512 BF16. The elements of `out` are writable, and no other thread accesses them.
pub(super) unsafe fn small_product(
    a: Rows<'_, ParityBlock>,
    b: View<'_>,
    panels: Range<usize>,
    out: *mut f32,
    out_step: usize,
    beta: Beta,
) {
    let sums = Sums { start: out, step: out_step, panel_step: LANES };
    for (row, height) in tiles(a.len, tile_rows(Simd::Avx512)) {
        let across = if height <= 3 { 2 } else { 1 };
        let mut panel = panels.start;
        while panel < panels.end {
            let group = panel..panels.end.min(panel + across);
            let start = sums.at(row, panel, 0);
            let a = Rows { blocks: &a.blocks[row * a.step..], len: height, ..a };
            panel = group.end;
            let tile = Tile {
                a,
                b,
                on_lattice: false,
                panels: group,
                sums: Sums { start, ..sums },
                beta,
                next: None,
            };
            // SAFETY: the caller's promise.
            unsafe { tile.run() };
        }
    }
}

/// A tile of outputs: a few rows, and one or several panels.
struct Tile<'a> {
    a: Rows<'a, ParityBlock>,
    b: View<'a>,
    /// Whether no sum from +0 can be tiny.
    on_lattice: bool,
    panels: Range<usize>,
    sums: Sums,
    beta: Beta,
    /// Half of the next panel, to be prefetched: 16 rows of each block, 32 apart.
    next: Option<*const Pairs>,
}

impl Tile<'_> {
    /// Computes the tile.
    ///
    /// # Safety
    /// The machine has AVX-512F and AVX-512 BF16. The sums of these rows and panels are writable, and no other thread
    /// accesses them.
    unsafe fn run(self) {
        macro_rules! pick {
            ($($rows:literal $across:literal),*) => {
                match (self.a.len, self.panels.len()) {
                    // SAFETY: the caller's promise; a has this number of rows, and there are so many panels.
                    $(($rows, $across) => unsafe { self.sums_of::<$rows, $across>() },)*
                    (rows, across) => unreachable!("no tile has {rows} rows and {across} panels"),
                }
            };
        }
        pick!(1 1, 1 2, 1 4, 2 1, 2 2, 3 1, 3 2, 4 1, 5 1, 6 1)
    }

    /// Computes the tile of M rows and P panels.
    ///
    /// # Safety
    /// As for [`Tile::run`]; the tile has M rows and P panels.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn sums_of<const M: usize, const P: usize>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let smallest = self.start::<M, P>();
            let old_on_lattice = smallest >= LATTICE_MIN.to_bits() || faults::on(Fault::PairOldSumsUnchecked);
            if self.on_lattice && old_on_lattice {
                self.blocks::<M, P, false>();
            } else {
                self.blocks::<M, P, true>();
            }
        }
    }

    /// Writes the sums before the first block: +0, or the old values without denormals. Returns the bits of the smallest
    /// magnitude that is not zero.
    ///
    /// # Safety
    /// As for [`Tile::sums_of`].
    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    unsafe fn start<const M: usize, const P: usize>(&self) -> u32 {
        // of magnitudes less one, so that zero becomes the largest
        let (mut smallest, one) = (_mm512_set1_epi32(-1), _mm512_set1_epi32(1));
        for i in 0..M {
            for p in 0..P {
                for h in 0..2 {
                    let at = self.sums.at(i, p, h * TILE);
                    // SAFETY: 16 writable sums, by contract.
                    unsafe {
                        if self.beta == Beta::Zero {
                            _mm512_storeu_ps(at, _mm512_setzero_ps());
                            continue;
                        }
                        let y = flush(_mm512_loadu_ps(at), i32::MIN);
                        _mm512_storeu_ps(at, y);
                        let size = _mm512_and_epi32(_mm512_castps_si512(y), _mm512_set1_epi32(i32::MAX));
                        smallest = _mm512_min_epu32(smallest, _mm512_sub_epi32(size, one));
                    }
                }
            }
        }
        _mm512_reduce_min_epu32(smallest).saturating_add(1)
    }

    /// Adds the products to the sums, block by block. FLUSH: a sum may be tiny.
    ///
    /// # Safety
    /// As for [`Tile::sums_of`].
    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    unsafe fn blocks<const M: usize, const P: usize, const FLUSH: bool>(self) {
        let zero = _mm512_setzero_ps();
        let blocks = self.b.blocks();
        let kept = if faults::on(Fault::PairSumNotFlushed) { -1 } else { i32::MIN };
        let panels: [*const Pairs; P] = std::array::from_fn(|p| self.b.panel(self.panels.start + p).as_ptr());
        for block in 0..blocks {
            let a: [*const i32; M] = std::array::from_fn(|i| self.a.blocks[i * self.a.step + block].pairs());
            let b = panels.map(|panel| panel.wrapping_add(block * BLOCK_ROWS));
            let mut even = [[[zero; 2]; P]; M];
            let mut odd = [[[zero; 2]; P]; M];
            for r in (0..TILE).step_by(2) {
                if let Some(next) = self.next {
                    let next = next.wrapping_add(block * BLOCK_ROWS + r);
                    _mm_prefetch::<_MM_HINT_T1>(next.cast());
                    _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(1).cast());
                }
                // SAFETY: a and b are whole blocks of the rows and panels.
                unsafe {
                    step(&a, &b, r, &mut even);
                    step(&a, &b, r + 1, &mut odd);
                }
            }
            for i in 0..M {
                for p in 0..P {
                    for h in 0..2 {
                        let at = self.sums.at(i, p, h * TILE);
                        let block = ended::<FLUSH>(_mm512_add_ps(even[i][p][h], odd[i][p][h]), kept);
                        // SAFETY: 16 writable sums, by contract.
                        unsafe {
                            let y = _mm512_add_ps(_mm512_loadu_ps(at), block);
                            _mm512_storeu_ps(at, ended::<FLUSH>(y, kept));
                        }
                    }
                }
            }
        }
    }
}

/// Adds pair `r` of a block to a chain: `chain[i][p] = a[i] b[p] + chain[i][p]`, two products each.
///
/// # Safety
/// `a` and `b` are blocks of M rows and P panels.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
unsafe fn step<const M: usize, const P: usize>(
    a: &[*const i32; M],
    b: &[*const Pairs; P],
    r: usize,
    chain: &mut [[[__m512; 2]; P]; M],
) {
    let mut columns = [[_mm512_setzero_si512(); 2]; P];
    for p in 0..P {
        for h in 0..2 {
            // SAFETY: row r of a tile of the block.
            columns[p][h] = unsafe { _mm512_load_si512(b[p].add(h * TILE + r).cast()) };
        }
    }
    for i in 0..M {
        // SAFETY: pair r of the block.
        let x = as_pairs(_mm512_set1_epi32(unsafe { *a[i].add(r) }));
        for p in 0..P {
            for h in 0..2 {
                chain[i][p][h] = _mm512_dpbf16_ps(chain[i][p][h], x, as_pairs(columns[p][h]));
            }
        }
    }
}

#[inline(always)]
fn as_pairs(v: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes, of which every bit pattern is valid.
    unsafe { std::mem::transmute(v) }
}

/// A sum that ends a block: flushed if FLUSH.
#[target_feature(enable = "avx512f")]
#[inline]
fn ended<const FLUSH: bool>(sum: __m512, kept: i32) -> __m512 {
    if FLUSH { flush(sum, kept) } else { sum }
}

/// Replaces denormals by zeros of their sign: keeps the bits `kept`, the sign, of lanes with exponent field 0.
#[target_feature(enable = "avx512f")]
#[inline]
fn flush(v: __m512, kept: i32) -> __m512 {
    let bits = _mm512_castps_si512(v);
    let tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f80_0000));
    _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, tiny, bits, _mm512_set1_epi32(kept)))
}
