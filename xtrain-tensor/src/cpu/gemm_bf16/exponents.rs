//! The smallest exponent of packed elements, in any order.
use super::operand::NO_EXPONENT;
use super::pairs::Pairs;
use crate::cpu::lanes::Lanes;

/// The smallest exponent field of the non-zero elements of [converted](super::Operand::round_daz) rows; [`NO_EXPONENT`]
/// if there are none.
#[inline(always)]
pub(super) fn min_exponent<'a, L: Lanes>(_: L, rows: impl Iterator<Item = &'a Pairs>) -> u8 {
    #[cfg(target_arch = "x86_64")]
    if L::WIDTH == 16 {
        // SAFETY: on x86, AVX-512 alone has registers of 16 lanes, and the caller has its lanes.
        return unsafe { with_avx512(rows) };
    }
    let mut min = [u16::MAX; 32];
    for row in rows {
        for (min, x) in min.iter_mut().zip(&row.0) {
            // subtract one, so that the field of zero becomes the largest
            *min = (*min).min((x.to_bits() & 0x7f80).wrapping_sub(0x80));
        }
    }
    let min = min.into_iter().fold(u16::MAX, u16::min);
    if min > 0x7f80 { NO_EXPONENT } else { (min >> 7) as u8 + 1 }
}

/// The compiler would process one column of all rows at a time.
///
/// # Safety
/// The machine has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn with_avx512<'a>(rows: impl Iterator<Item = &'a Pairs>) -> u8 {
    use std::arch::x86_64::*;
    // of words without their sign, less one exponent
    let (mut min, one) = (_mm512_set1_epi32(-1), _mm512_set1_epi32(1 << 24));
    for row in rows {
        // SAFETY: a row is 64 aligned bytes.
        let words = unsafe { _mm512_load_si512(row.0.as_ptr().cast()) };
        let high = _mm512_sub_epi32(_mm512_slli_epi32::<1>(words), one);
        let low = _mm512_sub_epi32(_mm512_slli_epi32::<17>(words), one);
        min = _mm512_min_epu32(min, _mm512_min_epu32(high, low));
    }
    (_mm512_reduce_min_epu32(min) >> 24).saturating_add(1).min(NO_EXPONENT.into()) as u8
}
