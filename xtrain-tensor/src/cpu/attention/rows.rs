//! Ranges of visible keys inside a chunk of 64, and masks.
use std::ops::Range;

use crate::cpu::lanes::{LANES, Lanes};
use crate::faults::{self, Fault};

/// Below this number of multiplications (about 5 us) attention runs on the calling thread.
pub(super) const SERIAL: usize = 1 << 17;

/// Keys per chunk.
pub(super) const CHUNK: usize = 64;

/// Maximum rows of a product in registers.
pub(super) const STRIP: usize = 12;

const INDEX: [f32; LANES] = {
    let mut index = [0.0; LANES];
    let mut i = 0;
    while i < LANES {
        index[i] = i as f32;
        i += 1;
    }
    index
};

/// `x + 0`, the end of every reduction. It makes padding with zeros bit-neutral.
#[inline(always)]
pub(super) fn no_minus_zero<L: Lanes>(l: L, x: L::F) -> L::F {
    let zero = if faults::on(Fault::FinalZeroNotAdded) { Lanes::splat(l, -0.0) } else { l.zero() };
    Lanes::add(l, x, zero)
}

/// The part of `range` inside chunk `c`, relative to the start of the chunk.
#[inline(always)]
pub(super) fn within(range: &Range<usize>, c: usize) -> Range<usize> {
    let clamp = |x: usize| x.saturating_sub(c * CHUNK).min(CHUNK);
    clamp(range.start)..clamp(range.end)
}

/// The smallest range that contains both. Empty ranges are ignored.
#[inline(always)]
pub(super) fn union(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

/// Extends `range` to multiples of `step`.
#[inline(always)]
pub(super) fn widen(range: Range<usize>, step: usize) -> Range<usize> {
    range.start / step * step..range.end.next_multiple_of(step)
}

/// `v` in the lanes of half `half` (0 or 1) whose slots are in `visible`, `other` in the rest.
#[inline(always)]
pub(super) fn masked<L: Lanes>(l: L, half: usize, visible: &Range<usize>, v: L::F, other: L::F) -> L::F {
    let (from, to) = (half * LANES, (half + 1) * LANES);
    if visible.start <= from && visible.end >= to {
        return v;
    }
    let index = l.load(&INDEX);
    let bound = |x: usize| Lanes::splat(l, x as f32 - from as f32);
    let v = l.select_lt(index, bound(visible.start), other, v);
    l.select_lt(index, bound(visible.end), v, other)
}
