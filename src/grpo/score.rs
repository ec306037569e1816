//! The rewards of a batch of completions.
use super::scores::Scores;
use super::{Error, exchange};
use crate::model::comm::Communicator;
use crate::model::rl::weighted_reward;
use crate::rewards::{Reward, RewardInput, RewardReply, RewardRow};
use crate::tensor::faults::{self, Fault};

/// All reward functions of a run. Of several processes, the first one has them, and the others receive its replies: a
/// reward program is started once and scores the whole batch.
pub struct Scorer {
    /// Empty in a process that receives the replies.
    rewards: Vec<Box<dyn Reward>>,
    weights: Vec<f64>,
    /// The names that the first process sent.
    received: Vec<String>,
}

impl Scorer {
    /// A scorer with one weight per reward name, in the order of the rewards. Empty: 1 for each. No rewards: those of
    /// the first process.
    pub fn new(rewards: Vec<Box<dyn Reward>>, weights: Vec<f64>) -> Scorer {
        Scorer { rewards, weights, received: Vec::new() }
    }

    /// The names of all rewards. A reward program's are known after its first batch.
    pub fn names(&self) -> Vec<String> {
        match self.rewards.is_empty() {
            true => self.received.clone(),
            false => self.rewards.iter().flat_map(|reward| reward.names().iter().cloned()).collect(),
        }
    }

    /// The weight of each reward.
    ///
    /// # Errors
    /// [`Error::RewardWeights`] for a wrong number of weights.
    pub fn weights(&self) -> Result<Vec<f64>, Error> {
        let names = self.names();
        match self.weights.len() {
            0 => Ok(vec![1.0; names.len()]),
            n if n == names.len() => Ok(self.weights.clone()),
            found => Err(Error::RewardWeights { names, found }),
        }
    }

    /// Checks that no two rewards have one name.
    fn check_names(&self) -> Result<(), Error> {
        let mut all: Vec<(usize, &String)> = Vec::new();
        for (at, reward) in self.rewards.iter().enumerate() {
            all.extend(reward.names().iter().map(|name| (at, name)));
        }
        for (i, (second, name)) in all.iter().enumerate() {
            if let Some((first, _)) = all[..i].iter().find(|(_, other)| other == name) {
                return Err(Error::RewardNames { name: (*name).clone(), rewards: [*first, *second] });
            }
        }
        Ok(())
    }

    /// Announces completions whose last turn has ended and their places in the batch of the next [`Scorer::reply`].
    /// Each completion is announced at most once. If completions may have several turns, only the first reward is
    /// informed: which completions the others score depends on its replies.
    ///
    /// # Errors
    /// As [`Reward::announce`].
    pub fn announce(&mut self, places: &[usize], inputs: &[RewardInput<'_>]) -> Result<(), Error> {
        let has_turns = inputs.iter().any(|input| input.turn.is_some());
        let informed = if has_turns { 1 } else { self.rewards.len() };
        for reward in self.rewards.iter_mut().take(informed) {
            reward.announce(places, inputs)?;
        }
        Ok(())
    }

    /// No [`Scorer::reply`] follows for the announced completions.
    pub fn discard_announced(&mut self) {
        self.rewards.iter_mut().for_each(|reward| reward.discard_announced());
    }

    /// The reply to each completion of `batch`, which the first process of `comm` scores and sends to the others.
    ///
    /// # Errors
    /// As [`Reward::score`]; [`Error::RewardOrder`] and [`Error::RewardCount`] for a reward that does not return one
    /// row per completion, in order; [`Error::Append`] for text to a completion that cannot be continued; a process has
    /// ended.
    pub fn reply(
        &mut self,
        batch: &[RewardInput<'_>],
        comm: &dyn Communicator,
    ) -> Result<Vec<RewardReply>, Error> {
        let own = if comm.rank() == 0 { self.score(batch)? } else { Vec::new() };
        let (names, replies) = exchange::replies(comm, (self.names(), own))?;
        self.received = names;
        Ok(replies)
    }

    /// The reply to each completion of `batch`: the values of all rewards, or text to continue with. The rewards score
    /// in their order. If one continues a completion, those after it do not score the completion in this turn.
    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardReply>, Error> {
        let mut replies = vec![RewardReply::Rewards(Vec::new()); batch.len()];
        for reward in &mut self.rewards {
            let pairs = batch.iter().zip(&mut replies);
            let open = pairs.filter(|(_, reply)| matches!(reply, RewardReply::Rewards(_)));
            let (asked, replies): (Vec<RewardInput<'_>>, Vec<&mut RewardReply>) =
                open.map(|(input, reply)| (*input, reply)).unzip();
            let mut rows = reward.score(&asked)?;
            if faults::on(Fault::RewardOfTheNeighbor) {
                rows.rotate_right(1);
            }
            check_rows(reward.names(), &asked, &rows)?;
            for (reply, row) in replies.into_iter().zip(rows) {
                match (reply, row.reply) {
                    (RewardReply::Rewards(all), RewardReply::Rewards(new)) => all.extend(new),
                    (reply, new) => *reply = new,
                }
            }
        }
        Ok(replies)
    }

    /// The scores of completions from the values of all rewards `[B * G][F]`.
    ///
    /// # Errors
    /// As [`Scorer::weights`]; [`Error::RewardNames`] for two rewards of one name.
    pub fn scores(&self, each: Vec<Vec<Option<f64>>>) -> Result<Scores, Error> {
        self.check_names()?;
        let weights = self.weights()?;
        let total = each.iter().map(|rewards| weighted_reward(rewards, &weights)).collect();
        Ok(Scores { each, total })
    }
}

/// Checks that row i is the reply to completion i: one reward per name, or text if it can be continued.
fn check_rows(names: &[String], batch: &[RewardInput<'_>], rows: &[RewardRow]) -> Result<(), Error> {
    let reward = || names.join(", ");
    for (input, row) in batch.iter().zip(rows) {
        let (want, found) = (input.location(), row.at);
        if want != found {
            return Err(Error::RewardOrder { reward: reward(), want, found });
        }
        match &row.reply {
            RewardReply::Rewards(rewards) if rewards.len() != names.len() => {
                let (want, found) = (names.len(), rewards.len());
                return Err(Error::RewardCount { reward: reward(), of: "values", want, found });
            }
            RewardReply::Append(text) if !input.can_append() => {
                let found = format!("the text {text:?} to append");
                return Err(Error::Append { at: input.location(), want: "rewards", found });
            }
            _ => {}
        }
    }
    match rows.len() == batch.len() {
        true => Ok(()),
        false => {
            let (want, found) = (batch.len(), rows.len());
            Err(Error::RewardCount { reward: reward(), of: "completions", want, found })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::decode::FinishReason;
    use crate::rewards::{RewardError, Turn};

    /// Counts the completions that are announced.
    struct Counter(Arc<AtomicUsize>);

    impl Reward for Counter {
        fn names(&self) -> &[String] {
            &[]
        }

        fn announce(&mut self, places: &[usize], _: &[RewardInput<'_>]) -> Result<(), RewardError> {
            self.0.fetch_add(places.len(), Ordering::Relaxed);
            Ok(())
        }

        fn score(&mut self, _: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
            Ok(Vec::new())
        }
    }

    /// How many completions each of three rewards is told of when two end.
    fn announced(turn: Option<Turn<'_>>) -> [usize; 3] {
        let counts = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let rewards = counts.iter().map(|count| Box::new(Counter(Arc::clone(count))) as Box<dyn Reward>);
        let mut scorer = Scorer::new(rewards.collect(), Vec::new());
        let columns = serde_json::Map::new();
        let input = RewardInput {
            prompt: "",
            completion: "",
            prompt_ids: &[],
            completion_ids: &[],
            columns: &columns,
            prompt_index: 0,
            completion_index: 0,
            finish_reason: FinishReason::Eos,
            truncated: false,
            turn,
        };
        scorer.announce(&[4, 7], &[input, RewardInput { completion_index: 1, ..input }]).unwrap();
        counts.map(|count| count.load(Ordering::Relaxed))
    }

    #[test]
    fn a_completion_with_turns_is_announced_to_the_first_reward_only() {
        assert_eq!(announced(None), [2, 2, 2]);
        assert_eq!(announced(Some(Turn { number: 1, text: "", mask: &[], can_append: true })), [2, 0, 0]);
    }
}
