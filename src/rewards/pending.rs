//! The completions of a batch that wait for their replies.
use serde_json::Value;

use super::error::ReplyLocation;
use super::index::CompletionIndex;
use super::protocol::{Mismatch, find_id, mismatch};
use super::reward::{RewardInput, RewardReply, RewardRow};

/// The replies to a batch. Completion `at` has the id `first_id + at`.
pub(super) struct Pending<'a> {
    batch: &'a [RewardInput<'a>],
    first_id: u64,
    processes: usize,
    rows: Vec<Option<RewardReply>>,
    missing: usize,
}

impl<'a> Pending<'a> {
    pub(super) fn new(batch: &'a [RewardInput<'a>], first_id: u64, processes: usize) -> Pending<'a> {
        Pending { batch, first_id, processes, rows: vec![None; batch.len()], missing: batch.len() }
    }

    /// The completions of process `number`, in order.
    pub(super) fn part(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.batch.len()).filter(move |&at| self.process_of(at) == number)
    }

    fn process_of(&self, at: usize) -> usize {
        self.location(at).process(self.processes)
    }

    pub(super) fn location(&self, at: usize) -> CompletionIndex {
        self.batch[at].location()
    }

    /// Number of completions without a reply.
    pub(super) fn missing(&self) -> usize {
        self.missing
    }

    /// Number of completions of process `number` without a reply.
    pub(super) fn missing_of(&self, number: usize) -> usize {
        self.part(number).filter(|&at| self.rows[at].is_none()).count()
    }

    /// The first completion of process `number` without a reply.
    pub(super) fn first_missing_of(&self, number: usize) -> Option<usize> {
        self.part(number).find(|&at| self.rows[at].is_none())
    }

    /// The first completion without a reply, with the number of its process.
    pub(super) fn first_missing(&self) -> Option<(usize, usize)> {
        (0..self.processes).find_map(|number| Some((number, self.first_missing_of(number)?)))
    }

    /// The location for a line of process `number` without a usable id.
    pub(super) fn waiting(&self, number: usize) -> ReplyLocation {
        match self.first_missing_of(number) {
            Some(at) => ReplyLocation::WaitingFor(self.location(at)),
            None => ReplyLocation::AfterLastReply,
        }
    }

    /// The location for a line of process `number` that is not JSON: the completion of its id, if it has one.
    pub(super) fn location_of_text(&self, number: usize, line: &[u8]) -> ReplyLocation {
        let at = find_id(line).and_then(|id| self.index(id));
        at.map_or_else(|| self.waiting(number), |at| ReplyLocation::Completion(self.location(at)))
    }

    /// The completion of process `number` that a reply with `id` is for.
    ///
    /// # Errors
    /// No id, an id of no completion of this process, or a second reply.
    pub(super) fn find(&self, number: usize, id: Option<&Value>) -> Result<usize, (ReplyLocation, Mismatch)> {
        let refused = |want: &str, got: String| (self.waiting(number), mismatch(want, got));
        let id = match id {
            None => return Err(refused("the \"id\" of a completion", "no \"id\"".into())),
            Some(value) => value
                .as_u64()
                .ok_or_else(|| refused("the \"id\" of a completion as a whole number", value.to_string()))?,
        };
        match self.index(id) {
            None if id < self.first_id => Err(refused(
                "the \"id\" of a completion of this batch",
                format!("{id}, which is of an earlier batch"),
            )),
            Some(at) if self.process_of(at) == number && self.rows[at].is_none() => Ok(at),
            Some(at) if self.process_of(at) == number => {
                let place = ReplyLocation::Completion(self.location(at));
                Err((place, mismatch("one reply per completion", format!("a second reply with \"id\" {id}"))))
            }
            _ => Err(refused("the \"id\" of a completion that was sent to this process", id.to_string())),
        }
    }

    /// Whether completion `at` can be continued.
    pub(super) fn can_append(&self, at: usize) -> bool {
        self.batch[at].can_append()
    }

    /// Stores the reply to completion `at`, which has none.
    pub(super) fn insert(&mut self, at: usize, reply: RewardReply) {
        self.missing -= usize::from(self.rows[at].is_none());
        self.rows[at] = Some(reply);
    }

    /// The replies to the batch. Every completion has a reply.
    pub(super) fn into_rows(self) -> Vec<RewardRow> {
        let row = |(input, reply): (&RewardInput<'_>, Option<_>)| {
            Some(RewardRow { at: input.location(), reply: reply? })
        };
        self.batch.iter().zip(self.rows).filter_map(row).collect()
    }

    fn index(&self, id: u64) -> Option<usize> {
        let at = usize::try_from(id.checked_sub(self.first_id)?).ok()?;
        (at < self.batch.len()).then_some(at)
    }
}
