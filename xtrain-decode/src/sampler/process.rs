//! Penalty, temperature, mask, integer weights, and the filters top-k, top-p and min-p.
use xtrain_model::Config;
use xtrain_tensor::{
    faults::{self, Fault},
    softmax,
};

use super::distribution::Distribution;
use super::error::SampleError;
use super::mask::TokenMask;
use super::options::SampleOptions;

/// The logits of one row after processing, and their integer weights. The buffers are reused from row to row.
#[derive(Debug, Clone, Default)]
pub(super) struct ProcessedLogits {
    /// Scaled logits, -inf where removed.
    z: Vec<f32>,
    /// Integer weights, 0 where removed.
    weights: Vec<u64>,
    /// The sum of the weights.
    total: u64,
    /// `exp(z - max z)`, for min-p.
    exps: Vec<f32>,
    /// Ranks, for the filters that order tokens.
    ranks: Vec<u64>,
}

impl ProcessedLogits {
    /// Maximum number of logits in a row.
    pub(super) const MAX_VOCAB: usize = Config::MAX_VOCAB;

    /// The processed logits, -inf where removed.
    pub(super) fn logits(&self) -> &[f32] {
        &self.z
    }

    /// The distribution of the tokens that are kept.
    pub(super) fn distribution(&self) -> Distribution<'_> {
        Distribution::new(&self.z, &self.weights, self.total)
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
        let late = options.temperature != 0.0 && faults::on(Fault::ConstraintAfterFilters);
        let early = mask.filter(|_| !late);
        let largest = self.scale(options, logits, history, early)?;
        if largest == f32::NEG_INFINITY && mask.is_some() {
            return Err(SampleError::NothingAllowed);
        }
        if largest.is_infinite() {
            return Err(SampleError::Overflow { got: largest });
        }
        if options.temperature == 0.0 {
            self.keep_greedy(largest);
        } else {
            self.total =
                softmax::integer_weights(&self.z, largest, early.map(TokenMask::words), &mut self.weights);
            self.filter(options, largest);
        }
        if let Some(mask) = mask.filter(|_| late) {
            self.mask_weights(mask);
        }
        Ok(())
    }

    /// Sets z to the logits after penalty, temperature and mask. At temperature 0 they are not divided. Returns the
    /// largest z.
    fn scale(
        &mut self,
        options: &SampleOptions,
        logits: &[f32],
        history: &[u32],
        mask: Option<&TokenMask>,
    ) -> Result<f32, SampleError> {
        let vocab = logits.len();
        if vocab == 0 || vocab > Self::MAX_VOCAB {
            return Err(SampleError::Vocab { got: vocab });
        }
        let temperature = if options.temperature == 0.0 { 1.0 } else { options.temperature };
        let Some(largest) = softmax::tempered(logits, temperature, mask.map(TokenMask::words), &mut self.z)
        else {
            let invalid = |x: &f32| x.is_nan() || *x == f32::INFINITY;
            let token = logits.iter().position(invalid).expect("a logit is not finite");
            return Err(SampleError::NotFinite { token, got: logits[token] });
        };
        if let Some(at) = history.iter().position(|&id| id as usize >= vocab) {
            return Err(SampleError::History { at, got: history[at], vocab });
        }
        if largest == f32::NEG_INFINITY && softmax::max(logits) == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        let Some(penalty) = options.repetition_penalty else { return Ok(largest) };
        // computed from the given logit, so that an id that occurs twice in the history is penalized once
        for &id in history.iter().filter(|&&id| mask.is_none_or(|mask| mask.allows(id))) {
            let x = logits[id as usize];
            self.z[id as usize] = if x > 0.0 { x / penalty } else { x * penalty } / temperature;
        }
        Ok(softmax::max(&self.z))
    }

    /// The planted fault: the mask after the filters, unless it removes all that they keep.
    fn mask_weights(&mut self, mask: &TokenMask) {
        let allowed = |token: usize| mask.allows(token as u32);
        if !(0..self.z.len()).any(|token| self.weights[token] > 0 && allowed(token)) {
            return;
        }
        for token in (0..self.z.len()).filter(|&token| !allowed(token)) {
            self.remove(token);
        }
    }

    /// Keeps the lowest index among the largest z, `best`.
    fn keep_greedy(&mut self, best: f32) {
        let is_best = |&z: &f32| z == best;
        let last_wins = faults::on(Fault::GreedyTieTakesLast);
        let at = if last_wins { self.z.iter().rposition(is_best) } else { self.z.iter().position(is_best) };
        let token = at.expect("the maximum is an element");
        let kept = self.z[token];
        self.z.fill(f32::NEG_INFINITY);
        self.z[token] = kept;
        self.weights.clear();
        self.weights.resize(self.z.len(), 0);
        self.total = 1 << 44;
        self.weights[token] = self.total;
    }

    /// Top-k, top-p, min-p, in this order. A removed token has z = -inf and weight 0. `largest`: the largest z.
    fn filter(&mut self, options: &SampleOptions, largest: f32) {
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
            let budget = ((1.0 - f64::from(p)) * self.total as f64) as u64;
            let removed = affordable(&mut self.ranks, &self.weights, budget);
            self.remove_lowest(removed);
        }
        if let Some(p) = options.min_p {
            self.exps.clear();
            softmax::exp_below(&self.z, largest, &mut self.exps);
            for token in 0..self.z.len() {
                if self.exps[token] < p {
                    self.remove(token);
                }
            }
        }
    }

    /// Removes the tokens of the first `n` ranks, and the ranks.
    fn remove_lowest(&mut self, n: usize) {
        for at in 0..n {
            self.remove(token_of(self.ranks[at]));
        }
        self.ranks.drain(..n);
    }

    fn remove(&mut self, token: usize) {
        self.total -= self.weights[token];
        (self.z[token], self.weights[token]) = (f32::NEG_INFINITY, 0);
    }
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
        assert_eq!(processed.distribution().weights(), [1 << 44, 1 << 44, 0, 0, 0]);
    }

    #[test]
    fn a_masked_row_that_cannot_be_sampled_names_the_reason() {
        let mut mask = TokenMask::new(3);
        mask.allow(1);
        let process = |logits: &[f32], temperature| {
            let options = SampleOptions { temperature, ..SampleOptions::default() };
            ProcessedLogits::default().process(&options, logits, &[], Some(&mask)).unwrap_err()
        };
        let gone = f32::NEG_INFINITY;
        assert!(matches!(process(&[gone; 3], 1.0), SampleError::NothingLeft));
        assert!(matches!(process(&[0.0, gone, 0.0], 1.0), SampleError::NothingAllowed));
        assert!(matches!(process(&[0.0, -3e38, 0.0], 0.5), SampleError::NothingAllowed));
        assert!(matches!(process(&[f32::NAN, 0.0, 0.0], 1.0), SampleError::NotFinite { token: 0, .. }));
    }

    #[test]
    fn the_penalty_of_a_forbidden_token_does_not_allow_it() {
        let mut mask = TokenMask::new(3);
        mask.allow(1);
        mask.allow(2);
        let options = SampleOptions { repetition_penalty: Some(2.0), ..SampleOptions::default() };
        let mut processed = ProcessedLogits::default();
        processed.process(&options, &[9.0, 4.0, -1.0], &[0, 1, 2, 1], Some(&mask)).unwrap();
        assert_eq!(processed.logits(), [f32::NEG_INFINITY, 2.0, -2.0]);
    }
}
