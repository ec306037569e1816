//! Rows of queries, keys and values, brought together as f32.
use std::ops::Range;

use super::number::{Least, Number};
use super::rows::{CHUNK, widen};
use crate::cpu::lanes::{LANES, Lanes, Reg};
use crate::operands::Slots;

/// Copies one row of `x` to `out`, which is at least as long; what is left of it becomes +0.
#[inline(always)]
pub(super) fn row<L: Lanes, E: Number>(l: L, x: &[E], out: &mut [f32], least: &mut Least<L>) {
    for (i, out) in out.chunks_exact_mut(LANES).enumerate() {
        let v = E::load(l, &x[x.len().min(i * LANES)..]);
        l.store(out, E::operand(l, v, least));
    }
}

/// One sequence's part of a pool, as one head reads it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) slots: &'a Slots,
    pub(super) seq: u32,
    pub(super) nkv: usize,
    pub(super) kv: usize,
    pub(super) hd: usize,
    /// The sequence and the head whose turn is next, at the same positions.
    pub(super) next: Option<(u32, usize)>,
}

impl Keys<'_> {
    /// The slots `seen` of chunk `c`, widened to whole steps of a product with zeros: as they lie in `x`
    /// where they can be read there, else copied to `buffer`, of 64 rows of `width`.
    #[inline(always)]
    pub(super) fn chunk<'x, L: Lanes, E: Number>(
        self,
        l: L,
        x: &'x [E],
        (c, seen): (usize, Range<usize>),
        (buffer, width): (&'x mut [f32], usize),
        least: &mut Least<L>,
    ) -> Chunk<'x> {
        if let Some(chunk) = self.in_place(x, (c, &seen), width) {
            return chunk;
        }
        let first = c * CHUNK + seen.start;
        let wide = widen(seen.clone(), E::STEP);
        buffer[wide.start * width..seen.start * width].fill(0.0);
        buffer[seen.end * width..wide.end * width].fill(0.0);
        let out = (&mut buffer[seen.start * width..], width);
        self.copy(l, x, first..c * CHUNK + seen.end, out, least);
        Chunk { rows: buffer, stride: width }
    }

    /// The slots `seen` of chunk `c` as they lie in `x`, if a product can read them there.
    #[inline(always)]
    fn in_place<'x, E: Number>(
        self,
        x: &'x [E],
        (c, seen): (usize, &Range<usize>),
        width: usize,
    ) -> Option<Chunk<'x>> {
        let first = c * CHUNK + seen.start;
        let whole = self.hd == width && self.slots.run_length(first) >= seen.len();
        let start = self.slots.slot(self.seq, first).checked_sub(seen.start).filter(|_| whole)?;
        let rows = &E::plain(x)?[(start * self.nkv + self.kv) * self.hd..];
        Some(Chunk { rows, stride: self.nkv * self.hd })
    }

    /// Copies the rows of positions `range`, one below the other, each of `width` values.
    #[inline(always)]
    pub(super) fn copy<L: Lanes, E: Number>(
        self,
        l: L,
        x: &[E],
        range: Range<usize>,
        (out, width): (&mut [f32], usize),
        least: &mut Least<L>,
    ) {
        let mut out = out.chunks_exact_mut(width);
        let mut pos = range.start;
        while pos < range.end {
            let run = self.slots.run_length(pos).min(range.end - pos);
            let first = (self.slots.slot(self.seq, pos) * self.nkv + self.kv) * self.hd;
            let mut ahead = self.behind(x, pos..pos + run);
            for i in 0..run {
                ahead.ask(l, ahead.bytes.div_ceil(LINE));
                let start = first + i * self.nkv * self.hd;
                let out = out.next().expect("room for every position");
                row(l, &x[start..start + self.hd], out, least);
            }
            pos += run;
        }
    }

    /// What the next turn will read at the slots `part` of chunk `c`, unless the slots `seen` of this turn are
    /// copied: a copy asks for what is behind it by itself.
    #[inline(always)]
    pub(super) fn ahead<E: Number>(
        self,
        x: &[E],
        (c, seen): (usize, &Range<usize>),
        part: Range<usize>,
        width: usize,
    ) -> Ahead {
        match part.is_empty() || self.in_place(x, (c, seen), width).is_none() {
            true => Ahead::nothing(),
            false => self.behind(x, c * CHUNK + part.start..c * CHUNK + part.end),
        }
    }

    /// What the next turn will read at positions `range`, as far as that is one run.
    #[inline(always)]
    fn behind<E: Number>(self, x: &[E], range: Range<usize>) -> Ahead {
        let Some((seq, kv)) = self.next else { return Ahead::nothing() };
        let Some(slot) = self.slots.get(seq, range.start) else { return Ahead::nothing() };
        let (bytes, rows) = (self.hd * size_of::<E>(), range.len().min(self.slots.run_length(range.start)));
        let row = x.as_ptr().wrapping_add((slot * self.nkv + kv) * self.hd).cast();
        Ahead { row, stride: self.nkv * bytes, bytes, at: 0, lines: rows * bytes.div_ceil(LINE) }
    }
}

/// Rows that are read soon, to be asked for a few lines at a time: one head's lie too far apart for the processor
/// to guess, and where all of them are asked for at once they are waited for.
#[derive(Debug)]
pub(super) struct Ahead {
    row: *const f32,
    /// Bytes from one row to the next, and of a row.
    stride: usize,
    bytes: usize,
    /// Bytes of the row asked for so far.
    at: usize,
    /// Lines left.
    lines: usize,
}

impl Ahead {
    /// No rows.
    pub(super) fn nothing() -> Ahead {
        Ahead { row: std::ptr::null(), stride: 0, bytes: 0, at: 0, lines: 0 }
    }

    /// Asks for the next `lines` lines.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&mut self, l: L, lines: usize) {
        let lines = lines.min(self.lines);
        for _ in 0..lines {
            Reg::fetch_far(l, self.row.wrapping_byte_add(self.at));
            self.at += LINE;
            if self.at >= self.bytes {
                (self.row, self.at) = (self.row.wrapping_byte_add(self.stride), 0);
            }
        }
        self.lines -= lines;
    }

    /// Lines for each of so many times to ask.
    #[inline(always)]
    pub(super) fn share(&self, times: usize) -> usize {
        self.lines.div_ceil(times.max(1))
    }
}

/// Bytes of a line of cache.
const LINE: usize = 64;

/// Keys or values of a chunk: that of slot j begins at `j * stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub(super) rows: &'a [f32],
    pub(super) stride: usize,
}

/// `out[d * 64 + j] = chunk[j][d]` for d below `width` (a multiple of 32) and j in `keys`, a part of
/// `0..64`; columns beside it may be overwritten. Asks for as many lines of `ahead` as it reads.
#[inline(always)]
pub(super) fn transpose<L: Lanes>(
    l: L,
    chunk: Chunk<'_>,
    width: usize,
    keys: Range<usize>,
    (out, ahead): (&mut [f32], &mut Ahead),
) {
    let Chunk { rows, stride } = chunk;
    if keys.is_empty() {
        return;
    }
    let last = keys.end - 1;
    assert!(last < CHUNK && rows.len() >= last * stride + width && out.len() >= CHUNK * width);
    let w = L::WIDTH;
    for j in (keys.start / w * w..keys.end).step_by(w) {
        for d in (0..width).step_by(w) {
            let mut square = [Reg::splat(l, 0.0); 16];
            ahead.ask(l, w * w * size_of::<f32>() / LINE);
            // wrapping arithmetic, though nothing wraps: a check for each address keeps the square out of registers
            let from = rows.as_ptr().wrapping_add(j.wrapping_mul(stride).wrapping_add(d));
            // SAFETY: d + w <= width and j + w <= 64, all multiples of w, and no row behind the last is
            // read: rows and columns are inside the slices, as checked above.
            unsafe {
                for (i, r) in square.iter_mut().enumerate().take(w) {
                    *r = Reg::load(l, from.wrapping_add(i.min(last - j).wrapping_mul(stride)));
                }
                l.transpose(&mut square);
                let to = out.as_mut_ptr().add(d * CHUNK + j);
                for (i, &r) in square.iter().enumerate().take(w) {
                    Reg::store(l, to.add(i * CHUNK), r);
                }
            }
        }
    }
}
