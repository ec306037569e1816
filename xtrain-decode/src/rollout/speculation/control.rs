//! How many tokens a sequence drafts: as many as are likely to be accepted, for their cost.
use xtrain_model::Model;
use xtrain_tensor::Device;
use xtrain_tensor::faults::{self, Fault};

/// Maximum number of tokens that a sequence drafts in a step.
const MAX_DRAFT: usize = 16;
/// The weight of one drafted token in the acceptance rate.
const WEIGHT: f32 = 0.2;
/// Steps without a draft after the first rejected probe, and the maximum.
const PAUSES: [u32; 2] = [8, 64];

/// The acceptance rate of the drafts of one sequence, and the pauses in which it drafts nothing.
///
/// The rate is a moving average over the drafted tokens that the sampler compared: the accepted ones and the first
/// rejected one of each step. It depends on tokens only, never on a clock.
#[derive(Debug, Clone, Copy)]
pub(in crate::rollout) struct DraftControl {
    rate: f32,
    /// Steps until the next probe.
    wait: u32,
    /// Steps without a draft after the next rejected probe.
    pause: u32,
}

impl Default for DraftControl {
    fn default() -> DraftControl {
        DraftControl { rate: 0.5, wait: 0, pause: PAUSES[0] }
    }
}

impl DraftControl {
    /// How many tokens to draft in the next step if each costs `cost` of the time of a new token: token i while the
    /// probability that tokens 1 to i are accepted, rate^i, is above `cost`. If the first one is below it, one token
    /// after a pause of 8 to 64 steps, which measures the rate again.
    pub(in crate::rollout) fn next(&mut self, cost: f32) -> usize {
        let likely = std::iter::successors(Some(self.rate), |chance| Some(chance * self.rate));
        let n = likely.take(MAX_DRAFT).take_while(|&chance| chance > cost).count();
        if n > 0 {
            return n;
        }
        self.wait = self.wait.saturating_sub(1);
        usize::from(self.wait == 0 || faults::on(Fault::DraftNeverPaused))
    }

    /// Takes the result of a step with `drafted` tokens, at least one.
    pub(in crate::rollout) fn record(&mut self, drafted: usize, accepted: usize) {
        for _ in 0..accepted {
            self.rate += WEIGHT * (1.0 - self.rate);
        }
        if accepted < drafted {
            self.rate -= WEIGHT * self.rate;
        }
        if accepted == 0 {
            self.wait = self.pause;
            self.pause = (2 * self.pause).min(PAUSES[1]);
        } else {
            (self.wait, self.pause) = (0, PAUSES[0]);
        }
    }
}

/// The cost of a row of a forward pass of `model`, in units of a pass of one row: a pass of r rows is taken to cost
/// 1 + c (r - 1). c is 1/32 on a GPU, 1/16 on a CPU whose caches do not hold the weights, and 1/4 otherwise. Passes of 1
/// to 8 rows on two cores gave 0.026 with 125 M parameters and 0.18 with 3 M, so the constants overestimate the cost.
pub(in crate::rollout) fn row_cost(model: &Model) -> f32 {
    const CACHED_BYTES: usize = 16 << 20;
    match model.device() {
        Device::Gpu(_) => 1.0 / 32.0,
        _ if model.config().n_params() * model.compute().bytes() > CACHED_BYTES => 1.0 / 16.0,
        _ => 0.25,
    }
}

/// The cost of one more row in a step of `rows` rows, in units of the time per row of that step: `c` for one row, near
/// 1 for many. `c` is the [`row_cost`].
pub(in crate::rollout) fn cost_in_batch(c: f32, rows: usize) -> f32 {
    let rows = rows.max(1) as f32;
    c * rows / (1.0 + c * (rows - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drafted and accepted tokens of `steps` steps in which the first `right(step)` drafted tokens are right.
    fn run(steps: usize, cost: f32, right: impl Fn(usize) -> usize) -> [usize; 2] {
        let (mut control, mut total) = (DraftControl::default(), [0, 0]);
        for step in 0..steps {
            let drafted = control.next(cost);
            let accepted = drafted.min(right(step));
            if drafted > 0 {
                control.record(drafted, accepted);
            }
            total = [total[0] + drafted, total[1] + accepted];
        }
        total
    }

    #[test]
    fn a_sequence_whose_drafts_are_rejected_drafts_less_than_one_token_in_fifty_steps() {
        let [drafted, accepted] = run(2000, 0.25, |_| 0);
        assert!(drafted <= 40 && accepted == 0, "{drafted}");
        let [early, _] = run(50, 0.25, |_| 0);
        assert!(early <= 8, "{early} in the first 50 steps");
    }

    #[test]
    fn a_sequence_whose_drafts_are_accepted_drafts_the_most() {
        let [drafted, accepted] = run(100, 0.25, |_| MAX_DRAFT);
        assert!(drafted == accepted && drafted > 90 * MAX_DRAFT, "{drafted} in 100 steps");
    }

    #[test]
    fn a_sequence_that_becomes_repetitive_is_noticed_within_the_longest_pause() {
        let [drafted, accepted] = run(2000, 0.25, |step| if step < 1900 { 0 } else { MAX_DRAFT });
        assert!(accepted > 20 * MAX_DRAFT, "{drafted} drafted, {accepted} accepted");
    }

    #[test]
    fn a_row_costs_more_in_a_larger_batch() {
        let costs = [1, 4, 32, 1000].map(|rows| cost_in_batch(0.2, rows));
        assert!(costs[0] == 0.2 && costs.is_sorted() && costs[3] < 1.0, "{costs:?}");
        assert_eq!(cost_in_batch(0.2, 0), 0.2);
    }
}
