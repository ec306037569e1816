//! Integer weights of a row of logits, and the token at a running sum of them (docs/numerics.md, section 7).
use super::lanes::{Kernel, LANES, Lanes};
use crate::faults::{self, Fault};

/// Sets `out` to `W_i`, the integer weight of `exp(z_i - max)`, and returns their sum. The sum is below 2^64.
pub(crate) struct IntegerWeights<'a> {
    pub(crate) z: &'a [f32],
    /// The largest z.
    pub(crate) max: f32,
    /// Bit `i % 32` of word `i / 32` is 0 only if `z_i` is -inf. The weights of a word that is 0 or missing are 0.
    pub(crate) words: Option<&'a [u32]>,
    pub(crate) out: &'a mut [u64],
}

impl Kernel<u64> for IntegerWeights<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u64 {
        let max = l.splat(self.max);
        let skipped = u32::from(faults::on(Fault::WordWithOneTokenSkipped));
        let is_skipped =
            |words: &[u32], block: usize| words.get(block).is_none_or(|word| word.count_ones() <= skipped);
        let (z, z_rest) = self.z.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        let mut sums = [0u64; 8];
        for (block, (z, out)) in z.iter().zip(out).enumerate() {
            if self.words.is_some_and(|words| is_skipped(words, block)) {
                out.fill(0);
                continue;
            }
            // plain code over a fixed number of weights, which the compiler vectorizes
            for (out, exp) in out.iter_mut().zip(l.to_array(l.exp(l.sub(l.load(z), max)))) {
                *out = integer_weight(exp);
            }
            for eight in out.as_chunks::<8>().0 {
                sums = std::array::from_fn(|i| sums[i].wrapping_add(eight[i]));
            }
        }
        let sum = sums.into_iter().fold(0, u64::wrapping_add);
        if self.words.is_some_and(|words| is_skipped(words, z.len())) {
            out_rest.fill(0);
            return sum;
        }
        let exps = l.to_array(l.exp(l.sub(l.load_partial(z_rest), max)));
        out_rest.iter_mut().zip(exps).for_each(|(out, exp)| *out = integer_weight(exp));
        out_rest.iter().fold(sum, |sum, weight| sum.wrapping_add(*weight))
    }
}

/// `w > 0 ? max(1, trunc(w * 2^44)) : 0`, for w in [0, 1]. Without branches and conversions to integers, so that the
/// compiler vectorizes it for every instruction set.
#[inline(always)]
pub(crate) fn integer_weight(w: f32) -> u64 {
    /// Added to an f64 below 2^51, it rounds to an integer, which is then in the low bits.
    const SHIFT: f64 = (1u64 << 52) as f64;
    let exact = f64::from(w) * (1u64 << 44) as f64;
    let nearest = (exact + SHIFT) - SHIFT;
    let rounded_up = nearest > exact && !faults::on(Fault::IntegerWeightRounded);
    let below = nearest - if rounded_up { 1.0 } else { 0.0 };
    let at_least_one = if below < 1.0 { 1.0 } else { below };
    let weight = if w > 0.0 { at_least_one } else { 0.0 };
    (weight + SHIFT).to_bits() ^ SHIFT.to_bits()
}

/// The lowest `i` with `W_0 + ... + W_i > r`, if there is one.
pub(crate) struct FirstAbove<'a> {
    pub(crate) weights: &'a [u64],
    pub(crate) r: u64,
}

impl Kernel<Option<usize>> for FirstAbove<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> Option<usize> {
        /// Weights whose sum is compared at once.
        const BLOCK: usize = 64;
        let mut before = 0u64;
        let margin = u64::from(faults::on(Fault::LastUnitOfBlockNotReached));
        for (block, weights) in self.weights.chunks(BLOCK).enumerate() {
            let end = before + weights.iter().fold(0u64, |sum, &weight| sum.wrapping_add(weight));
            if end > self.r + margin {
                let mut sum = before;
                let reached = |&weight: &u64| {
                    sum += weight;
                    sum > self.r
                };
                return weights.iter().position(reached).map(|at| block * BLOCK + at);
            }
            before = end;
        }
        None
    }
}

#[cfg(test)]
mod tests;
