//! Which rows a step runs.
use std::ops::Range;

use xtrain_model::{Error as ModelError, Rows};
use xtrain_tensor::faults::{self, Fault};

use super::engine::Engine;
use crate::error::Result;

/// The rows of a step, and whose they are.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rows: Rows,
    pub(super) runs: Vec<Run>,
    /// The rows that a token is drawn from.
    pub(super) drawn: Vec<usize>,
    /// Rows at positions of a prompt.
    pub(super) prefill_rows: usize,
}

/// Consecutive rows of one sequence.
#[derive(Debug)]
pub(super) struct Run {
    /// Its place among those under way.
    pub(super) live: usize,
    pub(super) rows: Range<usize>,
    /// Whether a token is drawn from the last of them.
    pub(super) draws: bool,
}

impl Plan {
    fn clear(&mut self) {
        self.rows.id.clear();
        self.rows.seq.clear();
        self.rows.pos.clear();
        self.runs.clear();
        self.drawn.clear();
        self.prefill_rows = 0;
    }
}

impl Engine<'_> {
    /// The rows of the next step; sequences give up their room until the others have enough.
    pub(super) fn fill(&mut self, plan: &mut Plan) -> Result<()> {
        self.begin_waiting()?;
        while !self.try_fill(plan)? {
            self.preempt();
        }
        Ok(())
    }

    /// New tokens first, then prompts, the oldest sequence first; false when the cache is too small for
    /// all of them.
    fn try_fill(&mut self, plan: &mut Plan) -> Result<bool> {
        plan.clear();
        let most = self.options.max_batched_tokens.unwrap_or(usize::MAX);
        for prompts in [false, true] {
            for at in 0..self.live.len() {
                let sequence = &self.live[at];
                let due = sequence.tokens.len() - sequence.done;
                if sequence.waits || sequence.end.is_some() || (due > 1) != prompts {
                    continue;
                }
                let left = most - plan.rows.len().min(most);
                let take = match &mut self.cache {
                    // Without a cache all rows of a sequence run, or none.
                    None => due * usize::from(left >= due || plan.rows.is_empty()),
                    Some(cache) => {
                        let chunk = if prompts { self.options.prefill_chunk } else { None };
                        let take = due.min(left).min(chunk.unwrap_or(due));
                        match cache.reserve(sequence.lane, sequence.done + take) {
                            Ok(()) => take,
                            Err(ModelError::CacheFull { .. }) if self.live.len() > 1 => return Ok(false),
                            Err(e) => return Err(e.into()),
                        }
                    }
                };
                if take > 0 {
                    self.add_run(plan, at, take);
                }
            }
        }
        Ok(true)
    }

    /// Adds the next `take` rows of the sequence at `at`.
    fn add_run(&self, plan: &mut Plan, at: usize, take: usize) {
        let sequence = &self.live[at];
        let (start, end) = (plan.rows.len(), sequence.done + take);
        for pos in sequence.done..end {
            let prompt = pos < sequence.prompt_len();
            let told = pos + usize::from(!prompt && faults::on(Fault::PositionOffByOne));
            plan.rows.push(sequence.lane, told as u32, sequence.tokens[pos]);
            plan.prefill_rows += usize::from(prompt);
        }
        let (rows, draws) = (start..start + take, end == sequence.tokens.len());
        if draws {
            plan.drawn.push(rows.end - 1);
        }
        plan.runs.push(Run { live: at, rows, draws });
    }
}
