//! A reward that is a function of one completion.
use super::error::RewardError;
use super::reward::{Reward, RewardInput, RewardReply, RewardRow};

/// A reward that is a function of one completion.
///
/// The function returns a finite number, or `None` if the reward does not apply. An implementation of [`Reward`] can also
/// score a batch in parallel, give several rewards, fail, or continue completions.
#[derive(Debug)]
pub struct FunctionReward<F> {
    names: [String; 1],
    function: F,
}

impl<F: FnMut(&RewardInput<'_>) -> Option<f64> + Send> FunctionReward<F> {
    /// The reward `name`, as metrics show it.
    pub fn new(name: &str, function: F) -> FunctionReward<F> {
        FunctionReward { names: [name.to_string()], function }
    }
}

impl<F: FnMut(&RewardInput<'_>) -> Option<f64> + Send> Reward for FunctionReward<F> {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let row = |input: &RewardInput<'_>| {
            let reply = RewardReply::Rewards(vec![(self.function)(input)]);
            RewardRow { at: input.location(), reply }
        };
        Ok(batch.iter().map(row).collect())
    }
}
