//! Which two elements of a block are neighbors in memory.
//!
//! `tdpbf16ps` adds the first element of a pair to the even chain and the second to the odd chain. `vdpbf16ps` adds
//! both elements of a pair to one sum, by two fused multiply-adds with the flush of `tdpbf16ps`, the high half first.
//! Pairs of the same parity, the earlier element in the high half, are therefore two steps of one chain of
//! docs/numerics.md.
use super::pairs::{Pairs, TILE};
use crate::cpu::Simd;
use crate::faults::{self, Fault};

/// The order of the 32 elements of a packed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairing {
    /// Ascending: the pairs are k and k + 1.
    Neighbors,
    /// Four elements k to k + 3 are stored as k + 2, k, k + 3, k + 1: a pair of the even and one of the odd chain.
    Parity,
}

impl Pairing {
    /// The order that the kernels of `simd` read.
    pub(super) fn of(simd: Simd) -> Pairing {
        if simd == Simd::Avx512Bf16 { Pairing::Parity } else { Pairing::Neighbors }
    }

    /// The place in a packed block of element `k`, 0 to 31.
    pub(super) fn place(self, k: usize) -> usize {
        match self {
            Pairing::Neighbors => k,
            Pairing::Parity => k / 4 * 4 + [1, 3, 0, 2][k % 4],
        }
    }
}

/// Reorders a row of elements from [`Pairing::Neighbors`] to [`Pairing::Parity`].
#[inline(always)]
pub(super) fn pair_row(row: &Pairs) -> Pairs {
    let mut fours = row.fours();
    for four in &mut fours {
        *four = (*four >> 32 & 0xffff)
            | (*four & 0xffff) << 16
            | (*four >> 16 & 0xffff_0000_0000)
            | (*four & 0xffff_0000) << 32;
        if faults::on(Fault::PairHalvesExchanged) {
            *four = (*four & 0xffff_0000_ffff) << 16 | *four >> 16 & 0xffff_0000_ffff;
        }
    }
    Pairs::of_fours(fours)
}

/// Reorders a tile, whose row r holds the elements 2r and 2r + 1 of 16 columns, in the same way.
#[inline(always)]
pub(crate) fn pair_tile(tile: &mut [Pairs]) {
    assert_eq!(tile.len(), TILE, "a tile");
    // no loop over pairs of rows: the compiler would process a column of all rows at a time, by gathers and scatters
    for half in [0, 8] {
        pair_rows(&mut tile[half..half + 2]);
        pair_rows(&mut tile[half + 2..half + 4]);
        pair_rows(&mut tile[half + 4..half + 6]);
        pair_rows(&mut tile[half + 6..half + 8]);
    }
}

/// Reorders two rows of a tile.
#[inline(always)]
fn pair_rows(rows: &mut [Pairs]) {
    let (first, second) = (rows[0].words(), rows[1].words());
    let (mut even, mut odd) = ([0; TILE], [0; TILE]);
    for i in 0..TILE {
        even[i] = first[i] << 16 | second[i] & 0xffff;
    }
    for i in 0..TILE {
        odd[i] = first[i] & 0xffff_0000 | second[i] >> 16;
    }
    if faults::on(Fault::PairHalvesExchanged) {
        (even, odd) = (even.map(|word| word.rotate_left(16)), odd.map(|word| word.rotate_left(16)));
    }
    (rows[0], rows[1]) = (Pairs::of_words(even), Pairs::of_words(odd));
}
