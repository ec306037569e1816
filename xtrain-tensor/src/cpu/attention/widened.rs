//! Operands as f32 in memory, for products by fma.
use std::ops::Range;

use super::chunk::Chunk;
use super::gather::{self, Prefetcher};
use super::kv_element::KvElement;
use super::number::Number;
use super::operands::{ChunkSource, Operands};
use super::product::Product;
use super::rows::{CHUNK, STRIP, widen};
use crate::cpu::Simd;
use crate::cpu::gemm::{Beta, Matrix};
use crate::cpu::gemm_bf16::MinExponent;
use crate::cpu::lanes::{LANES, Lanes};

/// Vectors are padded with zeros to `width`, a multiple of 32.
pub(super) struct Widened<'a, 'b> {
    pub(super) simd: Simd,
    /// Elements of a query, and of a padded one.
    pub(super) hd: usize,
    pub(super) width: usize,
    /// `[vectors][width]`.
    pub(super) q: &'b mut [f32],
    /// Scores, then weights: `[vectors][64]`.
    pub(super) s: &'b mut [f32],
    /// Copied keys `[64][width]`, and the transposed ones `[width][64]`.
    pub(super) k: &'b mut [f32],
    pub(super) kt: &'b mut [f32],
    /// Copied values `[64][width]`.
    pub(super) v: &'b mut [f32],
    /// The values, if they are read where they are.
    pub(super) in_place: Option<Chunk<'a>>,
}

impl<'a, E: Number, K: KvElement<E>> Operands<'a, E, K> for Widened<'a, '_> {
    const STRIP: usize = STRIP;

    #[inline(always)]
    fn set_query<L: Lanes>(&mut self, l: L, i: usize, q: &[E], min_exp: &mut MinExponent<L>) {
        <E as KvElement<E>>::row(l, q, &mut self.q[i * self.width..(i + 1) * self.width], min_exp);
    }

    #[inline(always)]
    fn read_keys<L: Lanes>(
        &mut self,
        l: L,
        from: &ChunkSource<'a, K>,
        prefetcher: &mut Prefetcher,
        min_exp: &mut MinExponent<L>,
    ) {
        let visible = from.visible.clone();
        let key = from.view.chunk::<L, E, K>(l, from.x, from.c, visible.clone(), self.k, min_exp);
        gather::transpose(l, key, self.width, visible, self.kt, prefetcher);
    }

    #[inline(always)]
    fn scores(&mut self, vectors: Range<usize>, cols: Range<usize>, no_flush: bool) {
        let product = Product {
            a: Matrix::new(&self.q[vectors.start * self.width..], vectors.len(), self.width),
            b: Chunk { rows: self.kt, stride: CHUNK },
            out: &mut self.s[vectors.start * CHUNK..],
            out_row_step: CHUNK,
            beta: Beta::Zero,
            cols,
            depth: 0..self.hd.next_multiple_of(E::STEP),
        };
        E::product(self.simd, no_flush, product);
    }

    #[inline(always)]
    fn scores_of(&self, i: usize) -> &[f32] {
        &self.s[i * CHUNK..(i + 1) * CHUNK]
    }

    #[inline(always)]
    fn set_weights<L: Lanes>(&mut self, l: L, i: usize, p: [L::F; 2], min_exp: &mut MinExponent<L>) {
        let (first, second) = self.s[i * CHUNK..(i + 1) * CHUNK].split_at_mut(LANES);
        l.store(first, E::rounded(l, p[0], min_exp));
        l.store(second, E::rounded(l, p[1], min_exp));
    }

    #[inline(always)]
    fn read_values<L: Lanes>(&mut self, l: L, from: &ChunkSource<'a, K>, min_exp: &mut MinExponent<L>) {
        self.in_place = from.view.in_place::<E, K>(from.x, from.c, &from.visible);
        if self.in_place.is_none() {
            from.view.chunk::<L, E, K>(l, from.x, from.c, from.visible.clone(), self.v, min_exp);
        }
    }

    #[inline(always)]
    fn outputs(&mut self, vectors: Range<usize>, depth: Range<usize>, out: &mut [f32], no_flush: bool) {
        let product = Product {
            a: Matrix::new(&self.s[vectors.start * CHUNK..], vectors.len(), CHUNK),
            b: self.in_place.unwrap_or(Chunk { rows: self.v, stride: self.width }),
            out,
            out_row_step: self.width,
            beta: Beta::Zero,
            cols: 0..self.width,
            depth: widen(depth, E::STEP),
        };
        E::product(self.simd, no_flush, product);
    }
}
