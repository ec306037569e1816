//! Which two elements of a block are neighbors in memory.
//!
//! `tdpbf16ps` adds the first element of a pair to the even chain and the second to the odd chain. `vdpbf16ps` adds both
//! elements of a pair to one sum, by two fused multiply-adds with the flush of `tdpbf16ps`, the high half first. Pairs
//! of the same parity, the earlier element in the high half, are therefore two steps of one chain of docs/numerics.md.
use super::tiles::{Pairs, TILE};
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

/// The pairs (k, k + 2) and (k + 1, k + 3) of the pairs (k, k + 1) and (k + 2, k + 3), whose first elements are in the
/// low halves. The first elements of the results are in the high halves.
#[inline(always)]
fn same_parity([first, second]: [u32; 2]) -> [u32; 2] {
    [first << 16 | second & 0xffff, first & 0xffff_0000 | second >> 16]
}

/// [`same_parity`] with the halves exchanged: a planted fault.
#[cold]
fn exchanged(words: [u32; 2]) -> [u32; 2] {
    same_parity(words).map(|word| word.rotate_left(16))
}

/// Reorders a row of elements from [`Pairing::Neighbors`] to [`Pairing::Parity`].
#[inline(always)]
pub(super) fn pair_row(row: &Pairs) -> Pairs {
    let words = row.words();
    let mut out = [0; 16];
    if faults::on(Fault::PairHalvesExchanged) {
        for (to, from) in out.chunks_exact_mut(2).zip(words.chunks_exact(2)) {
            to.copy_from_slice(&exchanged([from[0], from[1]]));
        }
    } else {
        for i in (0..16).step_by(2) {
            [out[i], out[i + 1]] = same_parity([words[i], words[i + 1]]);
        }
    }
    Pairs::of_words(out)
}

/// Reorders a tile, whose row r holds the elements 2r and 2r + 1 of 16 columns, in the same way.
#[inline(always)]
pub(super) fn pair_tile(tile: &mut [Pairs]) {
    assert_eq!(tile.len(), TILE, "a tile");
    for rows in tile.chunks_exact_mut(2) {
        let (first, second) = (rows[0].words(), rows[1].words());
        let mut out = [[0; 16]; 2];
        if faults::on(Fault::PairHalvesExchanged) {
            for i in 0..16 {
                [out[0][i], out[1][i]] = exchanged([first[i], second[i]]);
            }
        } else {
            for i in 0..16 {
                [out[0][i], out[1][i]] = same_parity([first[i], second[i]]);
            }
        }
        (rows[0], rows[1]) = (Pairs::of_words(out[0]), Pairs::of_words(out[1]));
    }
}
