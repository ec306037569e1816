//! x86's rule for tiny results, on registers: exact, and slow only where a result is tiny.
use crate::cpu::lanes::{Lanes, Reg};
use crate::reference;

/// The widest register.
const MOST: usize = 16;

/// `a * b + c`, zero of its sign where it is tiny (docs/numerics.md, section 2).
#[inline(always)]
pub(super) fn fma_flushed<L: Lanes>(l: L, a: L::R, b: L::R, c: L::R) -> L::R {
    let r = Reg::fma(l, a, b, c);
    if !Reg::any_tiny(l, r) {
        return r;
    }
    let mut lanes = [[0.0; MOST]; 3];
    for (lanes, v) in lanes.iter_mut().zip([a, b, c]) {
        // SAFETY: no register has more than MOST lanes.
        unsafe { Reg::store(l, lanes.as_mut_ptr(), v) }
    }
    let fixed = repair(&lanes);
    // SAFETY: as above.
    unsafe { Reg::load(l, fixed.as_ptr()) }
}

/// `a + b` under the same rule.
#[inline(always)]
pub(super) fn add_flushed<L: Lanes>(l: L, a: L::R, b: L::R) -> L::R {
    fma_flushed(l, a, Reg::splat(l, 1.0), b)
}

#[cold]
#[inline(never)]
fn repair([a, b, c]: &[[f32; MOST]; 3]) -> [f32; MOST] {
    std::array::from_fn(|i| reference::fma_flushed(a[i], b[i], c[i]))
}
