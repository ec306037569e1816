//! Pairs of bf16 elements, the unit of the instructions for bf16 products.
use half::bf16;

use super::super::scratch::scratch;

/// One row of a tile: for each of 16 columns, the elements 2r and 2r + 1 of the block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Pairs(pub(crate) [bf16; 32]);
scratch!(Pairs, Pairs([bf16::ZERO; 32]));

impl Pairs {
    /// A row of pairs, the first element of each in the low half.
    #[inline(always)]
    pub(crate) fn of_words(mut words: [u32; TILE]) -> Pairs {
        for word in &mut words {
            *word = word.to_le();
        }
        // SAFETY: 16 words are the 64 bytes of 32 elements, of which every bit pattern is valid.
        Pairs(unsafe { std::mem::transmute::<[u32; TILE], [bf16; 32]>(words) })
    }

    /// The pairs as words, the first element of each in the low half.
    #[inline(always)]
    pub(super) fn words(&self) -> [u32; TILE] {
        // SAFETY: 32 elements are the 64 bytes of 16 words, of which every bit pattern is valid.
        let mut words = unsafe { std::mem::transmute::<[bf16; 32], [u32; TILE]>(self.0) };
        for word in &mut words {
            *word = u32::from_le(*word);
        }
        words
    }

    /// The elements as words of four, the first in the lowest bits.
    #[inline(always)]
    pub(super) fn fours(&self) -> [u64; 8] {
        // SAFETY: 32 elements are the 64 bytes of 8 words, of which every bit pattern is valid.
        let mut fours = unsafe { std::mem::transmute::<[bf16; 32], [u64; 8]>(self.0) };
        for four in &mut fours {
            *four = u64::from_le(*four);
        }
        fours
    }

    /// The row with these [`Pairs::fours`].
    #[inline(always)]
    pub(super) fn of_fours(mut fours: [u64; 8]) -> Pairs {
        for four in &mut fours {
            *four = four.to_le();
        }
        // SAFETY: 8 words are the 64 bytes of 32 elements, of which every bit pattern is valid.
        Pairs(unsafe { std::mem::transmute::<[u64; 8], [bf16; 32]>(fours) })
    }
}

/// The elements of rows.
pub(crate) fn flat(rows: &[Pairs]) -> &[bf16] {
    // SAFETY: a row is 32 elements without padding.
    unsafe { std::slice::from_raw_parts(rows.as_ptr().cast(), rows.len() * 32) }
}

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 16;
