//! The two element types of an attention, and what they ask of its products.
use half::bf16;

use super::product::{self, Product};
use crate::cpu::lanes::{LANES, Lanes, Reg};
use crate::cpu::{Simd, lanes};
use crate::device::recycle::Recycled;

/// An element type: how its values enter and leave lanes of f32, and the arithmetic of its products.
pub(crate) trait Number: Recycled {
    /// Indices that a product takes at a time: its ranges are widened to multiples of it.
    const STEP: usize;

    /// Up to 32 elements; absent lanes are +0.
    fn load<L: Lanes>(l: L, s: &[Self]) -> L::F;

    /// Rounds the first `s.len()` lanes into `s`.
    fn store<L: Lanes>(l: L, s: &mut [Self], v: L::F);

    /// The elements themselves, if operands of products can be read from them.
    fn plain(x: &[Self]) -> Option<&[f32]>;

    /// The values as an operand of a product reads them, from values that need no rounding. Notes the
    /// least of them.
    fn operand<L: Lanes>(l: L, v: L::F, least: &mut Least<L>) -> L::F;

    /// [`Number::operand`] of values that are rounded to this type first.
    fn rounded<L: Lanes>(l: L, v: L::F, least: &mut Least<L>) -> L::F;

    /// Runs a product. `fine`: no result of it can be tiny ([`fine`]).
    fn product(simd: Simd, fine: bool, product: Product<'_>);
}

impl Number for f32 {
    const STEP: usize = 1;

    #[inline(always)]
    fn load<L: Lanes>(l: L, s: &[f32]) -> L::F {
        if s.len() >= LANES { l.load(s) } else { l.load_partial(s) }
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, s: &mut [f32], v: L::F) {
        l.store_partial(s, v);
    }
    #[inline(always)]
    fn plain(x: &[f32]) -> Option<&[f32]> {
        Some(x)
    }
    #[inline(always)]
    fn operand<L: Lanes>(_: L, v: L::F, _: &mut Least<L>) -> L::F {
        v
    }
    #[inline(always)]
    fn rounded<L: Lanes>(_: L, v: L::F, _: &mut Least<L>) -> L::F {
        v
    }
    #[inline(always)]
    fn product(simd: Simd, _: bool, product: Product<'_>) {
        lanes::dispatch(simd, product::Run::<product::Chain>::new(product));
    }
}

impl Number for bf16 {
    const STEP: usize = 2;

    #[inline(always)]
    fn load<L: Lanes>(l: L, s: &[bf16]) -> L::F {
        l.load_bf16_partial(s)
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, s: &mut [bf16], v: L::F) {
        l.store_bf16_partial(s, v);
    }
    #[inline(always)]
    fn plain(_: &[bf16]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn operand<L: Lanes>(l: L, v: L::F, least: &mut Least<L>) -> L::F {
        let size = l.max(v, l.neg(v));
        let bound = Lanes::splat(l, f32::MIN_POSITIVE);
        let none = Lanes::splat(l, f32::NEG_INFINITY);
        least.0 = l.max(least.0, l.select_lt(size, bound, none, l.neg(size)));
        l.select_lt(size, bound, Lanes::mul(l, v, l.zero()), v)
    }
    #[inline(always)]
    fn rounded<L: Lanes>(l: L, v: L::F, least: &mut Least<L>) -> L::F {
        bf16::operand(l, l.round_bf16(v), least)
    }
    #[inline(always)]
    fn product(simd: Simd, fine: bool, product: Product<'_>) {
        if fine {
            lanes::dispatch(simd, product::Run::<product::Blocks<false>>::new(product));
        } else {
            lanes::dispatch(simd, product::Run::<product::Blocks<true>>::new(product));
        }
    }
}

/// The least magnitude among the non-zero values of an operand, negated, lane by lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Least<L: Reg>(L::F);

impl<L: Lanes> Least<L> {
    /// Of no values.
    #[inline(always)]
    pub(crate) fn new(l: L) -> Self {
        Least(Lanes::splat(l, f32::NEG_INFINITY))
    }

    /// Over all lanes; infinity if all values are zero.
    #[inline(always)]
    pub(crate) fn value(self, l: L) -> f32 {
        -l.max32(self.0)
    }
}

/// Whether no non-zero result of a product of bf16 values can be tiny, given the least magnitudes of
/// its operands.
///
/// A bf16 value of exponent e is a multiple of 2^(e - 7). So all products, and all sums of them rounded
/// to 24 bits, are multiples of 2^(ea + eb - 14): where that is no less than 2^-126, nothing is ever
/// flushed.
#[inline(always)]
pub(crate) fn fine(a: f32, b: f32) -> bool {
    let exponent = |x: f32| (x.to_bits() >> 23) as i32 - 127;
    exponent(a) + exponent(b) - 14 >= -126
}
