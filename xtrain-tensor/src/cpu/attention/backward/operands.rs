//! The operands of the five products of a work item, in the form that an instruction set reads.
use std::ops::Range;

use crate::cpu::attention::gather::HeadView;
use crate::cpu::attention::number::Number;
use crate::cpu::gemm_bf16::MinExponent;
use crate::cpu::lanes::Lanes;

/// Keys and values by position; queries and dy of the current head by position; scores, dp and the weights of one
/// tile of 64 rows by 64 keys.
///
/// `min_exp` takes part in the test whether a result can be tiny, which gives `no_flush`. Operands whose products are
/// flushed by the instruction ignore both.
pub(super) trait Operands<E: Number> {
    /// Products process this many positions at a time. Positions after the last one, up to a multiple of it, are rows
    /// of zeros.
    const STEP: usize;

    /// Maximum rows of a product.
    const STRIP: usize;

    /// Reads the keys and the values of the positions `0..len`.
    fn read_keys<L: Lanes>(
        &mut self,
        l: L,
        view: HeadView<'_>,
        keys_values: [&[E]; 2],
        len: usize,
        min_exp: &mut [MinExponent<L>; 2],
    );

    /// Sets the query and dy at position `t`. The positions of a head are set in ascending order.
    fn set_row<L: Lanes>(&mut self, l: L, t: usize, q_dy: [&[E]; 2], min_exp: &mut [MinExponent<L>; 2]);

    /// Sets the query and dy at position `t` to zero.
    fn set_no_row<L: Lanes>(&mut self, l: L, t: usize);

    /// Computes the scores and dp of the rows at positions `rows`, inside a block, for the keys `cols` of chunk `c`.
    /// `no_flush`: of scores, of dp.
    fn scores(&mut self, rows: Range<usize>, c: usize, cols: Range<usize>, no_flush: [bool; 2]);

    /// The scores and dp of row `i` of the tile for the 64 keys. Those outside `cols` are unspecified.
    fn scores_of(&self, i: usize) -> [&[f32]; 2];

    /// Sets the weights p and ds of row `i`, the keys 0 to 31 and 32 to 63 each. The rows of a tile are set in ascending
    /// order.
    fn set_weights<L: Lanes>(
        &mut self,
        l: L,
        i: usize,
        p_ds: [[L::F; 2]; 2],
        min_exp: &mut [MinExponent<L>; 2],
    );

    /// Ends a tile: the weights of its first `rows` rows, a multiple of [`Operands::STEP`], are set.
    fn finish_weights<L: Lanes>(&mut self, l: L, rows: usize);

    /// `out += ds k` for the rows at positions `rows`, whose ds is zero outside the keys `depth` of chunk `c`.
    fn add_dq(&self, rows: Range<usize>, c: usize, depth: Range<usize>, out: &mut [f32], no_flush: bool);

    /// `dk += ds^T q` and `dv += p^T dy` for the keys at positions `keys`, inside a chunk, and the rows `depth` of
    /// block `block`. `no_flush`: of dk, of dv.
    fn add_dk_dv(
        &self,
        keys: Range<usize>,
        block: usize,
        depth: Range<usize>,
        dk_dv: [&mut [f32]; 2],
        no_flush: [bool; 2],
    );
}
