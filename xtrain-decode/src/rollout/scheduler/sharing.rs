//! Sequences of a group with equal tokens share their rows: the oldest, the leader, computes them, and the others, its
//! followers, are sampled from its logits. A follower whose next token differs forks the leader's rows.
use std::collections::HashMap;

use xtrain_model::Error as ModelError;
use xtrain_tensor::faults::{self, Fault};

use super::Scheduler;
use crate::error::Result;
use crate::rollout::plan::{ForkedSample, Outcome};

impl Scheduler {
    /// The sequence at `at` becomes a follower of the one at `leader`, which has just computed its prompt. Returns
    /// `false` if they cannot share rows.
    pub(super) fn follow(&mut self, at: usize, leader: usize) -> bool {
        let (first, prompt) = (&self.running[leader], self.running[leader].prompt().len());
        let at_prompt = first.num_computed == prompt && first.tokens().len() == prompt + 1;
        let shares = self.shares_rows && leader < at && at_prompt && first.leader.is_none();
        if !shares || faults::on(Fault::EqualSequencesComputedApart) {
            return false;
        }
        self.running[at].leader = Some(first.index);
        true
    }

    /// The next tokens of the followers of the sequence of `outcome` are due: they are sampled from its logits.
    pub(super) fn stage_followers(&mut self, outcome: &Outcome) {
        let leader = &self.running[outcome.running];
        let (Some(logits), true) = (&outcome.logits, leader.followers > 0) else { return };
        let (index, first_id) = (leader.index, self.running[0].id);
        for (running, sequence) in self.running.iter().enumerate().filter(|(_, s)| s.leader == Some(index)) {
            let spec = sequence.sample_spec(first_id, true);
            self.forked.push(ForkedSample { running, spec, logits: logits.clone() });
        }
    }

    /// Followers whose last token differs from their leader's fork its rows. Those with one token share the fork.
    pub(in crate::rollout) fn separate(&mut self) -> Result<()> {
        if self.running.iter().all(|sequence| sequence.leader.is_none() && sequence.followers == 0) {
            return Ok(());
        }
        // the place of each leader by its index, and of the first sequence with the rows of a leader and a last token
        let (mut leaders, mut first, mut result) = (HashMap::new(), HashMap::new(), Ok(()));
        for at in 0..self.running.len() {
            let sequence = &mut self.running[at];
            sequence.followers = 0;
            let family = sequence.leader.unwrap_or(sequence.index);
            let last = sequence.tokens().last().filter(|_| !faults::on(Fault::FollowerNotSeparated));
            let leader = *first.entry((family, last.copied())).or_insert(at);
            if leader != at {
                self.running[at].leader = Some(self.running[leader].index);
                self.running[leader].followers += 1;
            } else if self.running[at].leader.is_none() {
                leaders.insert(family, at);
            } else {
                result = result.and(self.fork_rows(at, leaders.get(&family).copied()));
            }
        }
        result
    }

    /// One of the followers of the sequence at `leader`, which leaves, forks its rows and leads the others.
    pub(super) fn release_followers(&mut self, leader: usize) {
        let index = self.running[leader].index;
        let follows = |&at: &usize| self.running[at].leader == Some(index);
        let followers: Vec<usize> = (0..self.running.len()).filter(follows).collect();
        let Some((&first, others)) = followers.split_first() else { return };
        // Without the fork it computes its rows itself.
        let _ = self.fork_rows(first, Some(leader));
        for &at in others {
            self.running[at].leader = Some(self.running[first].index);
        }
        self.running[first].followers = others.len();
        self.running[leader].followers = 0;
    }

    /// The follower at `at` gets the rows of its leader, which is at `leader`. Without a leader or room for the rows it
    /// computes them itself.
    fn fork_rows(&mut self, at: usize, leader: Option<usize>) -> Result<()> {
        let source = leader.map(|leader| (self.running[leader].slot, self.running[leader].num_computed));
        let sequence = &mut self.running[at];
        sequence.leader = None;
        let (Some((from, len)), Some(cache), None) = (source, &mut self.cache, sequence.end) else {
            return Ok(());
        };
        match cache.fork(from, sequence.slot, len) {
            Err(ModelError::CacheFull { .. }) => return Ok(()),
            forked => forked?,
        }
        sequence.num_computed = len;
        self.counters.forks += 1;
        Ok(())
    }
}
