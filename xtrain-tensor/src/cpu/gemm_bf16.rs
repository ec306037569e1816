//! bf16 matrix products on the CPU in the order of docs/numerics.md, section 2: blocks of 32 along the depth,
//! zero-padded. Each block is an fma chain over its even and one over its odd elements, both from +0;
//! `y = y + (even + odd)`. Operands with exponent field 0 and results that are tiny after rounding are zeros of their
//! sign. This is exactly AMX's `tdpbf16ps`; [`model`] is its scalar implementation.
//!
//! Without AMX, plain SIMD gives the same bits if no result can be tiny. *The lattice argument:* if the smallest
//! exponents of the non-zero operands are ea and eb, every product is a multiple of L = 2^(ea + eb - 14). So is every
//! sum of products, rounded or not: rounding goes to a multiple of an ulp >= L, or is exact. If L >= 2^-126, each
//! result is zero or at least 2^-126, and nothing is flushed. With beta = 1, the old y must be on that lattice too:
//! 0, or at least 2^-103. Tiles for which this does not hold use a slow path. It checks every result and recomputes a
//! block with the model if one is tiny.
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod forward;
mod gradient;
mod left;
mod model;
mod tile;
mod tiles;

pub(crate) use forward::product;
pub(crate) use gradient::weight_gradient;
pub(crate) use left::PackedA;
pub(crate) use tiles::{TilePanels, View};

use half::bf16;
use tiles::Pairs;

use super::lanes::{Lanes, Reg};
use crate::dtype::{from_bf16, to_bf16};

/// Depth of a block.
pub(crate) const BLOCK: usize = 32;

/// The exponent field of an operand whose finite elements are all zero.
pub(crate) const NO_EXPONENT: u8 = u8::MAX;

/// An element type of the operands of bf16 products.
pub(crate) trait Operand: Copy + Send + Sync {
    /// Rounds to bf16 if the type is wider. A denormal becomes zero of its sign.
    fn round_daz(self) -> bf16;
}

impl Operand for bf16 {
    #[inline(always)]
    fn round_daz(self) -> bf16 {
        let b = self.to_bits();
        bf16::from_bits(if b & 0x7f80 == 0 { b & 0x8000 } else { b })
    }
}

impl Operand for f32 {
    #[inline(always)]
    fn round_daz(self) -> bf16 {
        to_bf16(self).round_daz()
    }
}

/// Converts up to N values; the rest of `out` becomes +0.
#[inline(always)]
fn round_daz<T: Operand, const N: usize>(values: &[T], out: &mut [bf16; N]) {
    if let Ok(values) = <&[T; N]>::try_from(values) {
        // a loop of constant length is vectorised
        for (to, x) in out.iter_mut().zip(values) {
            *to = x.round_daz();
        }
    } else {
        out.fill(bf16::ZERO);
        for (to, x) in out.iter_mut().zip(values) {
            *to = x.round_daz();
        }
    }
}

/// The smallest exponent field of the non-zero elements of [converted](Operand::round_daz) rows.
#[inline(always)]
fn min_exponent(rows: &[Pairs]) -> u8 {
    let mut min = [u16::MAX; 32];
    for row in rows {
        for (min, x) in min.iter_mut().zip(&row.0) {
            // subtract one, so that the field of zero becomes the largest
            *min = (*min).min((x.to_bits() & 0x7f80).wrapping_sub(0x80));
        }
    }
    let min = min.into_iter().fold(u16::MAX, u16::min);
    if min > 0x7f80 { NO_EXPONENT } else { (min >> 7) as u8 + 1 }
}

/// The running minimum of the exponents of an operand's non-zero values, in lanes. It holds their smallest magnitude,
/// negated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinExponent<L: Reg>(L::F);

impl<L: Lanes> MinExponent<L> {
    /// The minimum of no values.
    #[inline(always)]
    pub(crate) fn new(l: L) -> Self {
        MinExponent(Lanes::splat(l, f32::NEG_INFINITY))
    }

    /// Takes values with these magnitudes into account. Zeros and denormals are ignored.
    #[inline(always)]
    pub(crate) fn update(&mut self, l: L, magnitude: L::F) {
        let bound = Lanes::splat(l, f32::MIN_POSITIVE);
        let none = Lanes::splat(l, f32::NEG_INFINITY);
        self.0 = l.max(self.0, l.select_lt(magnitude, bound, none, l.neg(magnitude)));
    }

    /// The smallest exponent field over all lanes. Without a non-zero finite value it is that of infinity, which is
    /// [`NO_EXPONENT`].
    #[inline(always)]
    pub(crate) fn field(self, l: L) -> u8 {
        ((-l.max32(self.0)).to_bits() >> 23) as u8
    }
}

/// Whether all products of two operands with these smallest exponent fields are multiples of 2^-126.
#[inline(always)]
pub(crate) fn on_lattice(a: u8, b: u8) -> bool {
    a == NO_EXPONENT || b == NO_EXPONENT || u32::from(a) + u32::from(b) >= 142
}

/// The smallest non-zero magnitude of an old y that is on the lattice: 2^-103.
const LATTICE_MIN: f32 = f32::from_bits(24 << 23);

#[inline]
fn widen(x: bf16) -> f32 {
    from_bf16(x)
}

#[cfg(test)]
mod tests;
