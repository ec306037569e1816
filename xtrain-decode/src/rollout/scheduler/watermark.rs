//! The part of the cache that stays free when a sequence is admitted, so that the running sequences can grow.
use xtrain_tensor::faults::{self, Fault};

use super::Scheduler;
use super::growth::{Growth, peak};
use crate::cache::Cache;
use crate::rollout::sequence::Sequence;

impl Scheduler {
    /// Whether the cache keeps room for the growth of the running sequences if the next sequence is admitted. `true` if
    /// no sequence runs.
    pub(super) fn is_above_watermark(&self) -> bool {
        let (Some(page), Some(cache)) = (self.options.kv.page(), &self.cache) else { return true };
        let Some(next) = self.waiting.front() else { return true };
        if self.running.is_empty() || faults::on(Fault::WatermarkIgnored) {
            return true;
        }
        match self.options.watermark {
            Some(0) => true,
            Some(tokens) => self.keeps_free(&**cache, next, page, tokens),
            // the cache has room for all sequences
            None if self.options.kv_capacity.is_none() => true,
            None => self.fits_until_the_end(&**cache, next, page),
        }
    }

    /// Whether `tokens` stay free, in whole pages, if `next` is admitted and all sequences have room for their tokens so
    /// far.
    fn keeps_free(&self, cache: &dyn Cache, next: &Sequence, page: usize, tokens: usize) -> bool {
        let page = if faults::on(Fault::WatermarkCountsTokens) { 1 } else { page };
        let own = if self.shares_prompt(next) { 1 } else { len(next) };
        let missing = |s: &Sequence| if forks(s) { page } else { cache.missing(s.slot, s.tokens().len()) };
        let pending = self.running.iter().map(missing).fold(0, usize::saturating_add);
        let kept = tokens.div_ceil(page).saturating_mul(page);
        cache.available().saturating_sub(pending) >= own.next_multiple_of(page).saturating_add(kept)
    }

    /// Whether no sequence is expected to be preempted if `next` is admitted.
    fn fits_until_the_end(&self, cache: &dyn Cache, next: &Sequence, page: usize) -> bool {
        let expected = self.finished_lengths.expected(self.running.iter().map(Sequence::new_tokens).sum());
        let left = |s: &Sequence| (s.required_len(&self.cfg) - len(s)).min(expected);
        let mut all: Vec<Growth> = Vec::with_capacity(self.running.len() + 1);
        for s in &self.running {
            let len = len(s);
            let shared = if s.leader.is_some() { len } else { self.prompt_in_common(s) } / page;
            let missing =
                if forks(s) { len.div_ceil(page) - shared } else { cache.missing(s.slot, len) / page };
            let own = len.div_ceil(page).saturating_sub(missing + shared);
            all.push(Growth { len, left: left(s), missing, own });
        }
        let len = len(next);
        let shared = if self.shares_prompt(next) { self.prompt_in_common(next) / page } else { 0 };
        all.push(Growth { len, left: left(next), missing: len.div_ceil(page) - shared, own: 0 });
        // the rows of finished sequences give way
        let held: usize = self.held.with_rows().map(|s| s.num_computed.div_ceil(page)).sum();
        peak(&mut all, page) <= cache.available() / page + held
    }

    /// The tokens at the beginning of a sequence whose pages others of its group have, too.
    fn prompt_in_common(&self, sequence: &Sequence) -> usize {
        if self.groups.contains(sequence.group) { sequence.prompt().len() } else { 0 }
    }

    /// Whether `next` would fork the prompt of a running sequence.
    fn shares_prompt(&self, next: &Sequence) -> bool {
        let rows_of_group = |s: &Sequence| s.group == next.group && s.holds_prompt();
        next.is_fresh() && self.groups.contains(next.group) && self.running.iter().any(rows_of_group)
    }
}

/// Tokens of a running or waiting sequence.
fn len(sequence: &Sequence) -> usize {
    sequence.prompt().len().max(sequence.tokens().len())
}

/// A sequence with the rows or the prompt of another one copies or adds the last page.
fn forks(sequence: &Sequence) -> bool {
    sequence.leader.is_some() || sequence.waits_for_prompt
}
