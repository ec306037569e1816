//! The rewards of a batch of completions.
use super::Error;
use super::batch::Group;
use super::scores::Scores;
use crate::rewards::{Reward, RewardInput, RewardRow};
use crate::tensor::faults::{self, Fault};

/// All reward functions of a run.
pub struct Scorer {
    rewards: Vec<Box<dyn Reward>>,
    weights: Vec<f64>,
}

impl Scorer {
    /// A scorer with one weight per reward name, in the order of the rewards. Empty: 1 for each.
    pub fn new(rewards: Vec<Box<dyn Reward>>, weights: Vec<f64>) -> Scorer {
        Scorer { rewards, weights }
    }

    /// The names of all rewards. A reward program's are known after its first batch.
    pub fn names(&self) -> Vec<String> {
        self.rewards.iter().flat_map(|reward| reward.names().iter().cloned()).collect()
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
        let named = |(at, reward): (usize, &'_ Box<dyn Reward>)| {
            reward.names().iter().map(move |name| (at, name.clone())).collect::<Vec<_>>()
        };
        let all: Vec<(usize, String)> = self.rewards.iter().enumerate().flat_map(named).collect();
        for (i, (second, name)) in all.iter().enumerate() {
            if let Some((first, _)) = all[..i].iter().find(|(_, other)| other == name) {
                return Err(Error::RewardNames { name: name.clone(), rewards: [*first, *second] });
            }
        }
        Ok(())
    }

    /// The rewards of all completions of `groups`.
    ///
    /// # Errors
    /// As [`Reward::score`] and [`Scorer::weights`]; [`Error::RewardNames`] for two rewards of one name;
    /// [`Error::RewardOrder`] and [`Error::RewardCount`] for a reward that does not return one row per completion, in
    /// order.
    pub fn score(&mut self, groups: &[Group]) -> Result<Scores, Error> {
        let input = |group: usize, at: usize| {
            let Group { prompt, samples, .. } = &groups[group];
            let sample = &samples[at];
            RewardInput {
                prompt: &prompt.text,
                completion: &sample.text,
                prompt_ids: &prompt.ids,
                completion_ids: &sample.tokens,
                columns: &prompt.columns,
                prompt_index: group,
                completion_index: at,
                finish_reason: sample.finish,
            }
        };
        let indices =
            groups.iter().enumerate().flat_map(|(g, group)| (0..group.samples.len()).map(move |i| (g, i)));
        let batch: Vec<RewardInput<'_>> = indices.map(|(group, at)| input(group, at)).collect();
        let mut each = vec![Vec::new(); batch.len()];
        for reward in &mut self.rewards {
            let mut rows = reward.score(&batch)?;
            if faults::on(Fault::RewardOfTheNeighbor) {
                rows.rotate_right(1);
            }
            check_rows(reward.names(), &batch, &rows)?;
            each.iter_mut().zip(rows).for_each(|(all, row)| all.extend(row.rewards));
        }
        self.check_names()?;
        let weights = self.weights()?;
        let total = each.iter().map(|rewards| weighted_sum(rewards, &weights)).collect();
        Ok(Scores { each, total })
    }
}

/// Checks that row i has the rewards of completion i, one per name.
fn check_rows(names: &[String], batch: &[RewardInput<'_>], rows: &[RewardRow]) -> Result<(), Error> {
    let reward = || names.join(", ");
    for (input, row) in batch.iter().zip(rows) {
        let (want, found) = (input.location(), row.at);
        if want != found {
            return Err(Error::RewardOrder { reward: reward(), want, found });
        }
        if row.rewards.len() != names.len() {
            let (want, found) = (names.len(), row.rewards.len());
            return Err(Error::RewardCount { reward: reward(), of: "values", want, found });
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

/// `sum_f w_f r_f` over the rewards that apply, f rising from +0.
fn weighted_sum(rewards: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let known = || rewards.iter().zip(weights).filter_map(|(r, w)| r.map(|r| w * r));
    known().next().is_some().then(|| known().fold(0.0, |sum, x| sum + x))
}
