//! Copies and views of query, key and value rows as f32.
use std::ops::Range;
use std::slice::ChunksExactMut;

#[cfg(target_arch = "x86_64")]
use half::bf16;

use super::chunk::Chunk;
use super::kv_element::KvElement;
use super::number::{Number, without_denormals};
use super::rows::{CHUNK, widen};
use crate::cpu::gemm_bf16::MinExponent;
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm_bf16::{TILE, TileRows};
use crate::cpu::lanes::{LANES, Lanes, Reg};
use crate::faults::{self, Fault};
use crate::operands::Slots;

/// The keys or values of one sequence and one kv head in a pool of slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadView<'a> {
    pub(super) slots: &'a Slots,
    pub(super) seq: u32,
    pub(super) nkv: usize,
    pub(super) kv: usize,
    pub(super) hd: usize,
    /// The sequence and the kv head that are read next, at the same positions. `None`: nothing is prefetched.
    pub(super) next: Option<(u32, usize)>,
}

impl HeadView<'_> {
    /// Elements of a padded vector.
    #[inline(always)]
    fn width(self) -> usize {
        self.hd.next_multiple_of(LANES)
    }

    /// The slots `visible` of chunk `c`, extended with zeros to whole steps of a product. It is a view of `x` if a
    /// product can read the rows in place, otherwise a copy in `buffer`, which holds 64 rows.
    #[inline(always)]
    pub(super) fn chunk<'x, L: Lanes, E: Number, K: KvElement<E>>(
        self,
        l: L,
        x: &'x [K],
        c: usize,
        visible: Range<usize>,
        buffer: &'x mut [f32],
        min_exp: &mut MinExponent<L>,
    ) -> Chunk<'x> {
        if let Some(chunk) = self.in_place::<E, K>(x, c, &visible) {
            return chunk;
        }
        let (first, width) = (c * CHUNK + visible.start, self.width());
        let wide = widen(visible.clone(), E::STEP);
        buffer[wide.start * width..visible.start * width].fill(0.0);
        buffer[visible.end * width..wide.end * width].fill(0.0);
        self.copy::<L, E, K>(
            l,
            x,
            first..c * CHUNK + visible.end,
            &mut buffer[visible.start * width..],
            min_exp,
        );
        Chunk { rows: buffer, stride: width }
    }

    /// A view of the slots `visible` of chunk `c` in `x`, if a product can read them in place.
    #[inline(always)]
    pub(super) fn in_place<'x, E: Number, K: KvElement<E>>(
        self,
        x: &'x [K],
        c: usize,
        visible: &Range<usize>,
    ) -> Option<Chunk<'x>> {
        let first = c * CHUNK + visible.start;
        let whole = self.hd == self.width() && self.slots.run_length(first) >= visible.len();
        let start = self.slots.slot(self.seq, first).checked_sub(visible.start).filter(|_| whole)?;
        let rows = &K::plain(x)?[(start * self.nkv + self.kv) * self.hd..];
        Some(Chunk { rows, stride: self.nkv * self.hd })
    }

    /// The row of position `pos`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn row<E: Number, K: KvElement<E>>(self, x: &[K], pos: usize) -> &[K] {
        let head_len = K::head_len(self.hd);
        &x[(self.slots.slot(self.seq, pos) * self.nkv + self.kv) * head_len..][..head_len]
    }

    /// The rows of the 16 positions from `pos` on, if they are in one run of slots that hold bf16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn tile_rows<'x, E: Number, K: KvElement<E>>(
        self,
        x: &'x [K],
        pos: usize,
    ) -> Option<TileRows<'x>> {
        let (x, step) = (K::in_place(x)?, self.nkv * self.hd);
        if self.slots.run_length(pos) < TILE {
            return None;
        }
        let start = (self.slots.get(self.seq, pos)? * self.nkv + self.kv) * self.hd;
        let elements = x.get(start..start + (TILE - 1) * step + self.hd)?;
        Some(TileRows { elements, step })
    }

    /// Writes the rows of `heads` kv heads, from that of this view on, at the positions from `pos` on to `rows`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn rows_of<'x>(self, x: &'x [bf16], heads: usize, mut pos: usize, rows: &mut [&'x [bf16]]) {
        let (step, len, mut rest) = (self.nkv * self.hd, heads * self.hd, rows);
        while !rest.is_empty() {
            let run = self.slots.run_length(pos).min(rest.len());
            let start = (self.slots.slot(self.seq, pos) * self.nkv + self.kv) * self.hd;
            let from = &x[start..start + (run - 1) * step + len];
            let (first, later) = rest.split_at_mut(run);
            for (row, from) in first.iter_mut().zip(from.chunks(step)) {
                *row = &from[..len];
            }
            (pos, rest) = (pos + run, later);
        }
    }

    /// Copies the rows of positions `range` to consecutive rows of `out`, padded to the width.
    #[inline(always)]
    pub(super) fn copy<L: Lanes, E: Number, K: KvElement<E>>(
        self,
        l: L,
        x: &[K],
        range: Range<usize>,
        out: &mut [f32],
        min_exp: &mut MinExponent<L>,
    ) {
        let len = range.len() * self.width();
        let rows = out.chunks_exact_mut(self.width());
        self.read::<L, E, K>(l, x, range, &mut Padded { out: rows, min_exp });
        if min_exp.field(l) == 0 && !faults::on(Fault::DenormalsKept) {
            for v in out[..len].chunks_exact_mut(LANES) {
                let flushed = without_denormals(l, l.load(v));
                l.store(v, flushed);
            }
        }
    }

    /// Passes the rows of positions `range` to `reader`, in ascending order.
    #[inline(always)]
    pub(super) fn read<L: Lanes, E: Number, K: KvElement<E>>(
        self,
        l: L,
        x: &[K],
        range: Range<usize>,
        reader: &mut impl Reader<L, E, K>,
    ) {
        let mut pos = range.start;
        while pos < range.end {
            let run = self.slots.run_length(pos).min(range.end - pos);
            let head_len = K::head_len(self.hd);
            let (start, stride) =
                ((self.slots.slot(self.seq, pos) * self.nkv + self.kv) * head_len, self.nkv * head_len);
            let rows = &x[start..start + (run - 1) * stride + head_len];
            let mut prefetcher = self.prefetch_rows::<E, K>(x, pos..pos + run);
            let lines = prefetcher.bytes.div_ceil(LINE);
            for row in rows.chunks(stride) {
                prefetcher.issue(l, lines);
                reader.row(l, &row[..head_len]);
            }
            pos += run;
        }
    }

    /// Prefetcher for the rows that are read next, at the slots `part` of chunk `c`. It is empty if the slots
    /// `visible` of this sequence are copied, because a copy prefetches by itself.
    #[inline(always)]
    pub(super) fn prefetcher<E: Number, K: KvElement<E>>(
        self,
        x: &[K],
        c: usize,
        visible: &Range<usize>,
        part: Range<usize>,
    ) -> Prefetcher {
        match part.is_empty() || self.in_place::<E, K>(x, c, visible).is_none() {
            true => Prefetcher::empty(),
            false => self.prefetch_rows::<E, K>(x, c * CHUNK + part.start..c * CHUNK + part.end),
        }
    }

    /// Prefetcher for the rows that are read next, at positions `range`, up to the end of the contiguous run.
    #[inline(always)]
    fn prefetch_rows<E: Number, K: KvElement<E>>(self, x: &[K], range: Range<usize>) -> Prefetcher {
        let Some((seq, kv)) = self.next else { return Prefetcher::empty() };
        let Some(slot) = self.slots.get(seq, range.start) else { return Prefetcher::empty() };
        let head_len = K::head_len(self.hd);
        let (bytes, rows) = (head_len * size_of::<K>(), range.len().min(self.slots.run_length(range.start)));
        let row = x.as_ptr().wrapping_add((slot * self.nkv + kv) * head_len).cast();
        Prefetcher { row, stride: self.nkv * bytes, bytes, at: 0, lines: rows * bytes.div_ceil(LINE) }
    }

    /// Prefetcher for all heads of the rows that are read next, at positions `range`, up to the end of the contiguous run.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn prefetch_all_heads<E: Number, K: KvElement<E>>(
        self,
        x: &[K],
        range: Range<usize>,
    ) -> Prefetcher {
        let Some((seq, _)) = self.next else { return Prefetcher::empty() };
        let Some(slot) = self.slots.get(seq, range.start) else { return Prefetcher::empty() };
        let (len, rows) =
            (self.nkv * K::head_len(self.hd), range.len().min(self.slots.run_length(range.start)));
        let bytes = rows * len * size_of::<K>();
        let row = x.as_ptr().wrapping_add(slot * len).cast();
        Prefetcher { row, stride: 0, bytes, at: 0, lines: bytes / LINE }
    }
}

/// What becomes of rows that are read.
pub(super) trait Reader<L: Lanes, E: Number, K: KvElement<E>> {
    /// Takes the next row.
    fn row(&mut self, l: L, x: &[K]);
}

/// Copies rows as f32, padded with zeros.
struct Padded<'a, L: Lanes> {
    out: ChunksExactMut<'a, f32>,
    min_exp: &'a mut MinExponent<L>,
}

impl<L: Lanes, E: Number, K: KvElement<E>> Reader<L, E, K> for Padded<'_, L> {
    #[inline(always)]
    fn row(&mut self, l: L, x: &[K]) {
        K::raw_row(l, x, self.out.next().expect("out has a row for each position"), self.min_exp);
    }
}

/// Prefetches rows a few cache lines at a time. The rows of one head are too far apart for the hardware prefetcher,
/// and issuing all prefetches at once would stall.
#[derive(Debug)]
pub(super) struct Prefetcher {
    row: *const f32,
    /// Bytes between rows, and per row.
    stride: usize,
    bytes: usize,
    /// Bytes of the current row that are already issued.
    at: usize,
    /// Cache lines left.
    lines: usize,
}

impl Prefetcher {
    pub(super) fn empty() -> Prefetcher {
        Prefetcher { row: std::ptr::null(), stride: 0, bytes: 0, at: 0, lines: 0 }
    }

    /// Issues prefetches for the next `lines` cache lines.
    #[inline(always)]
    pub(super) fn issue<L: Lanes>(&mut self, l: L, lines: usize) {
        let lines = lines.min(self.lines);
        for _ in 0..lines {
            Reg::prefetch_l2(l, self.row.wrapping_byte_add(self.at));
            self.at += LINE;
            if self.at >= self.bytes {
                (self.row, self.at) = (self.row.wrapping_byte_add(self.stride), 0);
            }
        }
        self.lines -= lines;
    }

    /// The number of cache lines to issue in each of `times` calls.
    #[inline(always)]
    pub(super) fn share(&self, times: usize) -> usize {
        self.lines.div_ceil(times.max(1))
    }
}

/// Bytes per cache line.
const LINE: usize = 64;

/// `out[d * 64 + j] = chunk[j][d]` for d below `width` (a multiple of 32) and j in `keys`, a part of `0..64`. Columns
/// next to `keys` may be overwritten. Prefetches as many cache lines as it reads.
#[inline(always)]
pub(super) fn transpose<L: Lanes>(
    l: L,
    chunk: Chunk<'_>,
    width: usize,
    keys: Range<usize>,
    out: &mut [f32],
    prefetcher: &mut Prefetcher,
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
            prefetcher.issue(l, w * w * size_of::<f32>() / LINE);
            // wrapping arithmetic, although nothing wraps: an overflow check per address would keep the square out of
            // registers
            let from = rows.as_ptr().wrapping_add(j.wrapping_mul(stride).wrapping_add(d));
            // SAFETY: d + w <= width and j + w <= 64, all multiples of w, and no row after the last one is read. Rows
            // and columns are inside the slices, as checked above.
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
