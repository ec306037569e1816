//! Lanes in two AVX-512 registers.
use std::arch::x86_64::*;

use half::bf16;

use super::reg::Reg;
use super::vector::Kernel;

type R = __m512;

/// Proof that the machine has AVX-512F. Only [`Avx512::detect`] creates it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// Returns the token if the machine has AVX-512F.
    #[inline]
    pub(super) fn detect() -> Option<Avx512> {
        is_x86_feature_detected!("avx512f").then_some(Avx512(()))
    }

    /// Runs `kernel`, compiled for AVX-512F.
    #[inline]
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f")]
        fn run<K: Kernel>(isa: Avx512, kernel: K) -> K::Out {
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
            // SAFETY: the token was made by `detect`, so AVX-512F exists.
            unsafe { $value }
        }
    )*};
}

/// Adds the rounding increment of f32 to bf16. The bf16 value is in the upper 16 bits.
#[inline(always)]
fn rounded(_: Avx512, v: R) -> __m512i {
    // SAFETY: the token was made by `detect`, so AVX-512F exists.
    unsafe {
        let b = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(b), _mm512_set1_epi32(1));
        let sum = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_mask_blend_epi32(nan, sum, _mm512_set1_epi32(0x7fff_0000))
    }
}

impl Reg for Avx512 {
    type R = R;
    type M = __mmask16;
    type F = [R; 2];
    const WIDTH: usize = 16;
    const TILE_ROWS: usize = 12;
    const WIDE_ROWS: usize = 4;

    instructions! {
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
        lt(a: R, b: R) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        is_nan(a: R) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
        select(m: __mmask16, yes: R, no: R) -> R = _mm512_mask_blend_ps(m, no, yes);
    }

    #[inline(always)]
    fn fill(self, r: R) -> [R; 2] {
        [r; 2]
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
        // SAFETY: the token proves AVX-512F; 16 elements are readable, by contract.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_first(_: Self, p: *const f32, n: usize) -> R {
        // SAFETY: the token proves AVX-512F; the mask selects the n readable elements.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p) }
    }
    #[inline(always)]
    unsafe fn store(_: Self, p: *mut f32, v: R) {
        // SAFETY: the token proves AVX-512F; 16 elements are writable, by contract.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_first(_: Self, p: *mut f32, n: usize, v: R) {
        // SAFETY: the token proves AVX-512F; the mask selects the n writable elements.
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as __mmask16, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(_: Self, p: *const bf16) -> R {
        // SAFETY: the token proves AVX-512F; 16 elements are readable, by contract.
        unsafe {
            let half = _mm256_loadu_si256(p.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(isa: Self, p: *mut bf16, v: R) {
        // SAFETY: the token proves AVX-512F; 16 elements are writable, by contract.
        unsafe {
            let half = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(isa, v)));
            _mm256_storeu_si256(p.cast(), half);
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(_: Self, p: *const bf16) -> (R, R) {
        // SAFETY: the token proves AVX-512F; 32 elements are readable, by contract.
        unsafe {
            let w = _mm512_loadu_si512(p.cast());
            let odd = _mm512_and_si512(w, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)), _mm512_castsi512_ps(odd))
        }
    }
    #[inline(always)]
    fn round_bf16(isa: Self, a: R) -> R {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(rounded(isa, a), upper))
        }
    }
    #[inline(always)]
    fn zip(_: Self, a: R, b: R) -> (R, R) {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            (_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b))
        }
    }
    #[inline(always)]
    fn sum(_: Self, v: R) -> f32 {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let v = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
            let v = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v));
            let v = _mm512_add_ps(v, _mm512_permute_ps::<0b01_00_11_10>(v));
            _mm512_cvtss_f32(_mm512_add_ps(v, _mm512_permute_ps::<0b10_11_00_01>(v)))
        }
    }
    #[inline(always)]
    fn maximum(_: Self, v: R) -> f32 {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let v = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
            let v = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v));
            let v = _mm512_max_ps(v, _mm512_permute_ps::<0b01_00_11_10>(v));
            _mm512_cvtss_f32(_mm512_max_ps(v, _mm512_permute_ps::<0b10_11_00_01>(v)))
        }
    }
    #[inline(always)]
    fn any_tiny(_: Self, v: R) -> bool {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let a = _mm512_abs_ps(v);
            let small = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, _mm512_set1_ps(f32::MIN_POSITIVE));
            _mm512_mask_cmp_ps_mask::<_CMP_NEQ_OQ>(small, a, _mm512_setzero_ps()) != 0
        }
    }
}
