//! Lanes in four AVX2 registers.
use std::arch::x86_64::*;

use half::bf16;

use super::instructions::instructions;
use super::reg::Reg;
use super::vector::Kernel;
use crate::fma::ScalarFma;

type R = __m256;

/// Proof that the machine has AVX2 and FMA. Only [`Avx2::detect`] creates it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    #[inline]
    pub(super) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }

    /// Runs `kernel`, compiled for AVX2 and FMA.
    #[inline]
    pub(super) fn enter<Out, K: Kernel<Out>>(self, kernel: K) -> Out {
        #[target_feature(enable = "avx2,fma")]
        fn run<Out, K: Kernel<Out>>(isa: Avx2, kernel: K) -> Out {
            kernel.run(isa)
        }
        // SAFETY: `self` was made by `detect`.
        unsafe { run(self, kernel) }
    }
}

/// Adds the rounding increment of f32 to bf16. The bf16 value is in the upper 16 bits.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn rounded(v: R) -> __m256i {
    // SAFETY: AVX2 exists, by contract.
    unsafe {
        let b = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(b), _mm256_set1_epi32(1));
        let sum = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7fff_0000), nan)
    }
}

/// A mask of the first `n` lanes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: AVX2 exists, by contract.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

impl ScalarFma for Avx2 {}

impl Reg for Avx2 {
    type R = R;
    type M = R;
    type F = [R; 4];
    const WIDTH: usize = 8;
    const TILE_ROWS: usize = 6;
    const GEMM_ROWS: usize = 3;
    const WIDE_ROWS: usize = 3;

    instructions! {
        unsafe {
            load(p: *const f32) -> R = _mm256_loadu_ps(p);
            load_first(p: *const f32, n: usize) -> R = _mm256_maskload_ps(p, first(n));
            store(p: *mut f32, v: R) = _mm256_storeu_ps(p, v);
            store_first(p: *mut f32, n: usize, v: R) = _mm256_maskstore_ps(p, first(n), v);
            load_bf16(p: *const bf16) -> R =
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
            store_bf16(p: *mut bf16, v: R) = {
                let w = _mm256_srli_epi32::<16>(rounded(v));
                let half = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(w, w));
                _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(half))
            };
            load_i8(p: *const i8) -> R =
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
            load_pairs(p: *const bf16) -> (R, R) = {
                let w = _mm256_loadu_si256(p.cast());
                let odd = _mm256_and_si256(w, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(w)), _mm256_castsi256_ps(odd))
            };
        }
        splat(x: f32) -> R = _mm256_set1_ps(x);
        fma(a: R, b: R, c: R) -> R = _mm256_fmadd_ps(a, b, c);
        add(a: R, b: R) -> R = _mm256_add_ps(a, b);
        sub(a: R, b: R) -> R = _mm256_sub_ps(a, b);
        mul(a: R, b: R) -> R = _mm256_mul_ps(a, b);
        div(a: R, b: R) -> R = _mm256_div_ps(a, b);
        sqrt(a: R) -> R = _mm256_sqrt_ps(a);
        // vmaxps returns its second operand unless the first is greater
        max(a: R, b: R) -> R = _mm256_max_ps(b, a);
        neg(a: R) -> R = _mm256_xor_ps(a, _mm256_set1_ps(-0.0));
        scale(p: R, t: R) -> R = _mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_castps_si256(p), _mm256_slli_epi32::<23>(_mm256_castps_si256(t))));
        nibble(bits: R) -> R =
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_castps_si256(bits), _mm256_set1_epi32(0x0f)));
        centered_nibble(bits: R) -> R = {
            let code = _mm256_and_si256(_mm256_castps_si256(bits), _mm256_set1_epi32(0x0f));
            _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(8)))
        };
        next_nibble(bits: R) -> R =
            _mm256_castsi256_ps(_mm256_srli_epi32::<4>(_mm256_castps_si256(bits)));
        lt(a: R, b: R) -> R = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        is_nan(a: R) -> R = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
        select(m: R, yes: R, no: R) -> R = _mm256_blendv_ps(no, yes, m);
        round_bf16(a: R) -> R = _mm256_castsi256_ps(
            _mm256_and_si256(rounded(a), _mm256_set1_epi32(0xffff_0000_u32 as i32)));
        zip(a: R, b: R) -> (R, R) = {
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        };
        sum(v: R) -> f32 = {
            let v = _mm256_add_ps(v, _mm256_permute2f128_ps::<1>(v, v));
            let v = _mm256_add_ps(v, _mm256_permute_ps::<0b01_00_11_10>(v));
            _mm256_cvtss_f32(_mm256_add_ps(v, _mm256_permute_ps::<0b10_11_00_01>(v)))
        };
        maximum(v: R) -> f32 = {
            let v = _mm256_max_ps(v, _mm256_permute2f128_ps::<1>(v, v));
            let v = _mm256_max_ps(v, _mm256_permute_ps::<0b01_00_11_10>(v));
            _mm256_cvtss_f32(_mm256_max_ps(v, _mm256_permute_ps::<0b10_11_00_01>(v)))
        };
        least_size(least: R, v: R) -> R = {
            let twice = _mm256_slli_epi32::<1>(_mm256_castps_si256(v));
            let size = _mm256_sub_epi32(twice, _mm256_set1_epi32(1));
            _mm256_castsi256_ps(_mm256_min_epu32(_mm256_castps_si256(least), size))
        };
        any_tiny(v: R) -> bool = {
            let a = _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
            let small = _mm256_cmp_ps::<_CMP_LE_OQ>(a, _mm256_set1_ps(f32::MIN_POSITIVE));
            let some = _mm256_cmp_ps::<_CMP_NEQ_OQ>(a, _mm256_setzero_ps());
            _mm256_movemask_ps(_mm256_and_ps(small, some)) != 0
        };
        // a hint on every x86-64, without effect if the address is not readable
        prefetch_l1(p: *const f32) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        prefetch_l2(p: *const f32) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }

    #[inline(always)]
    fn fill(self, r: R) -> [R; 4] {
        [r; 4]
    }
}
