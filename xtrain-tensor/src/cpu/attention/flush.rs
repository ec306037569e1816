//! Flush to zero by x86's rule, on registers. It is exact, and slow only if a result is tiny.
use crate::cpu::lanes::{Lanes, Reg};
use crate::reference;

/// Lanes of the widest register.
const MAX_WIDTH: usize = 16;

/// `a * b + c`, or zero of its sign if the result is tiny (docs/numerics.md, section 2).
#[inline(always)]
pub(super) fn fma_flushed<L: Lanes>(l: L, a: L::R, b: L::R, c: L::R) -> L::R {
    let r = Reg::fma(l, a, b, c);
    if !Reg::any_tiny(l, r) {
        return r;
    }
    let mut lanes = [[0.0; MAX_WIDTH]; 3];
    for (lanes, v) in lanes.iter_mut().zip([a, b, c]) {
        // SAFETY: no register has more than MAX_WIDTH lanes.
        unsafe { Reg::store(l, lanes.as_mut_ptr(), v) }
    }
    let flushed = flush_lanes(&lanes);
    // SAFETY: as above.
    unsafe { Reg::load(l, flushed.as_ptr()) }
}

/// `a + b` with the same rule.
#[inline(always)]
pub(super) fn add_flushed<L: Lanes>(l: L, a: L::R, b: L::R) -> L::R {
    fma_flushed(l, a, Reg::splat(l, 1.0), b)
}

#[cold]
#[inline(never)]
fn flush_lanes([a, b, c]: &[[f32; MAX_WIDTH]; 3]) -> [f32; MAX_WIDTH] {
    std::array::from_fn(|i| reference::fma_flushed(a[i], b[i], c[i]))
}
