//! Blocks as rows of f32 elements.
use super::codes::{Codes, Factors};
use super::panels::{Layout, OCTET, Panel};
use crate::cpu::gemm::panels::Row;
use crate::cpu::lanes::{Kernel, LANES, Lanes, Reg};

/// Dequantizes 32 columns of a panel: a row for each depth.
pub(super) struct Dequantize<'a> {
    pub(super) layout: Layout,
    /// The panel, and the first column.
    pub(super) panel: Panel<'a>,
    /// The first depth, a multiple of 32.
    pub(super) from: usize,
    pub(super) to: &'a mut [Row],
}

impl Kernel for Dequantize<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        match (self.layout.nibbles(), self.layout.has_offsets()) {
            (false, false) => self.blocks::<L, false, false>(l),
            (false, true) => self.blocks::<L, false, true>(l),
            (true, false) => self.blocks::<L, true, false>(l),
            (true, true) => self.blocks::<L, true, true>(l),
        }
    }
}

impl Dequantize<'_> {
    #[inline(always)]
    fn blocks<L: Lanes, const NIBBLES: bool, const OFFSETS: bool>(self, l: L) {
        let Dequantize { layout, panel, from, to } = self;
        let blocks = panel.blocks[layout.bytes_of(from)..].chunks_exact(layout.bytes());
        for (block, rows) in blocks.zip(to.chunks_exact_mut(layout.depths())) {
            for (octet, rows) in rows.chunks_exact_mut(OCTET).enumerate() {
                for column in (0..LANES).step_by(L::WIDTH) {
                    // SAFETY: the slice is a block; the registers are inside its columns, and inside the rows.
                    unsafe {
                        let at = panel.column + column;
                        let factors = Factors::<L, OFFSETS>::load(l, layout, block.as_ptr(), at);
                        let mut codes = Codes::<L, NIBBLES>::load(l, layout, block.as_ptr(), octet, at);
                        for (n, row) in rows.iter_mut().enumerate() {
                            let w = factors.of(l, codes.take::<OFFSETS>(l, n));
                            Reg::store(l, row.0.as_mut_ptr().add(column), w);
                        }
                    }
                }
            }
        }
    }
}
