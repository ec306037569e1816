//! The paths under test: passes over a cache with any batch, and the engine.
use xtrain::decode::cache::{Cache, Snapshot};
use xtrain::decode::{CacheShape, Engine, EngineOptions, KvMemory, LayerOffload, LogitsRows, Room};
use xtrain::model::{Eager, Error, Model, Rows};

use super::case::{Batch, Case, Driver, SEED, Seq};
use super::oracle::{Answers, device, model};
use super::outcome::{Difference, RowId, Seen, What};
use crate::rng::CaseRng;

/// Runs a case and compares every row of logits that it computes.
pub(super) fn run(case: &Case, answers: &Answers) -> Result<Seen, Difference> {
    let failed = |e: Error| Difference::new(case, RowId::FIRST, What::Failed(e.to_string()));
    let model = model(case, &device(case.threads, case.simd)).map_err(failed)?;
    match case.driver {
        Driver::Passes { .. } => Passes::new(case, answers, &model).run(),
        Driver::Engine { .. } => engine(case, answers, &model),
    }
}

/// The memory of the cache, with layers in host memory if the case offloads them.
fn memory(case: &Case, model: &Model, room: Room) -> KvMemory {
    let Some(layers) = case.layers_in_memory else { return KvMemory::default() };
    let (n_layers, slots) = (case.cfg.n_layers, case.kv.allocated_slots(room) as usize);
    let layer = slots * CacheShape::of(model).stored_as(case.kv.dtype()).bytes_per_token() / n_layers;
    let checksums = n_layers * 16 * slots.div_ceil(64);
    KvMemory::offloading(LayerOffload::in_memory(layers * layer + checksums, usize::MAX))
}

/// Passes of `Model::forward` over one cache.
struct Passes<'a> {
    case: &'a Case,
    answers: &'a Answers,
    model: &'a Model,
    cache: Box<dyn Cache>,
    /// Number of cached positions of each sequence.
    done: Vec<usize>,
    rng: CaseRng,
    seen: Seen,
}

impl<'a> Passes<'a> {
    fn new(case: &'a Case, answers: &'a Answers, model: &'a Model) -> Passes<'a> {
        let room = Room { sequences: case.seqs.len(), positions: case.longest(), slots: None };
        let cache =
            case.kv.cache(model, room, memory(case, model, room)).unwrap().expect("a case has a cache");
        let done = vec![0; case.seqs.len()];
        let rng = CaseRng::new(SEED ^ 4, case.number);
        Passes { case, answers, model, cache, done, rng, seen: Seen::default() }
    }

    fn run(mut self) -> Result<Seen, Difference> {
        let Driver::Passes { mut rewinds, .. } = self.case.driver else { return Ok(self.seen) };
        loop {
            let members = self.members();
            if members.is_empty() {
                return Ok(self.seen);
            }
            let mut runs = Vec::new();
            for s in members {
                self.share(s)?;
                runs.push((s, self.done[s]..self.done[s] + self.take(s)));
            }
            self.pass(&runs)?;
            if rewinds > 0 && self.rng.one_in(4) {
                rewinds -= 1;
                self.rewind(runs[0].0)?;
            }
        }
    }

    /// The sequences of the next pass: those that are not finished and whose shared prefix is cached.
    fn members(&mut self) -> Vec<usize> {
        let ready = |&s: &usize| {
            let Seq { len, prefix, .. } = self.case.seqs[s];
            self.done[s] < len && (self.done[s] > 0 || prefix.is_none_or(|(of, len)| self.done[of] >= len))
        };
        let mut all: Vec<usize> = (0..self.case.seqs.len()).filter(ready).collect();
        if let Driver::Passes { batch, .. } = self.case.driver
            && batch != Batch::All
            && !all.is_empty()
        {
            self.rng.shuffle(&mut all);
            all.truncate(if batch == Batch::One { 1 } else { self.rng.between(1, all.len()) });
        }
        all
    }

    /// Number of rows of sequence `s` in the next pass.
    fn take(&mut self, s: usize) -> usize {
        let Seq { prompt, chunk, .. } = self.case.seqs[s];
        let left = prompt.saturating_sub(self.done[s]);
        let max = if self.rng.one_in(2) { chunk } else { self.rng.between(1, chunk) };
        max.min(left).max(1)
    }

    /// Forks the shared prefix of a sequence that starts.
    fn share(&mut self, s: usize) -> Result<(), Difference> {
        if let (0, Some((of, len))) = (self.done[s], self.case.seqs[s].prefix)
            && self.cache.can_rewind(of as u32, len)
        {
            let forked = self.cache.fork(of as u32, s as u32, len);
            let row = RowId { sequence: s, position: 0 };
            forked.map_err(|e| Difference::new(self.case, row, What::Failed(e.to_string())))?;
            (self.done[s], self.seen.shared) = (len, true);
        }
        Ok(())
    }

    /// Removes the last positions of sequence `s` from the cache, or all of them, if rows before them are overwritten
    /// too.
    fn rewind(&mut self, s: usize) -> Result<(), Difference> {
        let len = if self.rng.one_in(2) { 0 } else { self.rng.below(self.done[s]) };
        let len = if self.cache.can_rewind(s as u32, len) { len } else { 0 };
        let row = RowId { sequence: s, position: len };
        match len {
            0 => self.cache.free(s as u32),
            len => self
                .cache
                .rewind(Snapshot { seq: s as u32, len })
                .map_err(|e| Difference::new(self.case, row, What::Failed(e.to_string())))?,
        }
        (self.done[s], self.seen.recomputed) = (len, true);
        Ok(())
    }

    /// Runs one pass and compares its logits.
    fn pass(&mut self, runs: &[(usize, std::ops::Range<usize>)]) -> Result<(), Difference> {
        let row = |sequence: usize, position: usize| RowId { sequence, position };
        let mut at: Vec<RowId> =
            runs.iter().flat_map(|(s, range)| range.clone().map(|t| row(*s, t))).collect();
        if let Driver::Passes { interleaved: true, .. } = self.case.driver {
            // the rows of one sequence keep their order
            let begin = |s: usize| runs.iter().find(|r| r.0 == s).expect("a run of each sequence").1.start;
            at.sort_by_key(|row| row.position - begin(row.sequence));
        }
        let mut rows = Rows::default();
        at.iter().for_each(|&RowId { sequence: s, position: t }| {
            rows.push(s as u32, t as u32, self.answers.tokens[s][t]);
        });
        let hidden = self.model.forward(&mut Eager, &mut *self.cache, &rows);
        let logits = hidden.and_then(|h| self.model.logits(&h));
        let logits = logits.map_err(|e| Difference::new(self.case, at[0], What::Failed(e.to_string())))?;
        let logits = logits.data::<f32>().expect("logits are f32");
        for (&at, got) in at.iter().zip(logits.chunks_exact(self.case.cfg.vocab)) {
            self.answers.compare(self.case, at, got)?;
        }
        let complete = |r: &(usize, std::ops::Range<usize>)| r.1.len() == self.case.seqs[r.0].len;
        let single = |r: &&(usize, std::ops::Range<usize>)| r.1.len() == 1;
        let singles = runs.iter().filter(single).count();
        self.seen.rows += at.len();
        self.seen.chunked |= !runs.iter().all(complete);
        self.seen.mixed |= runs.len() > 1;
        self.seen.prefill_with_decode |= singles > 0 && singles < runs.len();
        runs.iter().for_each(|(s, range)| self.done[*s] = range.end);
        Ok(())
    }
}

/// Runs the engine and compares every row of logits, every token and every log-probability.
fn engine(case: &Case, answers: &Answers, model: &Model) -> Result<Seen, Difference> {
    let Driver::Engine { max_batch, max_batched_tokens, spare, group, prefix_caching } = case.driver else {
        return Ok(Seen::default());
    };
    let failed = |e: xtrain::decode::Error| Difference::new(case, RowId::FIRST, What::Failed(e.to_string()));
    let options = EngineOptions {
        kv: case.kv,
        prefill_chunk: Some(case.seqs[0].chunk),
        max_batch,
        max_batched_tokens,
        max_seq_len: None,
        kv_capacity: spare.map(|n| case.longest() + case.page() + n),
        watermark: Some(0),
        logits_rows: LogitsRows::All,
        prefix_caching,
        ..EngineOptions::default()
    };
    let memory = memory(case, model, options.room(model.config()));
    let mut engine = Engine::with_memory(model, options, memory).map_err(failed)?;
    let mut s = 0;
    while s < answers.requests.len() {
        let g = if s == 0 { group } else { 1 };
        engine.submit_group(answers.requests[s].0.clone(), g).map_err(failed)?;
        s += g;
    }
    let (mut seen, mut first) = (Seen::default(), Ok(()));
    // one past the last position of each sequence that was computed
    let mut computed = vec![0; answers.requests.len()];
    while !engine.is_idle() {
        let mut rows = 0;
        let step = engine.step_watched(&mut |row| {
            rows += 1;
            seen.member_recomputed |= row.index < group && group > 1 && row.position < computed[row.index];
            computed[row.index] = computed[row.index].max(row.position + 1);
            let at = RowId { sequence: row.index, position: row.position };
            if first.is_ok() {
                first = match row.position < answers.tokens[row.index].len() {
                    true => answers.compare(case, at, row.logits),
                    false => Err(Difference::new(case, at, What::Failed("a row past the end".into()))),
                };
            }
        });
        let step = step.map_err(|e| {
            let at = match e {
                xtrain::decode::Error::Model(Error::CachePosition { seq, want, .. }) => {
                    RowId { sequence: seq as usize, position: want as usize }
                }
                _ => RowId::FIRST,
            };
            let what = What::Failed(e.to_string());
            first.clone().err().unwrap_or_else(|| Difference::new(case, at, what))
        })?;
        seen.mixed |= step.events.len() > 1 || step.decode_rows > 1;
        seen.prefill_with_decode |= step.decode_rows > 0 && step.prefill_rows > 0;
        seen.rows += rows;
        first.clone()?;
    }
    seen.mixed |= seen.prefill_with_decode;
    let counters = engine.counters();
    (seen.shared, seen.recomputed) = (counters.forks > 0, counters.preemptions > 0);
    seen.prefix_hit = counters.prefix_cache_hits > 0;
    seen.evicted = engine.cache().is_some_and(|cache| cache.usage().evicted > 0);
    let mut got = engine.take_finished();
    got.sort_by_key(|c| c.index);
    for (s, (got, (_, want))) in got.iter().zip(&answers.requests).enumerate() {
        seen.chunked |= want.tokens.len() > 1;
        let pairs = got.tokens.iter().zip(&want.tokens);
        if let Some((n, (&got, &want))) = pairs.enumerate().find(|(_, (a, b))| a != b) {
            let row = RowId { sequence: s, position: case.seqs[s].prompt + n };
            return Err(Difference::new(case, row, What::Token { got, want }));
        }
        if let Err(e) = crate::decode::same(got, want) {
            let row = RowId { sequence: s, position: case.seqs[s].prompt };
            return Err(Difference::new(case, row, What::Failed(e)));
        }
    }
    match got.len() == answers.requests.len() {
        true => Ok(seen),
        false => {
            let row = RowId { sequence: got.len(), position: 0 };
            Err(Difference::new(case, row, What::Failed("it never finished".into())))
        }
    }
}
