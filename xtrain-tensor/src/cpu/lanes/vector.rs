//! Operations on 32 lanes, over registers of any width.
use half::bf16;

use super::reg::{LANES, Reg};
use crate::math::{self, EXP_HIGH, EXP_LN2, EXP_LOG2E, EXP_LOW, EXP_POLY, EXP_SHIFT};

/// A kernel that is compiled for every instruction set.
pub(crate) trait Kernel<Out = ()> {
    /// Runs the kernel. Implementations and all generic functions that they call must be `#[inline(always)]`;
    /// otherwise the SIMD instructions are not inlined.
    fn run<L: Lanes>(self, l: L) -> Out;
}

/// Applies an operation of [`Reg`] to each register.
macro_rules! lanewise {
    ($($name:ident($first:ident $(, $rest:ident)*);)*) => {$(
        #[inline(always)]
        fn $name(self, $first: Self::F $(, $rest: Self::F)*) -> Self::F {
            let mut out = $first;
            for i in 0..Self::REGS {
                out[i] = Reg::$name(self, $first[i] $(, $rest[i])*);
            }
            out
        }
    )*};
}

/// Operations on 32 lanes. A value of this type proves that the machine has the instruction set.
pub(crate) trait Lanes: Reg {
    lanewise! {
        fma(a, b, c);
        add(a, b);
        sub(a, b);
        mul(a, b);
        div(a, b);
        sqrt(a);
        max(a, b);
        neg(a);
        least_size(least, v);
        round_bf16(a);
    }

    /// Broadcasts `x` to all lanes.
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        self.fill(Reg::splat(self, x))
    }

    /// +0 in all lanes.
    #[inline(always)]
    fn zero(self) -> Self::F {
        Lanes::splat(self, 0.0)
    }

    /// Loads the first 32 elements of `s`.
    #[inline(always)]
    fn load(self, s: &[f32]) -> Self::F {
        let s = &s[..LANES];
        // SAFETY: `s` has 32 elements, just sliced.
        unsafe { self.load_ptr(s.as_ptr()) }
    }

    /// Loads 32 elements from `p`.
    ///
    /// # Safety
    /// `p` is readable for 32 elements.
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::F {
        let mut out = Lanes::zero(self);
        for i in 0..Self::REGS {
            // SAFETY: REGS * WIDTH = 32 elements are readable, by contract.
            out[i] = unsafe { Reg::load(self, p.add(i * Self::WIDTH)) };
        }
        out
    }

    /// Loads up to 32 elements of `s`. Lanes past its end are +0.
    #[inline(always)]
    fn load_partial(self, s: &[f32]) -> Self::F {
        let mut out = Lanes::zero(self);
        for i in 0..Self::REGS {
            let from = (i * Self::WIDTH).min(s.len());
            let n = (s.len() - from).min(Self::WIDTH);
            // SAFETY: `from + n <= s.len()`.
            out[i] = unsafe { Reg::load_first(self, s.as_ptr().add(from), n) };
        }
        out
    }

    /// Stores all lanes to the first 32 elements of `s`.
    #[inline(always)]
    fn store(self, s: &mut [f32], v: Self::F) {
        let s = &mut s[..LANES];
        // SAFETY: `s` has 32 elements, just sliced.
        unsafe { self.store_ptr(s.as_mut_ptr(), v) }
    }

    /// Stores all lanes to `p`.
    ///
    /// # Safety
    /// `p` is writable for 32 elements, and no other thread accesses them.
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::F) {
        for i in 0..Self::REGS {
            // SAFETY: REGS * WIDTH = 32 elements are writable, by contract.
            unsafe { Reg::store(self, p.add(i * Self::WIDTH), v[i]) }
        }
    }

    /// Stores the first `s.len()` lanes, at most 32.
    #[inline(always)]
    fn store_partial(self, s: &mut [f32], v: Self::F) {
        for i in 0..Self::REGS {
            let from = (i * Self::WIDTH).min(s.len());
            let n = (s.len() - from).min(Self::WIDTH);
            // SAFETY: `from + n <= s.len()`.
            unsafe { Reg::store_first(self, s.as_mut_ptr().add(from), n, v[i]) }
        }
    }

    /// Loads the first 32 elements of `s` as f32.
    #[inline(always)]
    fn load_bf16(self, s: &[bf16]) -> Self::F {
        let s = &s[..LANES];
        let mut out = Lanes::zero(self);
        for i in 0..Self::REGS {
            // SAFETY: `s` has 32 = REGS * WIDTH elements.
            out[i] = unsafe { Reg::load_bf16(self, s.as_ptr().add(i * Self::WIDTH)) };
        }
        out
    }

    /// Loads up to 32 elements of `s` as f32. Lanes past its end are +0.
    #[inline(always)]
    fn load_bf16_partial(self, s: &[bf16]) -> Self::F {
        if s.len() >= LANES {
            return self.load_bf16(s);
        }
        let mut whole = [bf16::ZERO; LANES];
        whole[..s.len()].copy_from_slice(s);
        self.load_bf16(&whole)
    }

    /// Loads up to 32 elements of `s` as f32. Lanes past its end are +0.
    #[inline(always)]
    fn load_i8_partial(self, s: &[i8]) -> Self::F {
        let mut whole = [0; LANES];
        let from = match s.first_chunk() {
            Some(s) => s,
            None => {
                whole[..s.len()].copy_from_slice(s);
                &whole
            }
        };
        let mut out = Lanes::zero(self);
        for i in 0..Self::REGS {
            // SAFETY: `from` has 32 = REGS * WIDTH elements.
            out[i] = unsafe { Reg::load_i8(self, from.as_ptr().add(i * Self::WIDTH)) };
        }
        out
    }

    /// Rounds all lanes to the first 32 elements of `s` (ties to even, NaN to 0x7fff).
    #[inline(always)]
    fn store_bf16(self, s: &mut [bf16], v: Self::F) {
        let s = &mut s[..LANES];
        for i in 0..Self::REGS {
            // SAFETY: `s` has 32 = REGS * WIDTH elements.
            unsafe { Reg::store_bf16(self, s.as_mut_ptr().add(i * Self::WIDTH), v[i]) }
        }
    }

    /// Rounds the first `s.len()` lanes, at most 32, to `s`.
    #[inline(always)]
    fn store_bf16_partial(self, s: &mut [bf16], v: Self::F) {
        if s.len() >= LANES {
            return self.store_bf16(s, v);
        }
        let mut whole = [bf16::ZERO; LANES];
        self.store_bf16(&mut whole, v);
        s.copy_from_slice(&whole[..s.len()]);
    }

    #[inline(always)]
    fn to_array(self, v: Self::F) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out, v);
        out
    }

    /// `a < b ? yes : no` in each lane. NaN compares false.
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        let mut out = no;
        for i in 0..Self::REGS {
            out[i] = Reg::select(self, Reg::lt(self, a[i], b[i]), yes[i], no[i]);
        }
        out
    }

    /// `v[t] + v[t ^ o]` for o = 16, 8, 4, 2, 1 on all lanes at once, then `+ 0`: the end of sum32.
    #[inline(always)]
    fn sum32(self, mut v: Self::F) -> f32 {
        let mut half = Self::REGS / 2;
        while half > 0 {
            for i in 0..half {
                v[i] = Reg::add(self, v[i], v[i + half]);
            }
            half /= 2;
        }
        Reg::sum(self, v[0]) + 0.0
    }

    /// The largest lane. If the largest are zeros of both signs, either may be returned.
    #[inline(always)]
    fn max32(self, mut v: Self::F) -> f32 {
        let mut half = Self::REGS / 2;
        while half > 0 {
            for i in 0..half {
                v[i] = Reg::max(self, v[i], v[i + half]);
            }
            half /= 2;
        }
        Reg::maximum(self, v[0])
    }

    /// Transposes the first `WIDTH` registers as a `WIDTH` x `WIDTH` matrix.
    #[inline(always)]
    fn transpose(self, square: &mut [Self::R; 16]) {
        let half = Self::WIDTH / 2;
        // log2(WIDTH) times: interleave rows i and i + WIDTH / 2
        let mut step = half;
        while step > 0 {
            let old = *square;
            for i in 0..half {
                (square[2 * i], square[2 * i + 1]) = Reg::zip(self, old[i], old[i + half]);
            }
            step /= 2;
        }
    }

    /// `exp` of docs/numerics.md, section 6. Same bits as [`crate::math::exp`].
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        let mut out = x;
        for i in 0..Self::REGS {
            out[i] = exp_reg(self, x[i]);
        }
        out
    }

    /// The natural logarithm. Same bits as [`crate::math::log`].
    #[inline(always)]
    fn log(self, x: Self::F) -> Self::F {
        let mut x = self.to_array(x);
        for x in &mut x {
            *x = math::log_by::<Self>(*x);
        }
        self.load(&x)
    }
}

impl<T: Reg> Lanes for T {}

#[inline(always)]
fn exp_reg<I: Reg>(isa: I, x: I::R) -> I::R {
    let c = |v: f32| Reg::splat(isa, v);
    let t = Reg::fma(isa, x, c(EXP_LOG2E), c(EXP_SHIFT));
    let n = Reg::sub(isa, t, c(EXP_SHIFT));
    let r = Reg::fma(isa, n, c(-EXP_LN2[0]), x);
    let r = Reg::fma(isa, n, c(-EXP_LN2[1]), r);
    let mut p = c(EXP_POLY[0]);
    for &k in &EXP_POLY[1..] {
        p = Reg::fma(isa, p, r, c(k));
    }
    let p = Reg::add(isa, Reg::fma(isa, p, Reg::mul(isa, r, r), r), c(1.0));
    let y = Reg::scale(isa, p, t);
    let y = Reg::select(isa, Reg::lt(isa, x, c(EXP_LOW)), c(0.0), y);
    let y = Reg::select(isa, Reg::lt(isa, c(EXP_HIGH), x), c(f32::INFINITY), y);
    Reg::select(isa, Reg::is_nan(isa, x), x, y)
}
