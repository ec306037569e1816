//! The last logit that top-k, top-p and min-p keep, by the integer rule of the sampler (docs/numerics.md, section 7).
//!
//! Top-k and top-p walk the logits in ascending order and remove them while a running sum of weights, 1 or `W`, stays
//! within a budget. The walk needs no sorted row: a histogram of the distance from the maximum finds the bin in which
//! the sum exceeds the budget, and only the logits of that bin are selected from. Expected time is linear.
use crate::Simd;
use crate::cpu::lanes::dispatch;
use crate::cpu::{integer_weights::integer_weight, softmax};
use crate::faults::{self, Fault};
use crate::operands::LossRows;

/// Bins of the histogram.
const BINS: usize = 256;

/// Bins per unit of distance from the maximum. Logits at a distance of 32 or more share bin 0.
const PER_UNIT: f32 = 8.0;

/// The last logit that a row keeps, in order of descending value, then ascending index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cut {
    value: f32,
    index: usize,
}

impl Cut {
    /// Whether the logit `z` of token `index` is kept.
    pub(super) fn keeps(self, z: f32, index: usize) -> bool {
        z > self.value || z == self.value && index <= self.index
    }
}

/// Buffers that are reused for each row.
#[derive(Default)]
pub(super) struct Selection {
    /// `exp(z - max)` of each logit.
    exps: Vec<f32>,
    /// The ranks in one bin.
    ranks: Vec<u64>,
}

/// The last logit that the filters of `rows` keep in the divided logits `z`. `None`: all are kept, or the maximum is
/// not finite.
pub(super) fn last_kept(
    simd: Simd,
    z: &[f32],
    rows: &LossRows<'_>,
    selection: &mut Selection,
) -> Option<Cut> {
    if !rows.filters(z.len()) {
        return None;
    }
    let max = dispatch(simd, softmax::Max(z));
    if !max.is_finite() {
        return None;
    }
    let Selection { exps, ranks } = selection;
    if rows.top_p < 1.0 || rows.min_p > 0.0 {
        exps.resize(z.len(), 0.0);
        dispatch(simd, softmax::ExpBelow { z, m: max, out: exps });
    }
    let mut lowest = 0;
    if let Some(k) = rows.top_k.filter(|&k| k < z.len()) {
        lowest = Walk { z, max, lowest }.first_kept(|_| (z.len() - k) as u64, |_| 1, ranks);
    }
    if rows.top_p < 1.0 {
        let budget = |total: u64| {
            let budget = ((1.0 - f64::from(rows.top_p)) * total as f64) as u64;
            // the last token stays
            let budget = budget.min(total.saturating_sub(1));
            if faults::on(Fault::LossTopPStopsEarly) { budget.saturating_sub(1) } else { budget }
        };
        lowest = Walk { z, max, lowest }.first_kept(budget, |i| integer_weight(exps[i]), ranks);
    }
    let ranked = (lowest > 0).then(|| Cut { value: z[token_of(lowest)], index: token_of(lowest) });
    let least = (rows.min_p > 0.0 && !faults::on(Fault::LossForgetsMinP))
        .then(|| Cut { value: smallest_kept(z, exps, rows.min_p), index: usize::MAX });
    match (ranked, least) {
        // of equal values, min-p keeps all and a rank the first ones
        (Some(ranked), Some(least)) if least.value > ranked.value => Some(least),
        (ranked, least) => ranked.or(least),
    }
}

/// The smallest z that min-p keeps: `exp(z - max) >= min_p`.
fn smallest_kept(z: &[f32], exps: &[f32], min_p: f32) -> f32 {
    let strict = faults::on(Fault::LossMinPIsStrict);
    let kept = |w: f32| if strict { w > min_p } else { w >= min_p };
    z.iter().zip(exps).fold(f32::INFINITY, |least, (&z, &w)| if kept(w) && z < least { z } else { least })
}

/// The logits from rank `lowest` on, in ascending order.
struct Walk<'a> {
    z: &'a [f32],
    /// The largest logit, finite.
    max: f32,
    lowest: u64,
}

impl Walk<'_> {
    /// The first rank at which the running sum of the weights exceeds the budget. The budget is a function of the sum
    /// of all weights, and below it. If all weights are 0, because a logit is a NaN: `lowest`.
    fn first_kept(
        &self,
        budget: impl Fn(u64) -> u64,
        weight: impl Fn(usize) -> u64,
        ranks: &mut Vec<u64>,
    ) -> u64 {
        let mut bins = [0u64; BINS];
        for (i, &z) in self.z.iter().enumerate() {
            if rank(z, i) >= self.lowest {
                bins[self.bin(z)] += weight(i);
            }
        }
        let mut left = budget(bins.iter().sum());
        let Some(bin) = bins.iter().position(|&sum| {
            let exceeds = sum > left;
            if !exceeds {
                left -= sum;
            }
            exceeds
        }) else {
            return self.lowest;
        };
        ranks.clear();
        let all = self.z.iter().enumerate().filter(|&(_, &z)| self.bin(z) == bin);
        ranks.extend(all.map(|(i, &z)| rank(z, i)).filter(|&rank| rank >= self.lowest));
        first_above(ranks, |rank| weight(token_of(rank)), left)
    }

    /// The bin of a logit: larger logits have the same bin or a higher one.
    fn bin(&self, z: f32) -> usize {
        let distance = (self.max - z) * PER_UNIT;
        if distance < (BINS - 1) as f32 { BINS - 1 - distance as usize } else { 0 }
    }
}

/// The first of the ranks, in ascending order, at which the running sum of the weights exceeds the budget. The sum of
/// all weights exceeds it. Binary search with partial selection.
fn first_above(mut ranks: &mut [u64], weight: impl Fn(u64) -> u64, mut budget: u64) -> u64 {
    while ranks.len() > 1 {
        let middle = ranks.len() / 2;
        ranks.select_nth_unstable(middle);
        let cost: u64 = ranks[..middle].iter().map(|&rank| weight(rank)).sum();
        if cost <= budget {
            budget -= cost;
            ranks = &mut ranks[middle..];
        } else {
            ranks = &mut ranks[..middle];
        }
    }
    ranks[0]
}

/// A key that increases with z and, for equal z, decreases with the index. Above 0.
fn rank(z: f32, index: usize) -> u64 {
    // + 0 maps -0 to +0
    let bits = if faults::on(Fault::MinusZeroRanksBelow) { z.to_bits() } else { (z + 0.0).to_bits() };
    let rising = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(rising) << 32 | u64::from(!(index as u32))
}

/// The index in a rank.
fn token_of(rank: u64) -> usize {
    !(rank as u32) as usize
}
