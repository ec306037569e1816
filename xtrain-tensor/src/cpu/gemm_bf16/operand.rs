//! Operands of bf16 products: their conversion, their smallest exponents, and the lattice of their products.
use half::bf16;

use super::pairs::Pairs;
use crate::cpu::lanes::{LANES, Lanes, Reg};
use crate::dtype::{from_bf16, to_bf16};

/// Depth of a block.
pub(crate) const BLOCK: usize = 32;

/// The exponent field of an operand whose finite elements are all zero.
pub(crate) const NO_EXPONENT: u8 = u8::MAX;

/// An element type of the operands of bf16 products.
pub(crate) trait Operand: Copy + Send + Sync {
    /// Rounds to bf16 if the type is wider. A denormal becomes zero of its sign.
    #[inline(always)]
    fn round_daz(self) -> bf16 {
        bf16::from_bits(self.round_daz_bits() as u16)
    }

    /// The bits of [`Operand::round_daz`].
    fn round_daz_bits(self) -> u32;

    /// Converts a block, in a loop of constant length that is vectorized.
    fn round_daz_block(values: &[Self; BLOCK], out: &mut [bf16; BLOCK]);

    /// The elements as bf16 with denormals, if they need no rounding.
    fn in_place(values: &[Self]) -> Option<&[bf16]>;
}

impl Operand for bf16 {
    fn in_place(values: &[bf16]) -> Option<&[bf16]> {
        Some(values)
    }
    /// Converts two elements per word: not every instruction set has instructions for 16 bits.
    #[inline(always)]
    fn round_daz_block(values: &[bf16; BLOCK], out: &mut [bf16; BLOCK]) {
        let mut words = Pairs(*values).words();
        for word in &mut words {
            let low = if *word & 0x7f80 == 0 { 0x8000 } else { 0xffff };
            let high = if *word & 0x7f80_0000 == 0 { 0x8000_0000 } else { 0xffff_0000 };
            *word &= low | high;
        }
        *out = Pairs::of_words(words).0;
    }
    #[inline(always)]
    fn round_daz_bits(self) -> u32 {
        let b = u32::from(self.to_bits());
        if b & 0x7f80 == 0 { b & 0x8000 } else { b }
    }
}

impl Operand for f32 {
    fn in_place(_: &[f32]) -> Option<&[bf16]> {
        None
    }
    #[inline(always)]
    fn round_daz_block(values: &[f32; BLOCK], out: &mut [bf16; BLOCK]) {
        for (to, x) in out.iter_mut().zip(values) {
            *to = x.round_daz();
        }
    }
    #[inline(always)]
    fn round_daz_bits(self) -> u32 {
        to_bf16(self).round_daz_bits()
    }
}

/// Converts up to 32 values; the rest of `out` becomes +0.
#[inline(always)]
pub(super) fn round_daz<T: Operand>(values: &[T], out: &mut [bf16; BLOCK]) {
    if let Ok(values) = <&[T; BLOCK]>::try_from(values) {
        T::round_daz_block(values, out);
    } else {
        out.fill(bf16::ZERO);
        for (to, x) in out.iter_mut().zip(values) {
            *to = x.round_daz();
        }
    }
}

/// The running minimum of the exponents of non-zero values, in lanes: the bits of their magnitude, doubled, less one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinExponent<L: Reg>(L::F);

impl<L: Lanes> MinExponent<L> {
    /// The minimum of no values.
    #[inline(always)]
    pub(crate) fn new(l: L) -> Self {
        MinExponent(Lanes::splat(l, f32::from_bits(u32::MAX)))
    }

    /// Takes values into account. Zeros and NaN are ignored.
    #[inline(always)]
    pub(crate) fn update(&mut self, l: L, v: L::F) {
        self.0 = l.least_size(self.0, v);
    }

    /// The smallest exponent field over all lanes: 0 if a value is denormal; [`NO_EXPONENT`], that of infinity, if no
    /// finite value is non-zero.
    #[inline(always)]
    pub(crate) fn field(self, l: L) -> u8 {
        let mut lanes = [0.0f32; LANES];
        l.store(&mut lanes, self.0);
        let mut least = u32::MAX;
        for size in lanes {
            least = least.min(size.to_bits());
        }
        least.checked_add(1).map_or(NO_EXPONENT, |twice| (twice >> 24) as u8)
    }
}

/// Whether all products of two operands are multiples of 2^-126. `a`, `b`: lower bounds of the exponent fields of their
/// non-zero elements, denormals not counted.
#[inline(always)]
pub(crate) fn on_lattice(a: u8, b: u8) -> bool {
    a == NO_EXPONENT || b == NO_EXPONENT || u32::from(a) + u32::from(b) >= 142
}

/// The smallest non-zero magnitude of an old y that is on the lattice: 2^-103.
pub(super) const LATTICE_MIN: f32 = f32::from_bits(24 << 23);

#[inline]
pub(super) fn widen(x: bf16) -> f32 {
    from_bf16(x)
}
