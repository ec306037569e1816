//! Operands as f32 in memory, for products by fma.
use std::ops::Range;

use super::operands::Operands;
use crate::cpu::Simd;
use crate::cpu::attention::chunk::Chunk;
use crate::cpu::attention::gather::{self, HeadView, Prefetcher};
use crate::cpu::attention::kv_element::KvElement;
use crate::cpu::attention::number::Number;
use crate::cpu::attention::product::Product;
use crate::cpu::attention::rows::{CHUNK, STRIP, widen};
use crate::cpu::gemm::{Beta, Matrix};
use crate::cpu::gemm_bf16::MinExponent;
use crate::cpu::lanes::{LANES, Lanes};

/// Vectors are padded with zeros to `width`, a multiple of 32.
pub(super) struct Widened<'b> {
    pub(super) simd: Simd,
    /// Elements of a vector, and of a padded one.
    pub(super) hd: usize,
    pub(super) width: usize,
    /// By position: keys; queries and dy of the current head; rows that are only used transposed.
    pub(super) k: &'b mut [f32],
    pub(super) q: &'b mut [f32],
    pub(super) dy: &'b mut [f32],
    pub(super) rows: &'b mut [f32],
    /// By chunk of 64 keys: transposed keys and values.
    pub(super) kt: &'b mut [f32],
    pub(super) vt: &'b mut [f32],
    /// Scores, then weights; dp, then ds: `[64][64]`.
    pub(super) p: &'b mut [f32],
    pub(super) ds: &'b mut [f32],
}

impl<E: Number> Operands<E> for Widened<'_> {
    const STEP: usize = E::STEP;
    const STRIP: usize = STRIP;

    #[inline(always)]
    fn read_keys<L: Lanes>(
        &mut self,
        l: L,
        view: HeadView<'_>,
        [k, v]: [&[E]; 2],
        len: usize,
        [min_k, min_v]: &mut [MinExponent<L>; 2],
    ) {
        let (width, padded) = (self.width, len.next_multiple_of(E::STEP));
        for (x, out, t, min_exp) in
            [(k, &mut *self.k, &mut *self.kt, min_k), (v, &mut *self.rows, &mut *self.vt, min_v)]
        {
            out[len * width..padded * width].fill(0.0);
            view.copy::<L, E, E>(l, x, 0..len, out, min_exp);
            let chunks = out.chunks_exact(CHUNK * width).zip(t.chunks_exact_mut(CHUNK * width));
            for (c, (rows, t)) in chunks.enumerate().take(len.div_ceil(CHUNK)) {
                let keys = 0..CHUNK.min(padded - c * CHUNK);
                gather::transpose(l, Chunk { rows, stride: width }, width, keys, t, &mut Prefetcher::empty());
            }
        }
    }

    #[inline(always)]
    fn set_row<L: Lanes>(
        &mut self,
        l: L,
        t: usize,
        [q, dy]: [&[E]; 2],
        [min_q, min_dy]: &mut [MinExponent<L>; 2],
    ) {
        let at = t * self.width..(t + 1) * self.width;
        <E as KvElement<E>>::row(l, q, &mut self.q[at.clone()], min_q);
        <E as KvElement<E>>::row(l, dy, &mut self.dy[at], min_dy);
    }

    #[inline(always)]
    fn set_no_row<L: Lanes>(&mut self, _: L, t: usize) {
        for x in [&mut *self.q, &mut *self.dy] {
            x[t * self.width..(t + 1) * self.width].fill(0.0);
        }
    }

    #[inline(always)]
    fn scores(&mut self, rows: Range<usize>, c: usize, cols: Range<usize>, no_flush: [bool; 2]) {
        let width = self.width;
        let pairs = [(&*self.q, &*self.kt, &mut *self.p), (&*self.dy, &*self.vt, &mut *self.ds)];
        for ((a, b, out), no_flush) in pairs.into_iter().zip(no_flush) {
            let product = Product {
                a: Matrix::new(&a[rows.start * width..], rows.len(), width),
                b: Chunk { rows: &b[c * CHUNK * width..], stride: CHUNK },
                out: &mut out[rows.start % CHUNK * CHUNK..],
                out_row_step: CHUNK,
                beta: Beta::Zero,
                cols: cols.clone(),
                depth: 0..self.hd.next_multiple_of(E::STEP),
            };
            E::product(self.simd, no_flush, product);
        }
    }

    #[inline(always)]
    fn scores_of(&self, i: usize) -> [&[f32]; 2] {
        [&self.p[i * CHUNK..(i + 1) * CHUNK], &self.ds[i * CHUNK..(i + 1) * CHUNK]]
    }

    #[inline(always)]
    fn set_weights<L: Lanes>(
        &mut self,
        l: L,
        i: usize,
        p_ds: [[L::F; 2]; 2],
        min_exp: &mut [MinExponent<L>; 2],
    ) {
        for ((x, out), min_exp) in p_ds.into_iter().zip([&mut *self.p, &mut *self.ds]).zip(min_exp) {
            let (first, second) = out[i * CHUNK..(i + 1) * CHUNK].split_at_mut(LANES);
            l.store(first, E::rounded(l, x[0], min_exp));
            l.store(second, E::rounded(l, x[1], min_exp));
        }
    }

    #[inline(always)]
    fn finish_weights<L: Lanes>(&mut self, _: L, _: usize) {}

    #[inline(always)]
    fn add_dq(&self, rows: Range<usize>, c: usize, depth: Range<usize>, out: &mut [f32], no_flush: bool) {
        let product = Product {
            a: Matrix::new(&self.ds[rows.start % CHUNK * CHUNK..], rows.len(), CHUNK),
            b: Chunk { rows: &self.k[c * CHUNK * self.width..], stride: self.width },
            out,
            out_row_step: self.width,
            beta: Beta::One,
            cols: 0..self.width,
            depth: widen(depth, E::STEP),
        };
        E::product(self.simd, no_flush, product);
    }

    #[inline(always)]
    fn add_dk_dv(
        &self,
        keys: Range<usize>,
        block: usize,
        depth: Range<usize>,
        dk_dv: [&mut [f32]; 2],
        no_flush: [bool; 2],
    ) {
        let (width, depth) = (self.width, widen(depth, E::STEP));
        let pairs = [(&*self.ds, &*self.q), (&*self.p, &*self.dy)];
        for (((a, b), out), no_flush) in pairs.into_iter().zip(dk_dv).zip(no_flush) {
            let a = &a[keys.start % CHUNK..];
            let product = Product {
                a: Matrix { data: a, rows: keys.len(), row_step: 1, k_step: CHUNK },
                b: Chunk { rows: &b[block * CHUNK * width..], stride: width },
                out,
                out_row_step: width,
                beta: Beta::One,
                cols: 0..width,
                depth: depth.clone(),
            };
            E::product(self.simd, no_flush, product);
        }
    }
}
