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
            let (at, reward) = (input.location(), (self.function)(input));
            match reward.filter(|reward| !reward.is_finite()) {
                None => Ok(RewardRow { at, reply: RewardReply::Rewards(vec![reward]) }),
                Some(found) => {
                    let [name] = &self.names;
                    let message = format!("reward {name:?}: {at}: expected a finite number, found {found}");
                    Err(RewardError::Other(message.into()))
                }
            }
        };
        batch.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::decode::FinishReason;

    #[test]
    fn rewards_are_those_of_the_function_and_must_be_finite() {
        let columns = Map::new();
        let input = |completion| RewardInput {
            prompt: "p",
            completion,
            prompt_ids: &[1],
            completion_ids: &[2],
            columns: &columns,
            prompt_index: 3,
            completion_index: 1,
            finish_reason: FinishReason::Eos,
            truncated: false,
            turn: None,
        };
        let parsed = |input: &RewardInput<'_>| input.completion.parse().ok();
        let mut reward = FunctionReward::new("number", parsed);
        assert_eq!(reward.names(), ["number"]);
        let rows = reward.score(&[input("1.5"), input("none")]).unwrap();
        let replies: Vec<RewardReply> = rows.into_iter().map(|row| row.reply).collect();
        let rewards = |reward| RewardReply::Rewards(vec![reward]);
        assert_eq!(replies, [rewards(Some(1.5)), rewards(None)]);
        let error = reward.score(&[input("1"), input("NaN")]).unwrap_err().to_string();
        assert!(error.contains("reward \"number\"") && error.contains("found NaN"), "{error}");
    }
}
