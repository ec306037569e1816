//! bf16 matrix products on the CPU in the order of docs/numerics.md, section 2: blocks of 32 along the
//! depth, zero-padded; in each an fma chain over the even and one over the odd elements, both from +0;
//! `y = y + (even + odd)`; operands with exponent field 0 and results that are tiny after rounding are
//! zeros of their sign. That is what AMX's `tdpbf16ps` does, and what [`model`] spells out.
//!
//! Without AMX, plain lanes give the same bits where no result can be tiny. *The lattice argument:* if
//! the smallest exponents of the non-zero operands are ea and eb, every product is a multiple of
//! L = 2^(ea + eb - 14), and so is every sum of such, rounded or not (rounding goes to a multiple of an
//! ulp >= L, or is exact). So if L >= 2^-126, a result is zero or at least 2^-126: nothing to flush.
//! A y to continue from must lie on that lattice too: 0, or at least 2^-103. TilePanels for which this does
//! not hold take a path that looks at every result and repeats a block by the model where one is tiny.
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

use crate::dtype::{from_bf16, to_bf16};

/// Depth of a block.
pub(crate) const BLOCK: usize = 32;

/// No exponent: all finite elements are zero.
const NO_EXPONENT: u8 = u8::MAX;

/// An element that enters a bf16 product.
pub(crate) trait Operand: Copy + Send + Sync {
    /// It as bf16: rounded at its entry if it is wider, a denormal as zero of its sign.
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

/// Up to N values as they round_daz, then +0.
#[inline(always)]
fn round_daz<T: Operand, const N: usize>(values: &[T], out: &mut [bf16; N]) {
    if let Ok(values) = <&[T; N]>::try_from(values) {
        // a loop of known length: it is vectorised
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

/// The smallest exponent field of non-zero elements that have [entered](Operand::round_daz).
#[inline(always)]
fn min_exponent(rows: &[Pairs]) -> u8 {
    let mut low = [u16::MAX; 32];
    for row in rows {
        for (low, x) in low.iter_mut().zip(&row.0) {
            // one less, so that a zero's field is the largest
            *low = (*low).min((x.to_bits() & 0x7f80).wrapping_sub(0x80));
        }
    }
    let low = low.into_iter().fold(u16::MAX, u16::min);
    if low > 0x7f80 { NO_EXPONENT } else { (low >> 7) as u8 + 1 }
}

/// Whether products of operands with these smallest exponent fields are multiples of 2^-126.
fn on_lattice(a: u8, b: u8) -> bool {
    a == NO_EXPONENT || b == NO_EXPONENT || u32::from(a) + u32::from(b) >= 142
}

/// The least magnitude of a running y, other than zero, that lies on the lattice: 2^-103.
const LATTICE_MIN: f32 = f32::from_bits(24 << 23);

/// The widened element.
#[inline]
fn widen(x: bf16) -> f32 {
    from_bf16(x)
}

#[cfg(test)]
mod tests;
