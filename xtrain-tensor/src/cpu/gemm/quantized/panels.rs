//! The packed quantized B operand: panels of 64 columns.
use std::ops::Range;

use crate::cpu::gemm::panels::first_panel;
use crate::cpu::lanes::LANES;
use crate::device::Cpu;
use crate::device::packed_buffer::PackedBuffer;
use crate::faults::{self, Fault};
use crate::operands::{CodeBits, QUANT_BLOCK as BLOCK, QuantBlock, QuantFormat};

/// A cache line of a panel.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);
const LINE: usize = 64;

/// Bytes of a row of f32 factors: scales or offsets of a panel's columns.
const FACTORS: usize = COLUMNS * size_of::<f32>();

/// Columns of a panel: those of a tile, which therefore reads consecutive cache lines.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Depths whose nibbles share a word of 32 bits.
pub(super) const OCTET: usize = 8;

/// The layout of a block of a panel: 64 columns at 32 depths. The scales of the columns, once or for each half of the
/// depths; the offsets, if there are any; then the codes: bytes of the columns for each depth, or with nibbles words of
/// 32 bits for each eight depths. The lowest nibble of a word is the code of the first depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    format: QuantFormat,
}

impl Layout {
    /// Rows of factors of one kind.
    fn halves(self) -> usize {
        if self.format.halves { 2 } else { 1 }
    }

    /// The byte where the scales of a half begin.
    pub(super) fn scales(self, half: usize) -> usize {
        half.min(self.halves() - 1) * FACTORS
    }

    /// The byte where the offsets of a half begin. `None`: there are none.
    pub(super) fn offsets(self, half: usize) -> Option<usize> {
        self.format.offsets.then(|| self.halves() * FACTORS + self.scales(half))
    }

    /// The byte where the codes begin.
    pub(super) fn codes(self) -> usize {
        self.halves() * FACTORS * (1 + usize::from(self.format.offsets))
    }

    /// Bytes of a block.
    pub(super) fn bytes(self) -> usize {
        let codes_per_byte = if self.nibbles() { 2 } else { 1 };
        self.codes() + BLOCK / codes_per_byte * COLUMNS
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

/// A quantized matrix B `[depth, columns]`, packed as panels `[ceil(columns / 64)][depth / 32]` of blocks and padded
/// with zeros.
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
    /// # Panics
    /// Unless the depth is a multiple of 32.
    pub(crate) fn blank(cpu: &Cpu, [depth, columns]: [usize; 2], format: QuantFormat) -> QuantPanels {
        assert!(depth.is_multiple_of(BLOCK), "whole blocks");
        let layout = Layout { format };
        let len = columns.div_ceil(COLUMNS) * depth / BLOCK * layout.bytes() / LINE;
        QuantPanels { lines: PackedBuffer::with_capacity(&cpu.recycler, len), layout, depth, columns }
    }

    /// Lines of a panel.
    fn step(&self) -> usize {
        self.depth / BLOCK * self.layout.bytes() / LINE
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
            for (k, to) in panel.chunks_exact_mut(layout.bytes()).enumerate() {
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

    /// Unpacks column `j`: row `j` of the weight, with the signs of zeros.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        let panel = &self.lines[j / COLUMNS * self.step()..][..self.step()].as_flattened_bytes();
        for (block, to) in panel.chunks_exact(self.layout.bytes()).zip(to.chunks_exact_mut(BLOCK)) {
            to.copy_from_slice(&self.layout.read(block, j % COLUMNS).values(self.layout.format));
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        let (depth, columns) = (self.depth, self.columns);
        View { lines: &self.lines, layout: self.layout, step: self.step(), first: 0, depth, columns }
    }
}

impl Layout {
    /// Writes column `j` of a block.
    fn write(self, block: &QuantBlock, j: usize, to: &mut [u8]) {
        let at = |row: usize| row + j * size_of::<f32>()..row + (j + 1) * size_of::<f32>();
        for half in 0..self.halves() {
            let scale = if faults::on(Fault::QuantScaleOfFirstHalf) { 0 } else { half };
            to[at(self.scales(half))].copy_from_slice(&block.scales[scale].to_ne_bytes());
            if let Some(offsets) = self.offsets(half) {
                to[at(offsets)].copy_from_slice(&block.offsets[half].to_ne_bytes());
            }
        }
        let codes = &mut to[self.codes()..];
        if self.nibbles() {
            let code = |k: usize| (block.codes[k] + self.bias()) as u8 & 0x0f;
            let swapped = usize::from(faults::on(Fault::QuantNibblesSwapped));
            for octet in 0..BLOCK / OCTET {
                let nibble = |n: usize| u32::from(code(octet * OCTET + (n ^ swapped))) << (4 * n);
                let word: u32 = (0..OCTET).map(nibble).sum();
                let at = (octet * COLUMNS + j) * size_of::<u32>();
                codes[at..at + size_of::<u32>()].copy_from_slice(&word.to_ne_bytes());
            }
        } else {
            block.codes.iter().enumerate().for_each(|(k, &code)| codes[k * COLUMNS + j] = code as u8);
        }
    }

    /// Reads column `j` of a block.
    fn read(self, from: &[u8], j: usize) -> QuantBlock {
        let factor = |row: usize| {
            let bytes = &from[row + j * size_of::<f32>()..][..size_of::<f32>()];
            f32::from_ne_bytes(bytes.try_into().expect("four bytes"))
        };
        let codes = &from[self.codes()..];
        let word = |octet: usize| {
            let bytes = &codes[(octet * COLUMNS + j) * size_of::<u32>()..][..size_of::<u32>()];
            u32::from_ne_bytes(bytes.try_into().expect("four bytes"))
        };
        QuantBlock {
            scales: [0, 1].map(|half| factor(self.scales(half))),
            offsets: [0, 1].map(|half| self.offsets(half).map_or(0.0, factor)),
            codes: std::array::from_fn(|k| match self.nibbles() {
                true => (word(k / OCTET) >> (k % OCTET * 4) & 0x0f) as i8 - self.bias(),
                false => codes[k * COLUMNS + j] as i8,
            }),
        }
    }
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
