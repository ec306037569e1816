//! Operations on one register. Each instruction set implements this trait.
use std::fmt::Debug;
use std::ops::IndexMut;

use half::bf16;

use crate::fma::ScalarFma;

/// Lanes per value.
pub(crate) const LANES: usize = 32;

/// A zero-sized token of an instruction set, with the operations on one register of `WIDTH` f32 lanes.
///
/// They are associated functions, not methods, so that `l.add(..)` is always the operation on 32 lanes. Each is one
/// IEEE operation per lane; denormals are kept.
///
/// # Safety
/// The unsafe functions access the stated number of elements at `p`, which must be readable or writable.
pub(crate) trait Reg: ScalarFma + Copy + Debug + Send + Sync + 'static {
    type R: Copy;
    /// A lane mask, the result of a comparison.
    type M: Copy;
    /// 32 lanes as an array of registers.
    type F: Copy + IndexMut<usize, Output = Self::R>;
    /// Lanes per register.
    const WIDTH: usize;
    /// Registers per 32 lanes.
    const REGS: usize = LANES / Self::WIDTH;
    /// Maximum rows of a tile: as many as the register file holds for a tile two registers wide (register
    /// blocking), but at least [`Reg::WIDE_ROWS`].
    const TILE_ROWS: usize;
    /// Maximum rows of a tile of an f32 product. With few registers, tiles as wide as a panel need fewer loads per fma
    /// than taller ones of half its width.
    const GEMM_ROWS: usize = Self::TILE_ROWS;
    /// Tiles of up to this many rows are four registers wide, of up to half as many eight.
    const WIDE_ROWS: usize;

    /// Broadcasts `r` to all registers.
    fn fill(self, r: Self::R) -> Self::F;
    /// Broadcasts `x` to all lanes.
    fn splat(isa: Self, x: f32) -> Self::R;
    /// Prefetches the cache line at `p` into the L1 cache. `p` may be any address.
    fn prefetch_l1(isa: Self, p: *const f32);
    /// Prefetches the cache line at `p` into the L2 cache. For data that is not read soon: it must not evict data
    /// from the L1 cache. `p` may be any address.
    fn prefetch_l2(isa: Self, p: *const f32);
    /// Loads `WIDTH` elements.
    unsafe fn load(isa: Self, p: *const f32) -> Self::R;
    /// Loads the first `n <= WIDTH` elements. The other lanes are +0.
    unsafe fn load_first(isa: Self, p: *const f32, n: usize) -> Self::R;
    /// Stores `WIDTH` elements.
    unsafe fn store(isa: Self, p: *mut f32, v: Self::R);
    /// Stores the first `n <= WIDTH` lanes.
    unsafe fn store_first(isa: Self, p: *mut f32, n: usize, v: Self::R);
    /// Loads `WIDTH` elements as f32.
    unsafe fn load_bf16(isa: Self, p: *const bf16) -> Self::R;
    /// Stores `WIDTH` elements, rounded (ties to even, NaN to 0x7fff).
    unsafe fn store_bf16(isa: Self, p: *mut bf16, v: Self::R);
    /// Loads `WIDTH` pairs as f32. Returns the even elements (low halves) and the odd elements (high halves).
    unsafe fn load_pairs(isa: Self, p: *const bf16) -> (Self::R, Self::R);
    /// Loads `WIDTH` signed bytes as f32.
    unsafe fn load_i8(isa: Self, p: *const i8) -> Self::R;
    /// `a * b + c`, rounded once.
    fn fma(isa: Self, a: Self::R, b: Self::R, c: Self::R) -> Self::R;
    fn add(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    fn sub(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    fn mul(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    fn div(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    fn sqrt(isa: Self, a: Self::R) -> Self::R;
    /// `b > a ? b : a`.
    fn max(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    fn neg(isa: Self, a: Self::R) -> Self::R;
    /// Rounds to the nearest bf16, kept as f32 (ties to even, NaN to 0x7fff).
    fn round_bf16(isa: Self, a: Self::R) -> Self::R;
    /// `bits(p) + (bits(t) << 23)`: scales p by a power of two whose exponent is in the low bits of t.
    fn scale(isa: Self, p: Self::R, t: Self::R) -> Self::R;
    /// The lowest four bits of each lane as f32: 0 to 15.
    fn nibble(isa: Self, bits: Self::R) -> Self::R;
    /// The lowest four bits of each lane, less 8, as f32: -8 to 7.
    fn centered_nibble(isa: Self, bits: Self::R) -> Self::R;
    /// The bits of each lane, shifted right by four.
    fn next_nibble(isa: Self, bits: Self::R) -> Self::R;
    /// `a < b`. NaN compares false.
    fn lt(isa: Self, a: Self::R, b: Self::R) -> Self::M;
    fn is_nan(isa: Self, a: Self::R) -> Self::M;
    /// `m ? yes : no`.
    fn select(isa: Self, m: Self::M, yes: Self::R, no: Self::R) -> Self::R;
    /// Interleaves the lanes of `a` and `b`: `a[0], b[0], a[1], b[1], ...`. Returns the first and the second half.
    fn zip(isa: Self, a: Self::R, b: Self::R) -> (Self::R, Self::R);
    /// Butterfly sum of a register: `v[t] + v[t ^ o]` for o = WIDTH / 2, ..., 1.
    fn sum(isa: Self, v: Self::R) -> f32;
    fn maximum(isa: Self, v: Self::R) -> f32;
    /// `min(bits(least), 2 bits(|v|) - 1)`, unsigned and modulo 2^32, so that zeros are the largest.
    fn least_size(isa: Self, least: Self::R, v: Self::R) -> Self::R;
    /// Whether any lane is non-zero with a magnitude of at most 2^-126, where flushing to zero may be necessary.
    fn any_tiny(isa: Self, v: Self::R) -> bool;
}
