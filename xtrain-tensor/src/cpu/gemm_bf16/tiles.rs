//! The packed B operand of bf16 products. All kernels read the tile layout of AMX, in the order of their [`Pairing`].
use std::ops::Range;

use super::super::gemm::first_panel;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::super::scratch::Scratch;
use super::super::{Disjoint, Simd};
use super::exponents::min_exponent;
use super::operand::{BLOCK, NO_EXPONENT, Operand, round_daz, widen};
use super::pairing::{Pairing, pair_tile};
use super::pairs::{Pairs, TILE};
use crate::Cpu;
use crate::device::packed_buffer::PackedBuffer;
use crate::error::{Error, Result};

/// Rows per block of a panel: two tiles (columns 0..16 and 16..32) of 16 rows.
pub(super) const BLOCK_ROWS: usize = 32;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Whether the kernels of `simd` use the lattice argument.
fn needs_exponents(simd: Simd) -> bool {
    simd != Simd::Amx
}

/// A matrix B `[depth, columns]`, packed as `[ceil(columns / 32)][ceil(depth / 32)][2 tiles][16][16][2]` and padded
/// with +0. Denormals are stored as zeros of their sign. The 32 elements of a block are in the order of the [`Pairing`] of
/// `simd`.
#[derive(Debug)]
pub(crate) struct TilePanels {
    pub(super) rows: PackedBuffer<Pairs>,
    /// Smallest exponent field of each panel's non-zero elements. 0 if the kernel does not need it.
    pub(super) min_exp: Vec<u8>,
    /// The instruction set that packed it, whose kernels read this order.
    pub(super) simd: Simd,
    depth: usize,
    columns: usize,
}

impl TilePanels {
    /// Packs a weight `[out, in]` for `x W^T`: depth `in`, columns `out`.
    pub(crate) fn of_weight<T: Operand>(cpu: &Cpu, w: &[T], shape: [usize; 2]) -> Result<TilePanels> {
        let [columns, depth] = shape;
        assert_eq!(w.len(), columns * depth, "a weight holds out * in values");
        let mut tiles = TilePanels::blank(cpu, [depth, columns])?;
        tiles.write(cpu, 0, w);
        Ok(tiles)
    }

    /// Panels that are not written yet.
    ///
    /// # Errors
    /// [`Error::Memory`]: there is no memory for them.
    pub(crate) fn blank(cpu: &Cpu, [depth, columns]: [usize; 2]) -> Result<TilePanels> {
        let panels = columns.div_ceil(LANES);
        let rows = panels * depth.div_ceil(BLOCK) * BLOCK_ROWS;
        let rows = PackedBuffer::with_capacity(&cpu.recycler, rows)?;
        Ok(TilePanels { rows, min_exp: vec![NO_EXPONENT; panels], simd: cpu.simd, depth, columns })
    }

    /// Packs rows of a weight `[out, in]` starting at row `first`, a multiple of 32. Their number is a multiple of
    /// 32, unless they extend to the last row.
    pub(crate) fn write<T: Operand>(&mut self, cpu: &Cpu, first: usize, w: &[T]) {
        let depth = self.depth;
        let columns = first..first + w.len() / depth.max(1);
        self.pack(cpu, columns.clone(), 1, &WeightRows { w, depth, columns });
    }

    /// Bytes of the panels.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.rows)
    }

    /// Unpacks column `j` as f32. For a weight packed for `x W^T` this is row `j`.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        let panel = self.view().panel(j / LANES);
        let (tile, pair) = (j % LANES / TILE * TILE, j % TILE * 2);
        for (k, to) in to.iter_mut().enumerate() {
            let at = Pairing::of(self.simd).place(k % BLOCK);
            *to = widen(panel[k / BLOCK * BLOCK_ROWS + tile + at / 2].0[pair + at % 2]);
        }
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed<T: Operand>(
        cpu: &Cpu,
        w: &[T],
        shape: [usize; 2],
    ) -> Result<TilePanels> {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        TilePanels::of_rows(cpu, shape, |k| &w[k * columns..][..columns])
    }

    /// Packs the matrix whose row k is `row(k)`: `columns` values, or an empty slice for a row of zeros.
    pub(super) fn of_rows<'a, T: Operand + 'a>(
        cpu: &Cpu,
        [depth, columns]: [usize; 2],
        row: impl Fn(usize) -> &'a [T] + Sync,
    ) -> Result<TilePanels> {
        let mut tiles = TilePanels::blank(cpu, [depth, columns])?;
        // long runs of each row are read together, but there are parts for all threads
        let threads = cpu.pool.threads();
        let parts = if threads == 1 { 1 } else { 2 * threads };
        let group = (columns.div_ceil(LANES) / parts).clamp(4, 16);
        tiles.pack(cpu, 0..columns, group, &MatrixRows { row, depth });
        Ok(tiles)
    }

    /// Packs the columns `range`, `group` panels together, block by block: the source is read along its cache lines.
    fn pack(&mut self, cpu: &Cpu, range: Range<usize>, group: usize, source: &impl Source) {
        let panel = self.depth.div_ceil(BLOCK) * BLOCK_ROWS;
        let panels = first_panel(&range, self.columns)..range.end.div_ceil(LANES);
        self.rows.grow(panels.end * panel, Pairs::BLANK);
        let rows = &mut self.rows[panels.start * panel..panels.end * panel];
        let min_exps = Disjoint::new(&mut self.min_exp[panels.clone()]);
        cpu.pool.parts(rows, panel * group, |part, rows: &mut [Pairs]| {
            // SAFETY: the panels of this part; each part is passed once.
            let min_exps = unsafe { min_exps.slice(part * group..min_exps.len().min((part + 1) * group)) };
            let column = (panels.start + part * group) * LANES;
            dispatch(cpu.simd, Pack { source, column, panel, rows, min_exps, simd: cpu.simd });
        });
    }

    /// The panels, for products of the instruction set of `cpu`.
    ///
    /// # Errors
    /// [`Error::Device`] if they are in another order than that which its kernels read.
    pub(crate) fn view_for(&self, cpu: &Cpu) -> Result<View<'_>> {
        if Pairing::of(self.simd) == Pairing::of(cpu.simd) {
            return Ok(self.view());
        }
        let (want, got) = (cpu.simd, self.simd);
        Err(Error::device(format!(
            "product in bf16: expected a weight packed for {want}, found one packed for {got}, which orders its \
             elements differently"
        )))
    }

    pub(super) fn view(&self) -> View<'_> {
        let blocks = self.depth.div_ceil(BLOCK);
        View {
            rows: &self.rows,
            min_exp: &self.min_exp,
            step: blocks,
            depth: self.depth,
            columns: self.columns,
        }
    }
}

pub(super) trait Source: Sync {
    /// Writes the whole tile that starts at depth `k` and column `column`.
    fn fill<L: Lanes>(&self, l: L, k: usize, column: usize, tile: &mut [Pairs]);
}

/// A group of panels, and their smallest exponent fields.
struct Pack<'a, S> {
    source: &'a S,
    column: usize,
    panel: usize,
    rows: &'a mut [Pairs],
    min_exps: &'a mut [u8],
    simd: Simd,
}

impl<S: Source> Kernel for Pack<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let pairing = Pairing::of(self.simd);
        for block in 0..self.panel / BLOCK_ROWS {
            for (p, rows) in self.rows.chunks_exact_mut(self.panel).enumerate() {
                let rows = &mut rows[block * BLOCK_ROWS..][..BLOCK_ROWS];
                for (t, tile) in rows.chunks_exact_mut(TILE).enumerate() {
                    self.source.fill(l, block * BLOCK, self.column + p * LANES + t * TILE, tile);
                    if pairing == Pairing::Parity {
                        pair_tile(tile);
                    }
                }
            }
        }
        for (min_exp, rows) in self.min_exps.iter_mut().zip(self.rows.chunks_exact(self.panel)) {
            *min_exp = if needs_exponents(self.simd) { min_exponent(l, rows.iter()) } else { 0 };
        }
    }
}

/// Rows of a weight `[out, in]` from row `columns.start` on; they become columns.
struct WeightRows<'a, T> {
    w: &'a [T],
    depth: usize,
    columns: Range<usize>,
}

impl<T: Operand> Source for WeightRows<'_, T> {
    #[inline(always)]
    fn fill<L: Lanes>(&self, l: L, k: usize, column: usize, tile: &mut [Pairs]) {
        let len = BLOCK.min(self.depth - k);
        let mut rows = [Pairs::BLANK; TILE];
        for (row, j) in rows.iter_mut().zip(column..self.columns.end) {
            round_daz(&self.w[(j - self.columns.start) * self.depth + k..][..len], &mut row.0);
        }
        transpose_pairs(l, &rows, tile);
    }
}

/// Transposes a tile of pairs.
#[inline(always)]
pub(crate) fn transpose_pairs<L: Lanes>(l: L, rows: &[Pairs; TILE], tile: &mut [Pairs]) {
    assert_eq!(tile.len(), TILE, "a tile");
    // pairs are moved as f32; nothing is computed on them
    let (from, to) = (rows.as_ptr().cast::<f32>(), tile.as_mut_ptr().cast::<f32>());
    for i in (0..TILE).step_by(L::WIDTH) {
        for j in (0..TILE).step_by(L::WIDTH) {
            let mut square = [Reg::splat(l, 0.0); 16];
            for (r, row) in square.iter_mut().zip(i..i + L::WIDTH) {
                // SAFETY: 16 rows of 16 pairs.
                *r = unsafe { Reg::load(l, from.add(row * TILE + j)) };
            }
            l.transpose(&mut square);
            for (r, row) in square.iter().zip(j..j + L::WIDTH) {
                // SAFETY: as above.
                unsafe { Reg::store(l, to.add(row * TILE + i), *r) };
            }
        }
    }
}

/// A matrix given by its rows: `row(k)` for k below `depth`.
pub(super) struct MatrixRows<F> {
    pub(super) row: F,
    pub(super) depth: usize,
}

impl<'a, T: Operand + 'a, F: Fn(usize) -> &'a [T] + Sync> Source for MatrixRows<F> {
    /// Prefetches the same columns of the next block: rows are too far apart for the hardware prefetcher.
    #[inline(always)]
    fn fill<L: Lanes>(&self, l: L, k: usize, column: usize, tile: &mut [Pairs]) {
        if (column * size_of::<T>()).is_multiple_of(LINE) {
            for next in k + BLOCK..self.depth.min(k + 2 * BLOCK) {
                let row = (self.row)(next);
                if column < row.len() {
                    Reg::prefetch_l2(l, row[column..].as_ptr().cast());
                }
            }
        }
        for (r, pairs) in tile.iter_mut().enumerate() {
            let even = self.bits(k + 2 * r, column);
            let odd = self.bits(k + 2 * r + 1, column);
            let mut words = [0; TILE];
            for i in 0..TILE {
                words[i] = even[i] | odd[i] << 16;
            }
            *pairs = Pairs::of_words(words);
        }
    }
}

impl<'a, T: Operand + 'a, F: Fn(usize) -> &'a [T] + Sync> MatrixRows<F> {
    /// The bits of 16 converted elements of row `k` from `column` on; +0 outside the matrix. Loops of constant length
    /// over 32 bits are vectorized without instructions for 16 bits, which not every instruction set has. A closure of
    /// `map` or `from_fn` would be compiled without the target features.
    #[inline(always)]
    fn bits(&self, k: usize, column: usize) -> [u32; TILE] {
        let row = if k < self.depth { (self.row)(k) } else { &[] };
        let row = &row[column.min(row.len())..(column + TILE).min(row.len())];
        let Ok(row) = <&[T; TILE]>::try_from(row) else { return partial(row) };
        let mut bits = [0; TILE];
        for (to, x) in bits.iter_mut().zip(row) {
            *to = x.round_daz_bits();
        }
        bits
    }
}

/// [`MatrixRows::bits`] of fewer than 16 elements; the rest is +0.
#[cold]
fn partial<T: Operand>(row: &[T]) -> [u32; TILE] {
    let mut bits = [0; TILE];
    for (to, x) in bits.iter_mut().zip(row) {
        *to = x.round_daz_bits();
    }
    bits
}

/// A part of [`TilePanels`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    rows: &'a [Pairs],
    min_exp: &'a [u8],
    /// Blocks between panels.
    step: usize,
    depth: usize,
    columns: usize,
}

impl<'a> View<'a> {
    /// Whole panels `[columns / 32][blocks of the depth][32]` in the order that the product reads, without exponents.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of_pairs(rows: &'a [Pairs], [depth, columns]: [usize; 2]) -> View<'a> {
        let step = depth.div_ceil(BLOCK);
        assert!(rows.len() >= columns.div_ceil(LANES) * step * BLOCK_ROWS, "the rows of all panels");
        View { rows, min_exp: &[], step, depth, columns }
    }

    /// The columns `range`. It starts at a multiple of 32.
    pub(crate) fn columns(self, range: Range<usize>) -> View<'a> {
        assert!(range.start.is_multiple_of(LANES) && range.end <= self.columns, "whole panels");
        let panel = range.start / LANES;
        let rows = &self.rows[panel * self.step * BLOCK_ROWS..];
        View { rows, min_exp: &self.min_exp[panel..], columns: range.len(), ..self }
    }

    /// All columns at the depths `range`. It starts at a multiple of 32 and ends at one, or at the end.
    pub(crate) fn depths(self, range: Range<usize>) -> View<'a> {
        let whole = range.end == self.depth || range.end.is_multiple_of(BLOCK) && range.end < self.depth;
        assert!(range.start.is_multiple_of(BLOCK) && whole, "whole blocks");
        View { rows: &self.rows[range.start / BLOCK * BLOCK_ROWS..], depth: range.len(), ..self }
    }

    /// `[depth, columns]`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.depth, self.columns]
    }
    pub(super) fn blocks(&self) -> usize {
        self.depth.div_ceil(BLOCK)
    }
    pub(super) fn panel(&self, p: usize) -> &'a [Pairs] {
        &self.rows[p * self.step * BLOCK_ROWS..][..self.blocks() * BLOCK_ROWS]
    }

    /// A lower bound of the exponent fields of the non-zero elements of panel `p`. Views of [`View::of_pairs`] have none.
    pub(super) fn min_exp(&self, p: usize) -> u8 {
        self.min_exp[p]
    }
}
