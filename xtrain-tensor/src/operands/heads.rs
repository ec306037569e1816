//! Heads of an attention: their numbers, and operands with a head dimension.
use std::ops::Range;

use super::norm::Norm;
use super::rope_table::RopeArgs;
use crate::tensor::Tensor;

/// The numbers of heads and their size. Query head `h` reads kv head `h / (nh / nkv)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) nh: usize,
    /// Key and value heads; divides `nh`.
    pub(crate) nkv: usize,
    pub(crate) hd: usize,
}

impl Heads {
    /// `1 / sqrt(hd)`, computed in f64 and rounded once.
    pub(crate) fn scale(self) -> f32 {
        (1.0 / (self.hd as f64).sqrt()) as f32
    }

    /// The range of the key or value that query head `h` reads, in a pool of slots.
    #[inline]
    pub(crate) fn kv(self, slot: usize, h: usize) -> Range<usize> {
        let start = (slot * self.nkv + h / (self.nh / self.nkv)) * self.hd;
        start..start + self.hd
    }

    /// The range of head `h` of row `n` in the queries.
    #[inline]
    pub(crate) fn q(self, n: usize, h: usize) -> Range<usize> {
        let start = (n * self.nh + h) * self.hd;
        start..start + self.hd
    }
}

/// The operands and results of an attention that its backward reads.
#[derive(Debug, Clone, Copy)]
pub struct AttnSaved<'a> {
    /// Queries `[N, nh, hd]`.
    pub q: &'a Tensor,
    /// Keys `[N, nkv, hd]`.
    pub k: &'a Tensor,
    /// Values `[N, nkv, hd]`.
    pub v: &'a Tensor,
    /// The output `[N, nh, hd]`, as stored.
    pub y: &'a Tensor,
    /// `L` of the forward, `[N, nh]` f32.
    pub lse: &'a Tensor,
}

/// The norms over query heads and over key heads.
#[derive(Debug, Clone, Copy)]
pub struct QkNorm<'a> {
    /// The gain of query heads, `[hd]` f32.
    pub q_gain: &'a Tensor,
    /// The gain of key heads, `[hd]` f32.
    pub k_gain: &'a Tensor,
    /// Added to the mean of the squares of a head.
    pub eps: f32,
}

impl<'a> QkNorm<'a> {
    /// The norm over query heads.
    pub(crate) fn q(self) -> Norm<'a> {
        Norm { gain: self.q_gain, eps: self.eps }
    }

    /// The norm over key heads.
    pub(crate) fn k(self) -> Norm<'a> {
        Norm { gain: self.k_gain, eps: self.eps }
    }
}

/// The projections of new rows before QK-norm and RoPE, all of one dtype.
#[derive(Debug, Clone, Copy)]
pub struct UnrotatedHeads<'a> {
    /// `[N, nh, hd]`.
    pub q: &'a Tensor,
    /// `[N, nkv, hd]`.
    pub k: &'a Tensor,
    /// `[N, nkv, hd]`.
    pub v: &'a Tensor,
    /// `None`: no QK-norm.
    pub norms: Option<QkNorm<'a>>,
    /// The position of each row.
    pub rope: RopeArgs<'a>,
    /// The KV slot of each row; all are distinct.
    pub slots: &'a [u32],
}
