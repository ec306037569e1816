//! Lanes in plain Rust. The compiler vectorizes the loops for the target.
use half::bf16;

use super::reg::Reg;
use crate::dtype::{from_bf16, round_bf16, to_bf16};
use crate::fma::{ScalarFma, fma_by_f64, fma_instruction};

const W: usize = 8;
type R = [f32; W];

#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

impl ScalarFma for Portable {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(target_arch = "aarch64") { fma_instruction(a, b, c) } else { fma_by_f64(a, b, c) }
    }
}

// Not inlined where an fma is many instructions: inlining all of them into a kernel took more compile time than all other
// instruction sets together.
macro_rules! each {
    ($($name:ident($($arg:ident),+) = $value:expr;)*) => {$(
        #[cfg_attr(target_arch = "aarch64", inline(always))]
        #[cfg_attr(not(target_arch = "aarch64"), inline(never))]
        fn $name(_: Self, $($arg: R),+) -> R {
            std::array::from_fn(|i| {
                $(let $arg = $arg[i];)+
                $value
            })
        }
    )*};
}

impl Reg for Portable {
    type R = R;
    type M = [bool; W];
    type F = [R; 4];
    const WIDTH: usize = W;
    const TILE_ROWS: usize = 4;
    const WIDE_ROWS: usize = 3;

    each! {
        fma(a, b, c) = <Portable as ScalarFma>::fma(a, b, c);
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        sqrt(a) = a.sqrt();
        max(a, b) = if b > a { b } else { a };
        neg(a) = -a;
        round_bf16(a) = round_bf16(a);
        nibble(bits) = (bits.to_bits() & 0x0f) as f32;
        centered_nibble(bits) = (bits.to_bits() & 0x0f) as f32 - 8.0;
        next_nibble(bits) = f32::from_bits(bits.to_bits() >> 4);
        scale(p, t) = f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
    }

    #[inline(always)]
    fn fill(self, r: R) -> [R; 4] {
        [r; 4]
    }
    #[inline(always)]
    fn splat(_: Self, x: f32) -> R {
        [x; W]
    }
    #[inline(always)]
    fn prefetch_l1(_: Self, _: *const f32) {}
    #[inline(always)]
    fn prefetch_l2(_: Self, _: *const f32) {}
    #[inline(always)]
    unsafe fn load(_: Self, p: *const f32) -> R {
        // SAFETY: WIDTH elements are readable, by contract; an array of f32 is aligned like f32.
        unsafe { p.cast::<R>().read() }
    }
    #[inline(never)]
    unsafe fn load_first(_: Self, p: *const f32, n: usize) -> R {
        let mut out = [0.0; W];
        for (i, o) in out.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and n elements are readable, by contract.
            *o = unsafe { p.add(i).read() };
        }
        out
    }
    #[inline(always)]
    unsafe fn store(_: Self, p: *mut f32, v: R) {
        // SAFETY: WIDTH elements are writable, by contract.
        unsafe { p.cast::<R>().write(v) }
    }
    #[inline(never)]
    unsafe fn store_first(_: Self, p: *mut f32, n: usize, v: R) {
        for (i, x) in v.into_iter().enumerate().take(n) {
            // SAFETY: i < n, and n elements are writable, by contract.
            unsafe { p.add(i).write(x) }
        }
    }
    #[inline(never)]
    unsafe fn load_bf16(_: Self, p: *const bf16) -> R {
        // SAFETY: WIDTH elements are readable, by contract.
        unsafe { p.cast::<[bf16; W]>().read() }.map(from_bf16)
    }
    #[inline(never)]
    unsafe fn load_i8(_: Self, p: *const i8) -> R {
        // SAFETY: WIDTH elements are readable, by contract.
        unsafe { p.cast::<[i8; W]>().read() }.map(f32::from)
    }
    #[inline(never)]
    unsafe fn store_bf16(_: Self, p: *mut bf16, v: R) {
        // SAFETY: WIDTH elements are writable, by contract.
        unsafe { p.cast::<[bf16; W]>().write(v.map(to_bf16)) }
    }
    #[inline(never)]
    unsafe fn load_pairs(_: Self, p: *const bf16) -> (R, R) {
        // SAFETY: 2 * WIDTH elements are readable, by contract.
        let pairs = unsafe { p.cast::<[[bf16; 2]; W]>().read() };
        (pairs.map(|x| from_bf16(x[0])), pairs.map(|x| from_bf16(x[1])))
    }
    #[inline(never)]
    fn lt(_: Self, a: R, b: R) -> [bool; W] {
        std::array::from_fn(|i| a[i] < b[i])
    }
    #[inline(never)]
    fn is_nan(_: Self, a: R) -> [bool; W] {
        a.map(f32::is_nan)
    }
    #[inline(never)]
    fn select(_: Self, m: [bool; W], yes: R, no: R) -> R {
        std::array::from_fn(|i| if m[i] { yes[i] } else { no[i] })
    }
    #[inline(never)]
    fn zip(_: Self, a: R, b: R) -> (R, R) {
        let half = |i: usize| [a[i], b[i], a[i + 1], b[i + 1], a[i + 2], b[i + 2], a[i + 3], b[i + 3]];
        (half(0), half(4))
    }
    #[inline(never)]
    fn sum(_: Self, v: R) -> f32 {
        let v = [v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]];
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(never)]
    fn maximum(_: Self, v: R) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
    #[inline(never)]
    fn least_size(_: Self, least: R, v: R) -> R {
        std::array::from_fn(|i| {
            let size = (v[i].to_bits() << 1).wrapping_sub(1);
            f32::from_bits(least[i].to_bits().min(size))
        })
    }
    #[inline(never)]
    fn any_tiny(_: Self, v: R) -> bool {
        v.iter().any(|&x| x != 0.0 && x.abs() <= f32::MIN_POSITIVE)
    }
}
