//! The operands of the two products of a work item, in the form that an instruction set reads.
use std::ops::Range;

use super::gather::{HeadView, Prefetcher};
use super::kv_element::KvElement;
use super::number::Number;
use super::rows::CHUNK;
use crate::cpu::gemm_bf16::MinExponent;
use crate::cpu::lanes::Lanes;

/// The query vectors of a work item, and the keys, scores, weights and values of one chunk.
///
/// `min_exp` takes part in the test whether a result can be tiny, which gives `no_flush`. Operands whose products are
/// flushed by the instruction ignore both.
pub(super) trait Operands<'a, E: Number, K: KvElement<E>> {
    /// Maximum rows of a product.
    const STRIP: usize;

    /// Sets query vector `i`.
    fn set_query<L: Lanes>(&mut self, l: L, i: usize, q: &[E], min_exp: &mut MinExponent<L>);

    /// Reads the keys of the slots `visible` of chunk `c`.
    fn read_keys<L: Lanes>(
        &mut self,
        l: L,
        from: &ChunkSource<'a, K>,
        prefetcher: &mut Prefetcher,
        min_exp: &mut MinExponent<L>,
    );

    /// Computes the products of the query vectors `vectors` with the keys of the slots `cols`.
    fn scores(&mut self, vectors: Range<usize>, cols: Range<usize>, no_flush: bool);

    /// The products of query vector `i` with the keys of the 64 slots. Those outside `cols` are unspecified.
    fn scores_of(&self, i: usize) -> &[f32];

    /// Sets the weights of query vector `i`: those of the slots 0 to 31 and 32 to 63.
    fn set_weights<L: Lanes>(&mut self, l: L, i: usize, p: [L::F; 2], min_exp: &mut MinExponent<L>);

    /// Reads the values of the slots `visible` of chunk `c`.
    fn read_values<L: Lanes>(&mut self, l: L, from: &ChunkSource<'a, K>, min_exp: &mut MinExponent<L>);

    /// `out = p v` for the query vectors `vectors`, a row each. Their weights are zero outside the slots `depth`.
    fn outputs(&mut self, vectors: Range<usize>, depth: Range<usize>, out: &mut [f32], no_flush: bool);
}

/// The keys or the values `x` of the slots `visible` of chunk `c`, for one sequence and one kv head.
#[derive(Debug, Clone)]
pub(super) struct ChunkSource<'a, K> {
    pub(super) view: HeadView<'a>,
    pub(super) x: &'a [K],
    pub(super) c: usize,
    pub(super) visible: Range<usize>,
}

impl<K> ChunkSource<'_, K> {
    /// The positions of the visible slots.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX-512 BF16 and AMX read pairs")
    )]
    #[inline(always)]
    pub(super) fn positions(&self) -> Range<usize> {
        self.c * CHUNK + self.visible.start..self.c * CHUNK + self.visible.end
    }
}
