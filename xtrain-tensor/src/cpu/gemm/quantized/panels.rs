//! The packed quantized B operand: panels of 64 columns.
use std::ops::Range;

use crate::cpu::gemm::panels::first_panel;
use crate::cpu::lanes::LANES;
use crate::device::Cpu;
use crate::device::packed_buffer::PackedBuffer;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::operands::{CodeBits, QUANT_BLOCK as BLOCK, QUANT_HALF as HALF, QuantBlock, QuantFormat};

/// A cache line of a panel.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);
const LINE: usize = 64;

/// Bytes of a row of f32 factors: scales or offsets of a panel's columns.
const FACTORS: usize = COLUMNS * size_of::<f32>();

/// Columns of a panel: those of the widest tile, which therefore reads consecutive cache lines.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Depths whose nibbles share a word of 32 bits.
pub(super) const OCTET: usize = 8;

/// The layout of a block of a panel: 64 columns at the depths that share factors. The scales of the columns; the
/// offsets, if there are any; then the codes: bytes of the columns for each depth, or with nibbles words of 32 bits for
/// each eight depths. The lowest nibble of a word is the code of the first depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    format: QuantFormat,
}

impl Layout {
    /// Depths of a block: 32, or 16 if the halves of 32 depths have factors of their own.
    pub(super) fn depths(self) -> usize {
        if self.format.halves { HALF } else { BLOCK }
    }

    /// The byte where the offsets begin. `None`: there are none. The scales begin at byte 0.
    pub(super) fn offsets(self) -> Option<usize> {
        self.format.offsets.then_some(FACTORS)
    }

    /// The byte where the codes begin.
    pub(super) fn codes(self) -> usize {
        FACTORS * (1 + usize::from(self.format.offsets))
    }

    /// Bytes of a block.
    pub(super) fn bytes(self) -> usize {
        self.codes() + self.depths() / OCTET * self.octet_bytes()
    }

    /// Bytes of `depth` depths of a panel.
    pub(super) fn bytes_of(self, depth: usize) -> usize {
        depth / self.depths() * self.bytes()
    }

    /// Bytes of the codes of eight depths.
    pub(super) fn octet_bytes(self) -> usize {
        if self.nibbles() { COLUMNS * size_of::<u32>() } else { COLUMNS * OCTET }
    }

    pub(super) fn nibbles(self) -> bool {
        self.format.bits == CodeBits::Four
    }

    pub(super) fn has_offsets(self) -> bool {
        self.format.offsets
    }

    /// What is added to a code of 4 bits, so that it is not negative.
    fn bias(self) -> i8 {
        if self.nibbles() && !self.format.offsets { 8 } else { 0 }
    }
}

/// A quantized matrix B `[depth, columns]`, packed as panels `[ceil(columns / 64)]` of blocks in the order of their
/// depths, and padded with zeros.
#[derive(Debug)]
pub(crate) struct QuantPanels {
    lines: PackedBuffer<Line>,
    layout: Layout,
    depth: usize,
    columns: usize,
}

impl QuantPanels {
    /// Panels that are not written yet.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory): there is no memory for them.
    ///
    /// # Panics
    /// Unless the depth is a multiple of 32.
    pub(crate) fn blank(cpu: &Cpu, [depth, columns]: [usize; 2], format: QuantFormat) -> Result<QuantPanels> {
        assert!(depth.is_multiple_of(BLOCK), "whole blocks");
        let layout = Layout { format };
        let len = QuantPanels::bytes_of([depth, columns], format) / LINE;
        Ok(QuantPanels { lines: PackedBuffer::with_capacity(&cpu.recycler, len)?, layout, depth, columns })
    }

    /// Bytes of the panels of a matrix of this shape.
    pub(crate) fn bytes_of([depth, columns]: [usize; 2], format: QuantFormat) -> usize {
        columns.div_ceil(COLUMNS) * Layout { format }.bytes_of(depth)
    }

    /// Lines of a panel.
    fn step(&self) -> usize {
        self.layout.bytes_of(self.depth) / LINE
    }

    /// Packs rows of a weight `[out, in]` starting at row `first`, a multiple of 32. Their number is a multiple of
    /// 32, unless they extend to the last row.
    pub(crate) fn write(&mut self, cpu: &Cpu, first: usize, w: &[QuantBlock]) {
        let (layout, blocks, step, all) = (self.layout, self.depth / BLOCK, self.step(), self.columns);
        let columns = first..first + w.len() / blocks;
        let from = first_panel(&columns, all) * LANES / COLUMNS;
        let to = columns.end.div_ceil(COLUMNS);
        self.lines.grow(to * step, Line([0; LINE]));
        cpu.pool.parts(&mut self.lines[from * step..to * step], step, |part, panel: &mut [Line]| {
            let start = (from + part) * COLUMNS;
            let written = columns.start.max(start)..columns.end.min(start + COLUMNS);
            let padding = if written.end == all { all..start + COLUMNS } else { all..all };
            let panel = panel.as_flattened_bytes_mut();
            for (k, to) in panel.chunks_exact_mut(layout.bytes_of(BLOCK)).enumerate() {
                for j in written.clone() {
                    layout.write(&w[(j - first) * blocks + k], j - start, to);
                }
                padding.clone().for_each(|j| layout.write(&QuantBlock::ZERO, j - start, to));
            }
        });
    }

    /// Rows of B.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes of the panels.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Bytes of the columns of the matrix, without those that pad the last panel.
    pub(crate) fn block_bytes(&self) -> usize {
        self.columns * (self.layout.bytes_of(self.depth) / COLUMNS)
    }

    /// Unpacks column `j`: row `j` of the weight, with the signs of zeros.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        let panel = &self.lines[j / COLUMNS * self.step()..][..self.step()].as_flattened_bytes();
        let blocks = panel.chunks_exact(self.layout.bytes_of(BLOCK));
        for (block, to) in blocks.zip(to.chunks_exact_mut(BLOCK)) {
            to.copy_from_slice(&self.layout.read(block, j % COLUMNS).values(self.layout.format));
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        let (depth, columns) = (self.depth, self.columns);
        View { lines: &self.lines, layout: self.layout, step: self.step(), first: 0, depth, columns }
    }
}

impl Layout {
    /// Writes column `j` of the blocks of 32 depths.
    fn write(self, from: &QuantBlock, j: usize, to: &mut [u8]) {
        for (i, to) in to.chunks_exact_mut(self.bytes()).enumerate() {
            let scale = if faults::on(Fault::QuantScaleOfFirstHalf) { 0 } else { i };
            word_mut(to, j).copy_from_slice(&from.scales[scale].to_ne_bytes());
            if let Some(offsets) = self.offsets() {
                word_mut(&mut to[offsets..], j).copy_from_slice(&from.offsets[i].to_ne_bytes());
            }
            let codes = from.codes[i * self.depths()..][..self.depths()].chunks_exact(OCTET);
            let rows = to[self.codes()..].chunks_exact_mut(self.octet_bytes());
            codes.zip(rows).for_each(|(codes, row)| self.write_octet(codes, j, row));
        }
    }

    /// Writes the codes of column `j` at eight depths.
    fn write_octet(self, codes: &[i8], j: usize, to: &mut [u8]) {
        if self.nibbles() {
            let swapped = usize::from(faults::on(Fault::QuantNibblesSwapped));
            let code = |n: usize| u32::from((codes[n ^ swapped] + self.bias()) as u8 & 0x0f);
            let word: u32 = (0..OCTET).map(|n| code(n) << (4 * n)).sum();
            word_mut(to, j).copy_from_slice(&word.to_ne_bytes());
        } else {
            codes.iter().enumerate().for_each(|(n, &code)| to[n * COLUMNS + j] = code as u8);
        }
    }

    /// Reads column `j` of the blocks of 32 depths.
    fn read(self, from: &[u8], j: usize) -> QuantBlock {
        let block = |half: usize| &from[half * HALF / self.depths() * self.bytes()..];
        let factor = |from: &[u8]| f32::from_ne_bytes(word(from, j));
        QuantBlock {
            scales: [0, 1].map(|half| factor(block(half))),
            offsets: [0, 1].map(|half| self.offsets().map_or(0.0, |at| factor(&block(half)[at..]))),
            codes: std::array::from_fn(|k| {
                let octet = k % self.depths() / OCTET;
                let codes = &block(k / HALF)[self.codes() + octet * self.octet_bytes()..];
                match self.nibbles() {
                    true => {
                        (u32::from_ne_bytes(word(codes, j)) >> (4 * (k % OCTET)) & 0x0f) as i8 - self.bias()
                    }
                    false => codes[k % OCTET * COLUMNS + j] as i8,
                }
            }),
        }
    }
}

/// The 32 bits of column `j` in a row.
fn word(row: &[u8], j: usize) -> [u8; 4] {
    row.as_chunks().0[j]
}

fn word_mut(row: &mut [u8], j: usize) -> &mut [u8; 4] {
    &mut row.as_chunks_mut().0[j]
}

/// The bytes of lines.
trait Bytes {
    fn as_flattened_bytes(&self) -> &[u8];
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8];
}

impl Bytes for [Line] {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() * LINE) }
    }
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; every bit pattern is a line.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len() * LINE) }
    }
}

/// A part of [`QuantPanels`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    lines: &'a [Line],
    pub(super) layout: Layout,
    /// Lines between panels.
    step: usize,
    /// The column of the first panel where the part begins.
    first: usize,
    pub(super) depth: usize,
    pub(super) columns: usize,
}

impl<'a> View<'a> {
    /// The columns `range`. It starts at a multiple of 32.
    pub(crate) fn columns(self, range: Range<usize>) -> View<'a> {
        assert!(range.start.is_multiple_of(LANES) && range.end <= self.columns, "whole groups of lanes");
        let at = self.first + range.start;
        let lines = &self.lines[at / COLUMNS * self.step..];
        View { lines, first: at % COLUMNS, columns: range.len(), ..self }
    }

    /// The panel that holds column `at`.
    pub(super) fn panel(&self, at: usize) -> Panel<'a> {
        let at = self.first + at;
        let blocks = self.lines[at / COLUMNS * self.step..][..self.step].as_flattened_bytes();
        Panel { blocks, column: at % COLUMNS }
    }
}

/// A panel, and the place of a column in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) blocks: &'a [u8],
    pub(super) column: usize,
}
