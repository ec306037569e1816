//! Lanes in four AVX2 registers.
use std::arch::x86_64::*;

use half::bf16;

use super::reg::Reg;
use super::vector::Kernel;

type R = __m256;

/// Proof that the machine has AVX2 and FMA. Only [`Avx2::detect`] creates it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Returns the token if the machine has AVX2 and FMA.
    #[inline]
    pub(super) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }

    /// Runs `kernel`, compiled for AVX2 and FMA.
    #[inline]
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma")]
        fn run<K: Kernel>(isa: Avx2, kernel: K) -> K::Out {
            kernel.run(isa)
        }
        // SAFETY: `self` was made by `detect`.
        unsafe { run(self, kernel) }
    }
}

macro_rules! instructions {
    ($($name:ident($($arg:ident: $t:ty),+) -> $out:ty = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name(_: Self, $($arg: $t),+) -> $out {
            // SAFETY: the token was made by `detect`, so AVX2 and FMA exist.
            unsafe { $value }
        }
    )*};
}

/// Adds the rounding increment of f32 to bf16. The bf16 value is in the upper 16 bits.
#[inline(always)]
fn rounded(_: Avx2, v: R) -> __m256i {
    // SAFETY: the token was made by `detect`, so AVX2 exists.
    unsafe {
        let b = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(b), _mm256_set1_epi32(1));
        let sum = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7fff_0000), nan)
    }
}

/// A mask of the first `n` lanes.
#[inline(always)]
fn first(_: Avx2, n: usize) -> __m256i {
    // SAFETY: the token was made by `detect`, so AVX2 exists.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

impl Reg for Avx2 {
    type R = R;
    type M = R;
    type F = [R; 4];
    const WIDTH: usize = 8;
    const TILE_ROWS: usize = 6;
    const WIDE_ROWS: usize = 3;

    instructions! {
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
        lt(a: R, b: R) -> R = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        is_nan(a: R) -> R = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
        select(m: R, yes: R, no: R) -> R = _mm256_blendv_ps(no, yes, m);
    }

    #[inline(always)]
    fn fill(self, r: R) -> [R; 4] {
        [r; 4]
    }
    #[inline(always)]
    fn prefetch_l1(_: Self, p: *const f32) {
        // SAFETY: a hint available on every x86-64; it does nothing if the address is not readable.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_l2(_: Self, p: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load(_: Self, p: *const f32) -> R {
        // SAFETY: the token proves AVX2; 8 elements are readable, by contract.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_first(isa: Self, p: *const f32, n: usize) -> R {
        // SAFETY: the token proves AVX2; the mask selects the n readable elements.
        unsafe { _mm256_maskload_ps(p, first(isa, n)) }
    }
    #[inline(always)]
    unsafe fn store(_: Self, p: *mut f32, v: R) {
        // SAFETY: the token proves AVX2; 8 elements are writable, by contract.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_first(isa: Self, p: *mut f32, n: usize, v: R) {
        // SAFETY: the token proves AVX2; the mask selects the n writable elements.
        unsafe { _mm256_maskstore_ps(p, first(isa, n), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(_: Self, p: *const bf16) -> R {
        // SAFETY: the token proves AVX2; 8 elements are readable, by contract.
        unsafe {
            let half = _mm_loadu_si128(p.cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(isa: Self, p: *mut bf16, v: R) {
        // SAFETY: the token proves AVX2; 8 elements are writable, by contract.
        unsafe {
            let w = _mm256_srli_epi32::<16>(rounded(isa, v));
            let half = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(w, w));
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(half));
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(_: Self, p: *const bf16) -> (R, R) {
        // SAFETY: the token proves AVX2; 16 elements are readable, by contract.
        unsafe {
            let w = _mm256_loadu_si256(p.cast());
            let odd = _mm256_and_si256(w, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(w)), _mm256_castsi256_ps(odd))
        }
    }
    #[inline(always)]
    fn round_bf16(isa: Self, a: R) -> R {
        // SAFETY: the token proves AVX2.
        unsafe {
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            _mm256_castsi256_ps(_mm256_and_si256(rounded(isa, a), upper))
        }
    }
    #[inline(always)]
    fn zip(_: Self, a: R, b: R) -> (R, R) {
        // SAFETY: the token proves AVX2.
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        }
    }
    #[inline(always)]
    fn sum(_: Self, v: R) -> f32 {
        // SAFETY: the token proves AVX2.
        unsafe {
            let v = _mm256_add_ps(v, _mm256_permute2f128_ps::<1>(v, v));
            let v = _mm256_add_ps(v, _mm256_permute_ps::<0b01_00_11_10>(v));
            _mm256_cvtss_f32(_mm256_add_ps(v, _mm256_permute_ps::<0b10_11_00_01>(v)))
        }
    }
    #[inline(always)]
    fn maximum(_: Self, v: R) -> f32 {
        // SAFETY: the token proves AVX2.
        unsafe {
            let v = _mm256_max_ps(v, _mm256_permute2f128_ps::<1>(v, v));
            let v = _mm256_max_ps(v, _mm256_permute_ps::<0b01_00_11_10>(v));
            _mm256_cvtss_f32(_mm256_max_ps(v, _mm256_permute_ps::<0b10_11_00_01>(v)))
        }
    }
    #[inline(always)]
    fn any_tiny(_: Self, v: R) -> bool {
        // SAFETY: the token proves AVX2.
        unsafe {
            let a = _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
            let small = _mm256_cmp_ps::<_CMP_LE_OQ>(a, _mm256_set1_ps(f32::MIN_POSITIVE));
            let some = _mm256_cmp_ps::<_CMP_NEQ_OQ>(a, _mm256_setzero_ps());
            _mm256_movemask_ps(_mm256_and_ps(small, some)) != 0
        }
    }
}
