//! Elements of a block in registers: codes and their factors.
use super::panels::{COLUMNS, Layout};
use crate::cpu::lanes::{Lanes, Reg};

/// The factors of a block, for a register of columns.
#[derive(Clone, Copy)]
pub(super) struct Factors<L: Reg, const OFFSETS: bool> {
    scale: L::R,
    offset: L::R,
}

impl<L: Lanes, const OFFSETS: bool> Factors<L, OFFSETS> {
    /// The factors of a register of columns, from column `column` on.
    ///
    /// # Safety
    /// `block` is a block of this layout, and `column + WIDTH` is at most 64.
    #[inline(always)]
    pub(super) unsafe fn load(l: L, layout: Layout, block: *const u8, column: usize) -> Self {
        // SAFETY: by contract.
        let row = |at: usize| unsafe { Reg::load(l, block.add(at).cast::<f32>().add(column)) };
        let scale = row(0);
        Factors { scale, offset: layout.offsets().map_or(scale, row) }
    }

    /// Dequantizes codes. Their product with the scale is exact, so the sum is rounded once.
    #[inline(always)]
    pub(super) fn of(self, l: L, codes: L::R) -> L::R {
        if OFFSETS { Reg::fma(l, self.scale, codes, self.offset) } else { Reg::mul(l, self.scale, codes) }
    }
}

/// The codes of eight depths for a register of columns.
#[derive(Clone, Copy)]
pub(super) struct Codes<L: Reg, const NIBBLES: bool> {
    /// The codes of the first depth.
    from: *const u8,
    /// The nibbles that were not taken yet.
    bits: L::R,
}

impl<L: Lanes, const NIBBLES: bool> Codes<L, NIBBLES> {
    /// The codes of the depths from `8 octet` on, from column `column` on.
    ///
    /// # Safety
    /// `block` is a block of this layout that has these depths, and `column + WIDTH` is at most 64.
    #[inline(always)]
    pub(super) unsafe fn load(l: L, layout: Layout, block: *const u8, octet: usize, column: usize) -> Self {
        let column = if NIBBLES { column * size_of::<u32>() } else { column };
        let from = block.wrapping_add(layout.codes() + octet * layout.octet_bytes() + column);
        // SAFETY: a word for each column, by contract.
        let bits = if NIBBLES { unsafe { Reg::load(l, from.cast()) } } else { Reg::splat(l, 0.0) };
        Codes { from, bits }
    }

    /// The codes of depth `n` of the eight as f32. Each depth is taken once, in ascending order.
    ///
    /// # Safety
    /// The block that was loaded still exists, and `n` is less than 8.
    #[inline(always)]
    pub(super) unsafe fn take<const OFFSETS: bool>(&mut self, l: L, n: usize) -> L::R {
        if !NIBBLES {
            // SAFETY: a byte for each column, by contract.
            return unsafe { Reg::load_i8(l, self.from.wrapping_add(n * COLUMNS).cast()) };
        }
        let bits = self.bits;
        self.bits = Reg::next_nibble(l, bits);
        if OFFSETS { Reg::nibble(l, bits) } else { Reg::centered_nibble(l, bits) }
    }
}
