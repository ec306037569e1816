//! Products of a few rows with operands packed in pairs, for the two instructions that multiply pairs.
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use super::super::Simd;
use super::super::gemm::Beta;
use super::super::lanes::LANES;
use super::super::scratch::Scratch;
use super::left::{ParityBlock, Rows};
use super::pairing::pair_tile;
use super::pairs::{Pairs, TILE};
use super::tiles::View;
use super::{amx, pair_dot};
use crate::device::amx::detect;
use crate::faults::{self, Fault};

/// An instruction, and the order of its operands.
pub(crate) trait PairProduct {
    /// A block of 32 elements of a row of the left operand.
    type Block: Scratch;

    /// Maximum rows of a product.
    const STRIP: usize;

    /// Rows of a right operand that are paired together, a divisor of 32.
    const GROUP: usize;

    /// The block of 32 elements in ascending order.
    fn block(values: &Pairs) -> Self::Block;

    /// The block of a column of a right operand: its 16 pairs.
    fn block_of_pairs(pairs: Pairs) -> Self::Block;

    /// Orders a tile of a right operand whose row r holds the elements 2r and 2r + 1 of 16 columns.
    fn order_tile(tile: &mut [Pairs]);

    /// Pairs the 16 columns from `at` on of the rows `rows`: `GROUP / 2` rows of a tile.
    fn pair_rows(rows: &[Pairs], at: usize, tile: &mut [Pairs]);

    /// `out = beta out + a b` for at most [`PairProduct::STRIP`] rows and the panels `panels` of b. Rows of `out` are
    /// `out_step` elements apart; its columns are those of b, whole panels.
    ///
    /// # Panics
    /// If an operand is too short.
    fn product(
        &self,
        a: Rows<'_, Self::Block>,
        b: View<'_>,
        panels: Range<usize>,
        out: &mut [f32],
        out_step: usize,
        beta: Beta,
    );
}

/// Checks the sizes of a [`PairProduct::product`].
fn check<B>(a: Rows<'_, B>, b: View<'_>, panels: &Range<usize>, out: &[f32], out_step: usize) {
    let blocks = b.blocks();
    assert!(a.len > 0 && blocks > 0 && !panels.is_empty(), "a product has rows, panels and a depth");
    assert!((a.len - 1) * a.step + blocks <= a.blocks.len(), "a is too short");
    assert!((a.len - 1) * out_step + panels.end * LANES <= out.len(), "out is too short");
}

/// `vdpbf16ps`, in the order of [`Pairing::Parity`](super::pairing::Pairing::Parity).
#[derive(Debug)]
pub(crate) struct PairDot(());

impl PairDot {
    /// # Panics
    /// If the machine has no AVX-512 BF16.
    pub(crate) fn new() -> PairDot {
        assert!(Simd::Avx512Bf16.is_supported(), "the machine has no AVX-512 BF16");
        PairDot(())
    }
}

impl PairProduct for PairDot {
    type Block = ParityBlock;
    const STRIP: usize = 12;
    const GROUP: usize = 4;

    #[inline(always)]
    fn block(values: &Pairs) -> ParityBlock {
        ParityBlock::new(values)
    }
    #[inline(always)]
    fn block_of_pairs(pairs: Pairs) -> ParityBlock {
        ParityBlock::of_pairs(pairs)
    }
    #[inline(always)]
    fn order_tile(tile: &mut [Pairs]) {
        pair_tile(tile);
    }
    /// The pairs of the first and the third row, and of the second and the fourth, the earlier row in the high half.
    #[inline(always)]
    fn pair_rows(rows: &[Pairs], at: usize, tile: &mut [Pairs]) {
        let halves_exchanged = faults::on(Fault::PairedSlotsExchanged);
        for (first, to) in tile.iter_mut().take(2).enumerate() {
            let (earlier, later) = (&rows[first], &rows[first + 2]);
            *to = if halves_exchanged { pair(earlier, later, at) } else { pair(later, earlier, at) };
        }
    }
    #[inline]
    fn product(
        &self,
        a: Rows<'_, ParityBlock>,
        b: View<'_>,
        panels: Range<usize>,
        out: &mut [f32],
        out_step: usize,
        beta: Beta,
    ) {
        check(a, b, &panels, out, out_step);
        // SAFETY: `new` has detected the instruction; the sizes were checked.
        unsafe { pair_dot::small_product(a, b, panels, out.as_mut_ptr(), out_step, beta) };
    }
}

/// `tdpbf16ps` of AMX, in ascending order. It configures the tile registers of its thread, and releases them at the end.
#[derive(Debug)]
pub(crate) struct TileDot {
    /// The rows for which the registers are configured; 0: not yet.
    rows: Cell<usize>,
    /// The registers are those of one thread.
    _thread: PhantomData<*const ()>,
}

impl TileDot {
    /// # Panics
    /// If the machine has no AMX.
    pub(crate) fn new() -> TileDot {
        assert!(detect(), "the machine has no AMX");
        TileDot { rows: Cell::new(0), _thread: PhantomData }
    }
}

impl PairProduct for TileDot {
    type Block = Pairs;
    const STRIP: usize = amx::ROWS;
    const GROUP: usize = 2;

    #[inline(always)]
    fn block(values: &Pairs) -> Pairs {
        *values
    }
    #[inline(always)]
    fn block_of_pairs(pairs: Pairs) -> Pairs {
        pairs
    }
    #[inline(always)]
    fn order_tile(_: &mut [Pairs]) {}
    #[inline(always)]
    fn pair_rows(rows: &[Pairs], at: usize, tile: &mut [Pairs]) {
        let exchanged = faults::on(Fault::PairedSlotsExchanged);
        tile[0] = if exchanged { pair(&rows[1], &rows[0], at) } else { pair(&rows[0], &rows[1], at) };
    }
    #[inline]
    fn product(
        &self,
        a: Rows<'_, Pairs>,
        b: View<'_>,
        panels: Range<usize>,
        out: &mut [f32],
        out_step: usize,
        beta: Beta,
    ) {
        check(a, b, &panels, out, out_step);
        assert!(a.len <= amx::ROWS, "a has the rows of one product");
        let rows = if faults::on(Fault::LastTileRowLost) { (a.len - 1).max(1) } else { a.len };
        if self.rows.replace(rows) != rows {
            // SAFETY: `new` has detected AMX; `drop` releases the registers.
            unsafe { amx::configure(amx::rows_of(rows)) };
        }
        // SAFETY: the registers are configured for these rows; the sizes were checked.
        unsafe { amx::small_product(Rows { len: rows, ..a }, b, panels, out.as_mut_ptr(), out_step, beta) };
    }
}

impl Drop for TileDot {
    fn drop(&mut self) {
        // SAFETY: `new` has detected AMX.
        unsafe { amx::release() };
    }
}

/// The pairs of 16 columns of two rows from `at` on.
#[inline(always)]
fn pair(low: &Pairs, high: &Pairs, at: usize) -> Pairs {
    let (low, high) = (&low.0[at..at + TILE], &high.0[at..at + TILE]);
    let mut words = [0; TILE];
    for i in 0..TILE {
        words[i] = u32::from(high[i].to_bits()) << 16 | u32::from(low[i].to_bits());
    }
    Pairs::of_words(words)
}
