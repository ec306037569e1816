//! Kernels over one row of logits: `lse`, entropy, and the gradient of a weighted log-probability.
use super::lanes::{Kernel, LANES, Lanes};
use super::scratch::Buffer;
use super::value::blocks;
use crate::faults::{self, Fault};
use crate::math;

/// Logits per chunk.
pub(super) const CHUNK: usize = 128;

/// `log sum exp z`: chunks of 128 with a maximum and a sum32 each, then a sum32 over the chunks.
pub(crate) struct Lse<'a>(pub(crate) &'a [f32]);

impl Kernel<f32> for Lse<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut chunks = Chunks::new(self.0.len());
        for (i, z) in self.0.chunks(CHUNK).enumerate() {
            let m = max(l, z);
            chunks.set(i, m, sum_of_chunk(l, z, m));
        }
        chunks.lse(l)
    }
}

/// The maximum of each chunk of a row, and the sum of its exponentials below the maximum.
pub(super) struct Chunks {
    maxima: Buffer<f32>,
    sums: Buffer<f32>,
    /// The largest maximum so far.
    top: f32,
}

impl Chunks {
    /// For a row of `len` logits.
    pub(super) fn new(len: usize) -> Chunks {
        let new = || Buffer::new(len.div_ceil(CHUNK));
        Chunks { maxima: new(), sums: new(), top: f32::NEG_INFINITY }
    }

    pub(super) fn set(&mut self, chunk: usize, max: f32, sum: f32) {
        (self.maxima[chunk], self.sums[chunk]) = (max, sum);
        self.top = if max > self.top { max } else { self.top };
    }

    /// The `lse` of the row: a sum32 of `fma(sum, exp(maximum - top), v)`.
    #[inline(always)]
    pub(super) fn lse<L: Lanes>(&self, l: L) -> f32 {
        let (mut v, top) = (l.zero(), l.splat(self.top));
        blocks!(self.maxima.len(), |b| {
            let n = b.len();
            let scales = l.exp(l.sub(l.load_partial(&self.maxima[b.clone()]), top));
            v = l.fma(l.load_partial(&self.sums[b]), first_lanes(l, scales, n), v);
        });
        self.top + math::log(l.sum32(v))
    }
}

/// The largest logit, -inf if there is none. NaN is skipped.
pub(crate) struct Max<'a>(pub(crate) &'a [f32]);

impl Kernel<f32> for Max<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        max(l, self.0)
    }
}

#[inline(always)]
pub(super) fn max<L: Lanes>(l: L, z: &[f32]) -> f32 {
    let lowest = l.splat(f32::NEG_INFINITY);
    let mut m = lowest;
    blocks!(z.len(), |b| {
        let missing = LANES - b.len();
        let mut z = l.load_partial(&z[b]);
        if missing > 0 {
            let mut a = l.to_array(z);
            a[LANES - missing..].fill(f32::NEG_INFINITY);
            z = l.load(&a);
        }
        m = l.max(m, z);
    });
    l.max32(m)
}

/// sum32 of `exp(z - m)`. If m is -inf, +0, or a NaN among the logits.
#[inline(always)]
pub(super) fn sum_of_chunk<L: Lanes>(l: L, z: &[f32], m: f32) -> f32 {
    if m == f32::NEG_INFINITY {
        let mut v = l.zero();
        blocks!(z.len(), |b| v = l.add(v, l.load_partial(&z[b])));
        let sum = l.sum32(v);
        return if sum.is_nan() && !faults::on(Fault::ChunkOfNanIgnored) { sum } else { 0.0 };
    }
    let (mut v, m) = (l.zero(), l.splat(m));
    blocks!(z.len(), |b| {
        let n = b.len();
        let e = l.exp(l.sub(l.load_partial(&z[b]), m));
        v = l.add(v, first_lanes(l, e, n));
    });
    l.sum32(v)
}

/// The first `n` lanes of `v`, +0 in the others.
#[inline(always)]
pub(super) fn first_lanes<L: Lanes>(l: L, v: L::F, n: usize) -> L::F {
    if n == LANES {
        return v;
    }
    let mut a = [0f32; LANES];
    l.store_partial(&mut a[..n], v);
    l.load(&a)
}

/// `exp(z - m)` of each logit.
pub(crate) struct ExpBelow<'a> {
    pub(crate) z: &'a [f32],
    pub(crate) m: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for ExpBelow<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let m = l.splat(self.m);
        blocks!(self.z.len(), |b| {
            let e = l.exp(l.sub(l.load_partial(&self.z[b.clone()]), m));
            l.store_partial(&mut self.out[b], e);
        });
    }
}

/// `-sum p log p`: chunks of 128, each a sum32 of `fma(p, lse - z, v)`, in ascending order. A z of -inf adds nothing.
pub(crate) struct Entropy<'a> {
    pub(crate) z: &'a [f32],
    pub(crate) lse: f32,
}

impl Kernel<f32> for Entropy<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let lse = l.splat(self.lse);
        let mut entropy = 0f32;
        for z in self.z.chunks(CHUNK) {
            let mut v = l.zero();
            blocks!(z.len(), |b| {
                let n = b.len();
                let z = l.load_partial(&z[b]);
                let p = first_lanes(l, l.exp(l.sub(z, lse)), n);
                let sum = l.fma(p, l.sub(lse, z), v);
                v = l.select_lt(z, l.splat(f32::MIN), v, sum);
            });
            entropy += l.sum32(v);
        }
        entropy
    }
}

/// Replaces logits by gradients: `dz = exp(z - lse) w`, at the target `(exp(z - lse) - 1) w`; a bonus `b` adds
/// `b (p ((z - lse) + H))`; all are divided by the temperature. The gradient of a logit of -inf is +0.
pub(crate) struct Gradient<'a> {
    pub(crate) z: &'a mut [f32],
    /// Index of the target in `z`. `None`: it is not among these logits.
    pub(crate) target: Option<usize>,
    pub(crate) lse: f32,
    pub(crate) entropy: f32,
    pub(crate) weight: f32,
    pub(crate) bonus: f32,
    pub(crate) temperature: f32,
}

impl Kernel for Gradient<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (w, bonus, t) = (self.weight, self.bonus, self.temperature);
        let at_target = self.target.map(|at| self.z[at]);
        let lse = l.splat(self.lse);
        blocks!(self.z.len(), |b| {
            let z = l.load_partial(&self.z[b.clone()]);
            let d = l.sub(z, lse);
            let p = l.exp(d);
            let mut dz = l.mul(p, l.splat(w));
            if bonus != 0.0 {
                dz = l.add(dz, l.mul(l.splat(bonus), l.mul(p, l.add(d, l.splat(self.entropy)))));
            }
            dz = l.select_lt(z, l.splat(f32::MIN), l.zero(), l.div(dz, l.splat(t)));
            l.store_partial(&mut self.z[b], dz);
        });
        let (Some(at), Some(at_target)) = (self.target, at_target) else { return };
        let d = at_target - self.lse;
        let p = math::exp(d);
        let mut dz = (p - 1.0) * w;
        if bonus != 0.0 {
            dz += bonus * (p * (d + self.entropy));
        }
        self.z[at] = if at_target == f32::NEG_INFINITY { 0.0 } else { dz / t };
    }
}
