//! One register of one instruction set: what a new set has to supply.
use std::fmt::Debug;
use std::ops::IndexMut;

use half::bf16;

/// A zero-sized token of an instruction set, and its operations on one register of `WIDTH` f32 lanes.
///
/// They are associated functions, not methods, so that `l.add(..)` is always the one of 32 lanes.
/// Each is one IEEE operation per lane, denormals kept.
pub(crate) trait Reg: Copy + Debug + Send + Sync + 'static {
    /// A register.
    type R: Copy;
    /// A comparison's answer, per lane.
    type M: Copy;
    /// 32 lanes: an array of registers.
    type F: Copy + IndexMut<usize, Output = Self::R>;
    /// Lanes of a register.
    const WIDTH: usize;
    /// Registers of 32 lanes.
    const REGS: usize = super::LANES / Self::WIDTH;
    /// Rows of a product's tile: as many as the registers hold of tiles two registers across, or
    /// [`Reg::WIDE_ROWS`].
    const TILE_ROWS: usize;
    /// Up to this many rows a tile is four registers across, up to half as many eight.
    const WIDE_ROWS: usize;

    /// `r` in every register.
    fn fill(self, r: Self::R) -> Self::F;
    /// `x` in every lane.
    fn splat(isa: Self, x: f32) -> Self::R;
    /// Asks for the line of cache at `p`, whatever that is.
    fn prefetch_l1(isa: Self, p: *const f32);
    /// The same, into the second level of cache: what is not read soon must not push out what is.
    fn prefetch_l2(isa: Self, p: *const f32);
    /// `WIDTH` elements.
    ///
    /// # Safety
    /// `p` is readable for `WIDTH` elements.
    unsafe fn load(isa: Self, p: *const f32) -> Self::R;
    /// The first `n <= WIDTH` elements, +0 in the other lanes.
    ///
    /// # Safety
    /// `p` is readable for `n` elements.
    unsafe fn load_first(isa: Self, p: *const f32, n: usize) -> Self::R;
    /// Writes `WIDTH` elements.
    ///
    /// # Safety
    /// `p` is writable for `WIDTH` elements.
    unsafe fn store(isa: Self, p: *mut f32, v: Self::R);
    /// Writes the first `n <= WIDTH` lanes.
    ///
    /// # Safety
    /// `p` is writable for `n` elements.
    unsafe fn store_first(isa: Self, p: *mut f32, n: usize, v: Self::R);
    /// `WIDTH` elements, widened.
    ///
    /// # Safety
    /// `p` is readable for `WIDTH` elements.
    unsafe fn load_bf16(isa: Self, p: *const bf16) -> Self::R;
    /// Writes `WIDTH` elements, rounded (ties to even, NaN to 0x7fff).
    ///
    /// # Safety
    /// `p` is writable for `WIDTH` elements.
    unsafe fn store_bf16(isa: Self, p: *mut bf16, v: Self::R);
    /// `WIDTH` pairs: the even elements (low halves) and the odd ones (high halves), widened.
    ///
    /// # Safety
    /// `p` is readable for `2 * WIDTH` elements.
    unsafe fn load_pairs(isa: Self, p: *const bf16) -> (Self::R, Self::R);
    /// `a * b + c`, rounded once.
    fn fma(isa: Self, a: Self::R, b: Self::R, c: Self::R) -> Self::R;
    /// `a + b`.
    fn add(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    /// `a - b`.
    fn sub(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    /// `a * b`.
    fn mul(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    /// `a / b`.
    fn div(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    /// The square root.
    fn sqrt(isa: Self, a: Self::R) -> Self::R;
    /// `b > a ? b : a`.
    fn max(isa: Self, a: Self::R, b: Self::R) -> Self::R;
    /// `-a`.
    fn neg(isa: Self, a: Self::R) -> Self::R;
    /// The nearest bf16, still as f32 (ties to even, NaN to 0x7fff).
    fn round_bf16(isa: Self, a: Self::R) -> Self::R;
    /// `bits(p) + (bits(t) << 23)`: p scaled by a power of two that stands in t's low bits.
    fn scale(isa: Self, p: Self::R, t: Self::R) -> Self::R;
    /// `a < b`; a NaN compares false.
    fn lt(isa: Self, a: Self::R, b: Self::R) -> Self::M;
    /// Whether a lane is NaN.
    fn is_nan(isa: Self, a: Self::R) -> Self::M;
    /// `m ? yes : no`.
    fn select(isa: Self, m: Self::M, yes: Self::R, no: Self::R) -> Self::R;
    /// The lanes of both in turn: `a[0], b[0], a[1], b[1], ...`, the first and the second half.
    fn zip(isa: Self, a: Self::R, b: Self::R) -> (Self::R, Self::R);
    /// The butterfly sum of a register: `v[t] + v[t ^ o]` for o = WIDTH / 2, ..., 1.
    fn sum(isa: Self, v: Self::R) -> f32;
    /// The largest lane.
    fn maximum(isa: Self, v: Self::R) -> f32;
    /// Whether any lane is non-zero and no larger in magnitude than 2^-126: where a flush may be due.
    fn any_tiny(isa: Self, v: Self::R) -> bool;
}
