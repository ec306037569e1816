//! The packed quantized B operand: panels of 32 columns.
use std::ops::Range;

use crate::cpu::gemm::panels::{Row, first_panel};
use crate::cpu::lanes::{Kernel, LANES, Lanes, Reg};
use crate::device::Cpu;
use crate::device::packed_buffer::PackedBuffer;
use crate::faults::{self, Fault};
use crate::operands::{CodeBits, QUANT_BLOCK as BLOCK, QuantBlock, QuantFormat};

/// A cache line of a panel.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);
const LINE: usize = 64;

/// Bytes of a row of f32 factors: scales or offsets of 32 columns.
const FACTORS: usize = LANES * size_of::<f32>();

/// The layout of a block of a panel: 32 columns at 32 depths. The scales of 32 columns, once or for each half of the
/// depths; the offsets, if there are any; then the codes: 32 columns of one depth, or with nibbles of two depths.
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
        let depths_per_row = if self.nibbles() { 2 } else { 1 };
        self.codes() + BLOCK / depths_per_row * LANES
    }

    pub(super) fn nibbles(self) -> bool {
        self.format.bits == CodeBits::Four
    }

    /// What is added to a code of 4 bits, so that it is not negative.
    pub(super) fn bias(self) -> i8 {
        if self.nibbles() && !self.format.offsets { 8 } else { 0 }
    }
}

/// A quantized matrix B `[depth, columns]`, packed as panels `[ceil(columns / 32)][depth / 32]` of blocks and padded
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
        let len = columns.div_ceil(LANES) * depth / BLOCK * layout.bytes() / LINE;
        QuantPanels { lines: PackedBuffer::with_capacity(&cpu.recycler, len), layout, depth, columns }
    }

    /// Lines of a panel.
    fn step(&self) -> usize {
        self.depth / BLOCK * self.layout.bytes() / LINE
    }

    /// Packs rows of a weight `[out, in]` starting at row `first`, a multiple of 32. Their number is a multiple of
    /// 32, unless they extend to the last row.
    pub(crate) fn write(&mut self, cpu: &Cpu, first: usize, w: &[QuantBlock]) {
        let (layout, blocks, step) = (self.layout, self.depth / BLOCK, self.step());
        let columns = first..first + w.len() / blocks;
        let panels = first_panel(&columns, self.columns)..columns.end.div_ceil(LANES);
        self.lines.grow(panels.end * step, Line([0; LINE]));
        let lines = &mut self.lines[panels.start * step..panels.end * step];
        cpu.pool.parts(lines, step, |part, panel: &mut [Line]| {
            let at = part * LANES * blocks;
            let w = &w[at..w.len().min(at + LANES * blocks)];
            if w.len() < LANES * blocks {
                panel.fill(Line([0; LINE]));
            }
            let panel = panel.as_flattened_bytes_mut();
            for (j, w) in w.chunks_exact(blocks).enumerate() {
                for (block, to) in w.iter().zip(panel.chunks_exact_mut(layout.bytes())) {
                    layout.write(block, j, to);
                }
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
        let panel = &self.lines[j / LANES * self.step()..][..self.step()].as_flattened_bytes();
        for (block, to) in panel.chunks_exact(self.layout.bytes()).zip(to.chunks_exact_mut(BLOCK)) {
            to.copy_from_slice(&self.layout.read(block, j % LANES).values(self.layout.format));
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        let (depth, columns) = (self.depth, self.columns);
        View { lines: &self.lines, layout: self.layout, step: self.step(), depth, columns }
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
            let [low, high] = if faults::on(Fault::QuantNibblesSwapped) { [1, 0] } else { [0, 1] };
            (0..BLOCK / 2).for_each(|r| codes[r * LANES + j] = code(2 * r + low) | code(2 * r + high) << 4);
        } else {
            block.codes.iter().enumerate().for_each(|(k, &code)| codes[k * LANES + j] = code as u8);
        }
    }

    /// Reads column `j` of a block.
    fn read(self, from: &[u8], j: usize) -> QuantBlock {
        let factor = |row: usize| {
            let bytes = &from[row + j * size_of::<f32>()..][..size_of::<f32>()];
            f32::from_ne_bytes(bytes.try_into().expect("four bytes"))
        };
        let codes = &from[self.codes()..];
        QuantBlock {
            scales: [0, 1].map(|half| factor(self.scales(half))),
            offsets: [0, 1].map(|half| self.offsets(half).map_or(0.0, factor)),
            codes: std::array::from_fn(|k| match self.nibbles() {
                true => (codes[k / 2 * LANES + j] >> (k % 2 * 4) & 0x0f) as i8 - self.bias(),
                false => codes[k * LANES + j] as i8,
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
    pub(super) depth: usize,
    pub(super) columns: usize,
}

impl<'a> View<'a> {
    /// The columns `range`. It starts at a multiple of 32.
    pub(crate) fn columns(self, range: Range<usize>) -> View<'a> {
        assert!(range.start.is_multiple_of(LANES) && range.end <= self.columns, "whole panels");
        View { lines: &self.lines[range.start / LANES * self.step..], columns: range.len(), ..self }
    }

    /// The blocks of panel `p`.
    pub(super) fn panel(&self, p: usize) -> &'a [u8] {
        self.lines[p * self.step..][..self.depth / BLOCK * self.layout.bytes() / LINE].as_flattened_bytes()
    }
}

/// The factors of a half of a block, in registers.
#[derive(Clone, Copy)]
pub(super) struct Factors<L: Reg> {
    scale: L::R,
    offset: L::R,
}

impl<L: Lanes> Factors<L> {
    /// The factors of a register of columns, from column `column` on.
    ///
    /// # Safety
    /// `block` is a block of this layout, and `column + WIDTH` is at most 32.
    #[inline(always)]
    pub(super) unsafe fn load(l: L, layout: Layout, block: *const u8, half: usize, column: usize) -> Self {
        // SAFETY: by contract.
        let row = |at: usize| unsafe { Reg::load(l, block.add(at).cast::<f32>().add(column)) };
        let scale = row(layout.scales(half));
        let offset = match layout.offsets(half) {
            Some(at) => row(at),
            None => Reg::mul(l, scale, Reg::splat(l, -f32::from(layout.bias()))),
        };
        Factors { scale, offset }
    }

    /// Dequantizes codes. Their product with the scale is exact, so the sum is rounded once.
    #[inline(always)]
    pub(super) fn of(self, l: L, codes: L::R) -> L::R {
        Reg::fma(l, self.scale, codes, self.offset)
    }
}

/// Dequantizes blocks of a panel: a row for each depth.
pub(super) struct Dequantize<'a> {
    pub(super) layout: Layout,
    pub(super) blocks: &'a [u8],
    pub(super) to: &'a mut [Row],
}

impl Kernel for Dequantize<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Dequantize { layout, blocks, to } = self;
        let rows = to.chunks_exact_mut(BLOCK);
        for (block, rows) in blocks.chunks_exact(layout.bytes()).zip(rows) {
            for (at, rows) in rows.chunks_exact_mut(BLOCK / 2).enumerate() {
                for column in (0..LANES).step_by(L::WIDTH) {
                    // SAFETY: the slice is a block; the registers are inside its 32 columns and inside the rows.
                    unsafe {
                        let factors = Factors::load(l, layout, block.as_ptr(), at, column);
                        let codes = block[layout.codes()..].as_ptr().add(column);
                        let store = |row: &mut Row, w: L::R| {
                            Reg::store(l, row.0.as_mut_ptr().add(column), w);
                        };
                        if layout.nibbles() {
                            for (r, pair) in rows.chunks_exact_mut(2).enumerate() {
                                let codes = codes.add((at * BLOCK / 4 + r) * LANES);
                                let (low, high) = Reg::load_nibbles(l, codes);
                                store(&mut pair[0], factors.of(l, low));
                                store(&mut pair[1], factors.of(l, high));
                            }
                        } else {
                            for (r, row) in rows.iter_mut().enumerate() {
                                let codes = codes.add((at * BLOCK / 2 + r) * LANES);
                                store(row, factors.of(l, Reg::load_i8(l, codes.cast())));
                            }
                        }
                    }
                }
            }
        }
    }
}
