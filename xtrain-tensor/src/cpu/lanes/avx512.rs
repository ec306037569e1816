//! Lanes in two AVX-512 registers.
use std::arch::x86_64::*;

use half::bf16;

use super::instructions::instructions;
use super::reg::Reg;
use super::vector::Kernel;
use crate::fma::ScalarFma;

type R = __m512;

/// Proof that the machine has AVX-512F. Only [`Avx512::detect`] creates it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    #[inline]
    pub(super) fn detect() -> Option<Avx512> {
        is_x86_feature_detected!("avx512f").then_some(Avx512(()))
    }

    /// Runs `kernel`, compiled for AVX-512F.
    #[inline]
    pub(super) fn enter<Out, K: Kernel<Out>>(self, kernel: K) -> Out {
        #[target_feature(enable = "avx512f")]
        fn run<Out, K: Kernel<Out>>(isa: Avx512, kernel: K) -> Out {
            kernel.run(isa)
        }
        // SAFETY: `self` was made by `detect`.
        unsafe { run(self, kernel) }
    }
}

/// Adds the rounding increment of f32 to bf16. The bf16 value is in the upper 16 bits.
///
/// # Safety
/// The machine has AVX-512F.
#[inline(always)]
unsafe fn rounded(v: R) -> __m512i {
    // SAFETY: AVX-512F exists, by contract.
    unsafe {
        let b = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(b), _mm512_set1_epi32(1));
        let sum = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_mask_blend_epi32(nan, sum, _mm512_set1_epi32(0x7fff_0000))
    }
}

impl ScalarFma for Avx512 {}

impl Reg for Avx512 {
    type R = R;
    type M = __mmask16;
    type F = [R; 2];
    const WIDTH: usize = 16;
    const TILE_ROWS: usize = 12;
    const WIDE_ROWS: usize = 4;

    instructions! {
        unsafe {
            load(p: *const f32) -> R = _mm512_loadu_ps(p);
            load_first(p: *const f32, n: usize) -> R =
                _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p);
            store(p: *mut f32, v: R) = _mm512_storeu_ps(p, v);
            store_first(p: *mut f32, n: usize, v: R) =
                _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as __mmask16, v);
            load_bf16(p: *const bf16) -> R =
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
            store_bf16(p: *mut bf16, v: R) =
                _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(v))));
            load_i8(p: *const i8) -> R =
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
            load_pairs(p: *const bf16) -> (R, R) = {
                let w = _mm512_loadu_si512(p.cast());
                let odd = _mm512_and_si512(w, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)), _mm512_castsi512_ps(odd))
            };
        }
        splat(x: f32) -> R = _mm512_set1_ps(x);
        fma(a: R, b: R, c: R) -> R = _mm512_fmadd_ps(a, b, c);
        add(a: R, b: R) -> R = _mm512_add_ps(a, b);
        sub(a: R, b: R) -> R = _mm512_sub_ps(a, b);
        mul(a: R, b: R) -> R = _mm512_mul_ps(a, b);
        div(a: R, b: R) -> R = _mm512_div_ps(a, b);
        sqrt(a: R) -> R = _mm512_sqrt_ps(a);
        // vmaxps returns its second operand unless the first is greater
        max(a: R, b: R) -> R = _mm512_max_ps(b, a);
        neg(a: R) -> R =
            _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(i32::MIN)));
        scale(p: R, t: R) -> R = _mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(p), _mm512_slli_epi32::<23>(_mm512_castps_si512(t))));
        // a table: the index of vpermps is the lowest four bits of a lane
        nibble(bits: R) -> R = _mm512_permutexvar_ps(_mm512_castps_si512(bits), _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0));
        centered_nibble(bits: R) -> R = _mm512_permutexvar_ps(_mm512_castps_si512(bits), _mm512_setr_ps(
            -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0));
        next_nibble(bits: R) -> R =
            _mm512_castsi512_ps(_mm512_srli_epi32::<4>(_mm512_castps_si512(bits)));
        lt(a: R, b: R) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        is_nan(a: R) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
        select(m: __mmask16, yes: R, no: R) -> R = _mm512_mask_blend_ps(m, no, yes);
        round_bf16(a: R) -> R = _mm512_castsi512_ps(
            _mm512_and_si512(rounded(a), _mm512_set1_epi32(0xffff_0000_u32 as i32)));
        zip(a: R, b: R) -> (R, R) = {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            (_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b))
        };
        sum(v: R) -> f32 = {
            let v = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
            let v = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v));
            let v = _mm512_add_ps(v, _mm512_permute_ps::<0b01_00_11_10>(v));
            _mm512_cvtss_f32(_mm512_add_ps(v, _mm512_permute_ps::<0b10_11_00_01>(v)))
        };
        maximum(v: R) -> f32 = {
            let v = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
            let v = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v));
            let v = _mm512_max_ps(v, _mm512_permute_ps::<0b01_00_11_10>(v));
            _mm512_cvtss_f32(_mm512_max_ps(v, _mm512_permute_ps::<0b10_11_00_01>(v)))
        };
        least_size(least: R, v: R) -> R = {
            let twice = _mm512_slli_epi32::<1>(_mm512_castps_si512(v));
            let size = _mm512_sub_epi32(twice, _mm512_set1_epi32(1));
            _mm512_castsi512_ps(_mm512_min_epu32(_mm512_castps_si512(least), size))
        };
        any_tiny(v: R) -> bool = {
            let a = _mm512_abs_ps(v);
            let small = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, _mm512_set1_ps(f32::MIN_POSITIVE));
            _mm512_mask_cmp_ps_mask::<_CMP_NEQ_OQ>(small, a, _mm512_setzero_ps()) != 0
        };
        // a hint on every x86-64, without effect if the address is not readable
        prefetch_l1(p: *const f32) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        prefetch_l2(p: *const f32) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }

    #[inline(always)]
    fn fill(self, r: R) -> [R; 2] {
        [r; 2]
    }
}
