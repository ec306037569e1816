//! Gradient samples of attention: grouped heads, windows, several sequences.
use super::check::{Sample, operand};
use super::f64::F64;
use crate::gates::scene;
use crate::gates::values::CaseRng;
use crate::ops::{self, AttnMask, AttnSaved, Slots};
use crate::reference::{self, Heads};
use crate::{Dtype, Tensor};

/// Complete sequences in runs, one after the other.
#[derive(Clone)]
pub(super) struct Sequences {
    pub(super) seq: Vec<u32>,
    pub(super) pos: Vec<u32>,
    slots: Slots,
    window: Option<usize>,
}

impl Sequences {
    pub(super) fn new(lengths: &[usize], window: Option<usize>) -> Sequences {
        let each = |(s, &n): (u32, &usize)| (0..n as u32).map(move |p| (s, p));
        let (seq, pos) = (0..).zip(lengths).flat_map(each).unzip();
        let base = (0..lengths.len()).map(|s| lengths[..s].iter().sum()).collect();
        Sequences { seq, pos, slots: Slots::Runs { base }, window }
    }

    /// A sequence of `prefix` rows, and sequences that continue it with this many rows each.
    fn tree(prefix: usize, branches: &[usize], window: Option<usize>) -> Sequences {
        let (seq, pos, slots) = scene::tree(prefix, branches);
        Sequences { seq, pos, slots, window }
    }

    pub(super) fn mask(&self) -> AttnMask<'_> {
        AttnMask { seq: &self.seq, pos: &self.pos, slots: &self.slots, window: self.window }
    }

    pub(super) fn rows(&self) -> usize {
        self.seq.len()
    }
}

/// Inputs: `q`, `k`, `v`.
pub(crate) fn attention(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let lengths = rng.choose::<&[usize]>(&[&[1, 3], &[5], &[7, 1, 2], &[31], &[33, 3], &[65], &[64], &[1]]);
    let [nh, nkv, hd] = rng.choose(&[[1, 1, 2], [2, 1, 4], [4, 2, 6], [3, 3, 2], [3, 1, 10], [1, 1, 32]]);
    let window = rng.choose(&[None, None, Some(1), Some(3), Some(32)]);
    let is_tree = rng.choose(&[false, true]);
    let sequences = match is_tree {
        true => Sequences::tree(lengths[0], &[lengths[lengths.len() - 1], 2, 1], window),
        false => Sequences::new(lengths, window),
    };
    let (n, heads) = (sequences.rows(), Heads { nh, nkv, hd });
    let (a, b) = (sequences.clone(), sequences.clone());
    Sample {
        name: format!("attention/{lengths:?}x{nh}.{nkv}.{hd}-{window:?}-tree-{is_tree}"),
        inputs: vec![
            operand(n * nh * hd, seed + 2),
            operand(n * nkv * hd, seed + 3),
            operand(n * nkv * hd, seed + 4),
        ],
        forward: Box::new(move |x| reference::attention::<F64>([&x[0], &x[1], &x[2]], heads, &a.mask()).y),
        backward: Box::new(move |x, dy| {
            let done = reference::attention::<F64>([&x[0], &x[1], &x[2]], heads, &b.mask());
            let (q, k, v) = (&x[0], &x[1], &x[2]);
            let saved = reference::AttentionSaved { q, k, v, y: &done.y, lse: &done.lse, dy };
            reference::attention_backward::<F64>(saved, heads, &b.mask()).into()
        }),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let of = |x: &[f32], heads: usize| Tensor::new(device, &[n, heads, hd], x.to_vec())?.cast(dtype);
            let (q, k, v) = (of(&x[0], nh)?, of(&x[1], nkv)?, of(&x[2], nkv)?);
            let (y, lse) = ops::attention(&q, &k, &v, &sequences.mask())?;
            let saved = AttnSaved { q: &q, k: &k, v: &v, y: &y, lse: &lse };
            let dy = of(dy, nh)?.cast(Dtype::F32)?;
            let gradients = ops::attention_backward(&saved, &dy, &sequences.mask())?;
            let vec = |x: &Tensor| -> crate::Result<Vec<f32>> { Ok(x.to_f32()?.data::<f32>()?.to_vec()) };
            Ok((vec(&y)?, gradients.iter().map(vec).collect::<crate::Result<_>>()?))
        })),
    }
}
