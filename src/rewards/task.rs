//! The reward of a task.
use super::error::RewardError;
use super::reward::{Reward, RewardInput, RewardReply, RewardRow};
use crate::model::tasks::Task;

/// 1 for a completion that the task accepts, otherwise 0. See [`Task::check`]. The name of the reward is that of the
/// task.
#[derive(Debug)]
pub struct TaskReward {
    task: Box<dyn Task + Send + Sync>,
    names: [String; 1],
}

impl TaskReward {
    /// The reward of `task`.
    pub fn new(task: Box<dyn Task + Send + Sync>) -> TaskReward {
        let names = [task.name().to_string()];
        TaskReward { task, names }
    }
}

impl Reward for TaskReward {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let reward = |input: &RewardInput<'_>| {
            let correct = self.task.check(input.prompt, input.completion);
            let rewards = vec![Some(f64::from(u8::from(correct)))];
            RewardRow { at: input.location(), reply: RewardReply::Rewards(rewards) }
        };
        Ok(batch.iter().map(reward).collect())
    }
}
