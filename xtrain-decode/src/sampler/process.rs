//! Penalty, temperature, mask, integer weights, and the filters top-k, top-p and min-p.
use xtrain_tensor::math::exp;
use xtrain_tensor::{
    faults::{self, Fault},
    softmax,
};

use super::error::SampleError;
use super::mask::TokenMask;
use super::options::SampleOptions;

/// The logits of one row after processing, and their integer weights. The buffers are reused from row to row.
#[derive(Debug, Clone, Default)]
pub(super) struct ProcessedLogits {
    /// Scaled logits, -inf where removed.
    z: Vec<f32>,
    /// `exp(z - max z)`.
    exps: Vec<f32>,
    /// Integer weights, 0 where removed.
    weights: Vec<u64>,
    /// Ranks, for the filters that order tokens.
    ranks: Vec<u64>,
}

impl ProcessedLogits {
    /// Maximum number of logits in a row.
    pub(super) const MAX_VOCAB: usize = 1 << 19;

    /// The processed logits, -inf where removed.
    pub(super) fn logits(&self) -> &[f32] {
        &self.z
    }

    /// The integer weights, 0 where removed.
    pub(super) fn weights(&self) -> &[u64] {
        &self.weights
    }

    /// The addresses of the buffers.
    #[cfg(test)]
    pub(super) fn buffers(&self) -> [usize; 3] {
        [self.z.as_ptr() as usize, self.weights.as_ptr() as usize, self.ranks.as_ptr() as usize]
    }

    /// Processes a row of logits. `mask`: the tokens that a constraint allows.
    pub(super) fn process(
        &mut self,
        options: &SampleOptions,
        logits: &[f32],
        history: &[u32],
        mask: Option<&TokenMask>,
    ) -> Result<(), SampleError> {
        self.scale(options, logits, history)?;
        let late = options.temperature != 0.0 && faults::on(Fault::ConstraintAfterFilters);
        if let Some(mask) = mask.filter(|_| !late) {
            mask.apply(&mut self.z);
        }
        let largest = softmax::max(&self.z);
        if largest == f32::NEG_INFINITY && mask.is_some() {
            return Err(SampleError::NothingAllowed);
        }
        if largest.is_infinite() {
            return Err(SampleError::Overflow { got: largest });
        }
        if options.temperature == 0.0 {
            self.keep_greedy();
        } else {
            self.compute_weights();
            self.filter(options);
        }
        if let Some(mask) = mask.filter(|_| late) {
            self.mask_weights(mask);
        }
        Ok(())
    }

    /// Sets z to the logits after penalty and temperature. At temperature 0 they are not divided.
    fn scale(&mut self, options: &SampleOptions, logits: &[f32], history: &[u32]) -> Result<(), SampleError> {
        let vocab = logits.len();
        if vocab == 0 || vocab > Self::MAX_VOCAB {
            return Err(SampleError::Vocab { got: vocab });
        }
        // the check of all logits is vectorized; the index is searched only if the check fails
        let invalid = |x: &f32| x.is_nan() || *x == f32::INFINITY;
        if logits.iter().fold(false, |any, x| any | invalid(x))
            && let Some(token) = logits.iter().position(invalid)
        {
            return Err(SampleError::NotFinite { token, got: logits[token] });
        }
        if let Some(at) = history.iter().position(|&id| id as usize >= vocab) {
            return Err(SampleError::History { at, got: history[at], vocab });
        }
        if softmax::max(logits) == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        self.z.clear();
        self.z.extend_from_slice(logits);
        if let Some(penalty) = options.repetition_penalty {
            // computed from the given logit, so that an id that occurs twice in the history is penalized once
            for &id in history {
                let x = logits[id as usize];
                self.z[id as usize] = if x > 0.0 { x / penalty } else { x * penalty };
            }
        }
        if options.temperature != 0.0 {
            self.z.iter_mut().for_each(|z| *z /= options.temperature);
        }
        Ok(())
    }

    /// The planted fault: the mask after the filters, unless it removes all that they keep.
    fn mask_weights(&mut self, mask: &TokenMask) {
        let kept = self.z.clone();
        mask.apply(&mut self.z);
        if softmax::max(&self.z) == f32::NEG_INFINITY {
            self.z = kept;
        }
        let removed = self.weights.iter_mut().zip(&self.z).filter(|(_, z)| **z == f32::NEG_INFINITY);
        removed.for_each(|(weight, _)| *weight = 0);
    }

    /// Keeps the lowest index among the largest z.
    fn keep_greedy(&mut self) {
        let best = softmax::max(&self.z);
        let is_best = |&z: &f32| z == best;
        let last_wins = faults::on(Fault::GreedyTieTakesLast);
        let at = if last_wins { self.z.iter().rposition(is_best) } else { self.z.iter().position(is_best) };
        let token = at.expect("the maximum is an element");
        let kept = self.z[token];
        self.z.fill(f32::NEG_INFINITY);
        self.z[token] = kept;
        self.weights.clear();
        self.weights.resize(self.z.len(), 0);
        self.weights[token] = integer_weight(1.0);
    }

    /// Sets `W_i` to the integer weight of `exp(z_i - max z)`.
    fn compute_weights(&mut self) {
        let largest = softmax::max(&self.z);
        self.exps.clear();
        softmax::exp_below(&self.z, largest, &mut self.exps);
        self.weights.clear();
        self.weights.extend(self.exps.iter().map(|&w| integer_weight(w)));
    }

    /// Top-k, top-p, min-p, in this order. A removed token has z = -inf and weight 0.
    fn filter(&mut self, options: &SampleOptions) {
        let (top_k, top_p) = (options.top_k.filter(|&k| k < self.z.len()), options.top_p);
        if top_k.is_some() || top_p.is_some() {
            self.ranks.clear();
            self.ranks.extend(self.z.iter().enumerate().map(|(i, &z)| rank(z, i)));
        }
        if let Some(k) = top_k {
            let removed = self.ranks.len() - k;
            self.ranks.select_nth_unstable(removed);
            self.remove_lowest(removed);
        }
        if let Some(p) = top_p {
            let total: u64 = self.weights.iter().sum();
            let budget = ((1.0 - f64::from(p)) * total as f64) as u64;
            let removed = affordable(&mut self.ranks, &self.weights, budget);
            self.remove_lowest(removed);
        }
        if let Some(p) = options.min_p {
            let largest = softmax::max(&self.z);
            for (z, weight) in self.z.iter_mut().zip(&mut self.weights) {
                if exp(*z - largest) < p {
                    (*z, *weight) = (f32::NEG_INFINITY, 0);
                }
            }
        }
    }

    /// Removes the tokens of the first `n` ranks, and the ranks.
    fn remove_lowest(&mut self, n: usize) {
        for rank in self.ranks.drain(..n) {
            let token = token_of(rank);
            (self.z[token], self.weights[token]) = (f32::NEG_INFINITY, 0);
        }
    }
}

/// w > 0 ? max(1, trunc(w * 2^44)) : 0, for w in [0, 1].
fn integer_weight(w: f32) -> u64 {
    if w > 0.0 { ((f64::from(w) * (1u64 << 44) as f64) as u64).max(1) } else { 0 }
}

/// A key that increases with z and, for equal z, decreases with the index.
fn rank(z: f32, index: usize) -> u64 {
    // + 0 maps -0 to +0
    let bits = (z + 0.0).to_bits();
    let rising = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(rising) << 32 | u64::from(!(index as u32))
}

/// The index in a rank.
fn token_of(rank: u64) -> usize {
    !(rank as u32) as usize
}

/// The number of lowest ranks whose weights add up to at most `budget`, but never all of them. Moves these ranks to
/// the front. Binary search with partial selection: expected time is linear.
fn affordable(ranks: &mut [u64], weights: &[u64], budget: u64) -> usize {
    let (mut low, mut high, mut spent) = (0, ranks.len(), 0);
    while low < high {
        let middle = low + (high - low) / 2;
        ranks[low..high].select_nth_unstable(middle - low);
        let cost: u64 = ranks[low..=middle].iter().map(|&rank| weights[token_of(rank)]).sum();
        if spent + cost <= budget {
            (low, spent) = (middle + 1, spent + cost);
        } else {
            high = middle;
        }
    }
    low.min(ranks.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_of_top_p_is_a_difference_in_f64() {
        // 1 - 0.2f32 is 0.799999997 in f64: four of five equal tokens are too many to remove. In f32 it is 0.80000001.
        let options = SampleOptions { top_p: Some(0.2), ..SampleOptions::default() };
        let mut processed = ProcessedLogits::default();
        processed.process(&options, &[1.0; 5], &[], None).unwrap();
        assert_eq!(processed.weights(), [1 << 44, 1 << 44, 0, 0, 0]);
    }
}
