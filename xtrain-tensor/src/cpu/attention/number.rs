//! The element types of attention and the arithmetic of their products.
use half::bf16;

use super::product::{self, Product};
use crate::cpu::gemm_bf16::{MinExponent, Operand};
use crate::cpu::lanes::Lanes;
use crate::cpu::value::Value;
use crate::cpu::{Simd, lanes};

pub(crate) trait Number: Value + Operand {
    /// Products process this many indices at a time. Their ranges are extended to multiples of it.
    const STEP: usize;

    /// Whether `vdpbf16ps` or `tdpbf16ps` computes the products, where it is the instruction set.
    const PAIRED: bool;

    /// The elements as f32, if products can read them in place.
    fn plain(x: &[Self]) -> Option<&[f32]>;

    /// Converts values of this type to the operand of a product. Updates the smallest exponent.
    fn operand<L: Lanes>(l: L, v: L::F, min_exp: &mut MinExponent<L>) -> L::F;

    /// Like [`Number::operand`], but denormals stay, and the smallest exponent field is 0 if there are any.
    fn raw_operand<L: Lanes>(l: L, v: L::F, min_exp: &mut MinExponent<L>) -> L::F;

    /// Like [`Number::operand`] for values that are first rounded to this type.
    fn rounded<L: Lanes>(l: L, v: L::F, min_exp: &mut MinExponent<L>) -> L::F;

    /// Runs a product. `no_flush`: no result can be tiny, see [`on_lattice`](crate::cpu::gemm_bf16::on_lattice).
    fn product(simd: Simd, no_flush: bool, product: Product<'_>);
}

impl Number for f32 {
    const STEP: usize = 1;
    const PAIRED: bool = false;

    #[inline(always)]
    fn plain(x: &[f32]) -> Option<&[f32]> {
        Some(x)
    }
    #[inline(always)]
    fn operand<L: Lanes>(_: L, v: L::F, _: &mut MinExponent<L>) -> L::F {
        v
    }
    #[inline(always)]
    fn raw_operand<L: Lanes>(_: L, v: L::F, _: &mut MinExponent<L>) -> L::F {
        v
    }
    #[inline(always)]
    fn rounded<L: Lanes>(_: L, v: L::F, _: &mut MinExponent<L>) -> L::F {
        v
    }
    #[inline(always)]
    fn product(simd: Simd, _: bool, product: Product<'_>) {
        lanes::dispatch(simd, product::ProductKernel::<product::Chain>::new(product));
    }
}

impl Number for bf16 {
    const STEP: usize = 2;
    const PAIRED: bool = true;

    #[inline(always)]
    fn plain(_: &[bf16]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn operand<L: Lanes>(l: L, v: L::F, min_exp: &mut MinExponent<L>) -> L::F {
        let v = without_denormals(l, v);
        min_exp.update(l, v);
        v
    }
    #[inline(always)]
    fn raw_operand<L: Lanes>(l: L, v: L::F, min_exp: &mut MinExponent<L>) -> L::F {
        min_exp.update(l, v);
        v
    }
    #[inline(always)]
    fn rounded<L: Lanes>(l: L, v: L::F, min_exp: &mut MinExponent<L>) -> L::F {
        bf16::operand(l, l.round_bf16(v), min_exp)
    }
    #[inline(always)]
    fn product(simd: Simd, no_flush: bool, product: Product<'_>) {
        if no_flush {
            lanes::dispatch(simd, product::ProductKernel::<product::Blocks<false>>::new(product));
        } else {
            lanes::dispatch(simd, product::ProductKernel::<product::Blocks<true>>::new(product));
        }
    }
}

/// Replaces denormals by zeros of their sign.
#[inline(always)]
pub(super) fn without_denormals<L: Lanes>(l: L, v: L::F) -> L::F {
    let magnitude = l.max(v, l.neg(v));
    l.select_lt(magnitude, Lanes::splat(l, f32::MIN_POSITIVE), Lanes::mul(l, v, l.zero()), v)
}
