//! bf16 matrix products on the CPU in the order of docs/numerics.md, section 2: blocks of 32 along the depth,
//! zero-padded. Each block is an fma chain over its even and one over its odd elements, both from +0;
//! `y = y + (even + odd)`. Operands with exponent field 0 and results that are tiny after rounding are zeros of their
//! sign. This is exactly AMX's `tdpbf16ps`; its scalar implementation is [`Bf16`](crate::reference::Bf16).
//!
//! `vdpbf16ps` gives the same bits on pairs of elements of one parity: see [`pairing`].
//!
//! Plain SIMD gives the same bits if no result can be tiny. *The lattice argument:* if the smallest
//! exponents of the non-zero operands are ea and eb, every product is a multiple of L = 2^(ea + eb - 14). So is every
//! sum of products, rounded or not: rounding goes to a multiple of an ulp >= L, or is exact. If L >= 2^-126, each
//! result is zero or at least 2^-126, and nothing is flushed. With beta = 1, the old y must be on that lattice too:
//! 0, or at least 2^-103. Tiles for which this does not hold use a slow path. It checks every result and recomputes a
//! block with the model if one is tiny.
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod epilogue;
mod exponents;
#[cfg(target_arch = "x86_64")]
mod few_rows;
mod forward;
mod gradient;
mod left;
mod operand;
mod output;
#[cfg(target_arch = "x86_64")]
mod pair_dot;
#[cfg(target_arch = "x86_64")]
mod pair_product;
mod pairing;
mod pairs;
#[cfg(target_arch = "x86_64")]
mod sums;
mod tile;
mod tiles;

#[cfg(target_arch = "x86_64")]
pub(crate) use few_rows::{FewRows, TileRows};
pub(crate) use forward::product;
pub(crate) use gradient::weight_gradient;
pub(crate) use left::PackedA;
#[cfg(target_arch = "x86_64")]
pub(crate) use left::Rows;
pub(crate) use operand::{BLOCK, MinExponent, NO_EXPONENT, Operand, on_lattice};
pub(crate) use output::Output;
#[cfg(target_arch = "x86_64")]
pub(crate) use pair_product::{PairDot, PairProduct, TileDot};
pub(crate) use pairs::Pairs;
#[cfg(target_arch = "x86_64")]
pub(crate) use pairs::{TILE, flat};
pub(crate) use tiles::TilePanels;
#[cfg(target_arch = "x86_64")]
pub(crate) use tiles::{View, transpose_pairs};

#[cfg(test)]
mod tests;
