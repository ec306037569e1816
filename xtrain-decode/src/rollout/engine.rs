//! The engine: a scheduler and a runner.
use super::completion::{Completion, Counters, Event, LogitRow, Step};
use super::model_handle::ModelHandle;
use super::options::{EngineOptions, Speculation};
use super::plan::Plan;
use super::request::Request;
use super::runner::{Batch, Runner, Watch};
use super::scheduler::{Scheduler, SnapshotId};
use super::sequence::Sequence;
use super::speculation::DraftModel;
use super::text_stops::TextStops;
use crate::cache::{Cache, CacheShape, KvMemory};
use crate::error::{Error, Result};
use crate::offload::OffloadStore;
use crate::prefix_file::KvPrefix;

/// Completes requests with continuous batching.
///
/// Each step is one forward pass over the scheduled rows: the next token of each running sequence, and prompts or
/// chunks of prompts. Finished sequences leave at once and waiting ones take their slots. The tokens of a sequence do
/// not depend on other sequences or on any [`EngineOptions`], except on a cache that is not exact
/// ([`KvKind::is_exact`](crate::KvKind::is_exact)).
///
/// No weight can change while an engine exists, so no cached prefix survives an optimizer step. An engine either borrows
/// its model or shares it with other owners ([`ModelHandle`]). This does not compile:
///
/// ```compile_fail,E0502
/// use xtrain_decode::{Engine, EngineOptions, Request};
/// use xtrain_model::{Config, Model};
/// use xtrain_tensor::{Device, Dtype};
///
/// let cfg = Config {
///     vocab: 64, dim: 16, ffn_dim: 32, n_layers: 1, n_heads: 2, n_kv_heads: 2, head_dim: 8,
///     max_positions: 128, rope_theta: 1e4, norm_eps: 1e-6, ..Config::default()
/// };
/// let mut model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 0).unwrap();
/// let mut engine = Engine::new(&model, EngineOptions::default()).unwrap();
/// model.params.norm.value_mut().unwrap(); // the engine borrows `model`
/// engine.submit(Request::greedy(&[1, 2, 3], 4)).unwrap();
/// ```
#[derive(Debug)]
pub struct Engine<'m> {
    model: ModelHandle<'m>,
    scheduler: Scheduler,
    runner: Runner<'m>,
    /// The plan of the current step. Reused to avoid allocations.
    plan: Plan,
    /// `None`: prompt lookup, or no drafts.
    draft_model: Option<DraftModel<'m>>,
    /// Positions that a sequence may have.
    max_seq_len: usize,
}

/// An engine can be moved to another thread.
const _: fn() = || {
    fn requires_send<T: Send>() {}
    requires_send::<Engine<'_>>();
};

impl<'m> Engine<'m> {
    /// Creates an engine without requests. Nothing is computed.
    ///
    /// # Errors
    /// [`Error::Option`] for an option outside its range. [`Error::Model`] if the device has no memory for the cache.
    pub fn new(model: impl Into<ModelHandle<'m>>, options: EngineOptions) -> Result<Engine<'m>> {
        Engine::with_memory(model, options, KvMemory::default())
    }

    /// [`Engine::new`] with the cache in the memory of an engine that has ended, which may have had other weights. No
    /// key, value or prefix of that engine is used. Or with layers offloaded: [`KvMemory::offloading`].
    ///
    /// # Errors
    /// As [`Engine::new`]; [`Error::Option`] for a kind of cache that cannot offload layers, or without room for them.
    pub fn with_memory(
        model: impl Into<ModelHandle<'m>>,
        options: EngineOptions,
        memory: KvMemory,
    ) -> Result<Engine<'m>> {
        let model = model.into();
        options.check(model.config())?;
        let shape = CacheShape::of(&model).stored_as(options.kv.dtype());
        memory.check(options.kv, &shape, options.room(model.config()))?;
        Ok(Engine {
            max_seq_len: options.room(model.config()).positions,
            scheduler: Scheduler::new(&model, options, memory)?,
            runner: Runner::new(model.clone(), options),
            plan: Plan::default(),
            draft_model: None,
            model,
        })
    }

    /// Lets `draft`, a smaller model with the same vocabulary, draft tokens from now on, instead of prompt lookup. It
    /// has a KV cache of its own, with room for the positions of all sequences. The completions do not depend on it.
    /// A step computes at most 256 rows of a sequence that the draft model lacks; the sequence drafts nothing until it
    /// has them all. An error of the draft model is an error of [`Engine::step`], as one of the model is.
    ///
    /// # Errors
    /// [`Error::Option`] if the vocabularies differ in size, without a cache, or with a sinks cache. [`Error::Model`]
    /// if the device has no memory for the cache.
    pub fn draft_with(&mut self, draft: impl Into<ModelHandle<'m>>) -> Result<()> {
        let options = self.scheduler.options;
        EngineOptions { speculation: Speculation::PromptLookup, ..options }.check(self.model.config())?;
        let draft_model = DraftModel::new(draft.into(), &self.model, options.room(self.model.config()))?;
        self.scheduler.draft_cost = Some(draft_model.cost(&self.model));
        self.draft_model = Some(draft_model);
        Ok(())
    }

    /// Moves the rows of preempted sequences to `store` from now on, if [`EngineOptions::preemption`] lets them move.
    /// An engine begins with a store of 1 GiB of host memory. Call it before the first step.
    ///
    /// # Errors
    /// [`Error::Option`] if the present store holds rows.
    pub fn offload_to(&mut self, store: OffloadStore) -> Result<()> {
        let own = &mut self.scheduler.offloading.store;
        if own.used() > 0 {
            let (want, got) =
                ("before a sequence is preempted", format!("{} bytes in the store", own.used()));
            return Err(Error::option("offload_to", want, got));
        }
        *own = store;
        Ok(())
    }

    /// The store of the rows of preempted sequences.
    pub fn offload_store(&self) -> &OffloadStore {
        &self.scheduler.offloading.store
    }

    /// Adds `request` to the waiting sequences. Returns its index in the order of submission.
    ///
    /// # Errors
    /// Those of [`Request::check`]; [`Error::Request`] if it may need more positions than the engine has for a
    /// sequence.
    pub fn submit(&mut self, request: Request) -> Result<usize> {
        self.submit_group(request, 1)
    }

    /// Adds `g` completions of one prompt to the waiting sequences: `request` with its id, and the `g - 1` ids after
    /// it. The prompt runs once and its cache room is shared. On the CPU, completions that have a slot when the prompt
    /// is complete also share the rows of their tokens as long as these are equal, unless
    /// [`EngineOptions::continuation`] is on. A waiting completion uses no memory, neither in the cache nor for its
    /// tokens. Returns the index of the first in the order of submission.
    ///
    /// # Errors
    /// As [`Engine::submit`]; [`Error::Option`] for `g` = 0 or ids beyond 2^64.
    pub fn submit_group(&mut self, request: Request, g: usize) -> Result<usize> {
        self.submit_prioritized(request, g, 0)
    }

    /// [`Engine::submit_group`] with a priority; that of other sequences is 0. A waiting sequence of priority p runs
    /// before each sequence of priority q >= p that is submitted [`EngineOptions::ageing`] (q - p) steps or more after
    /// it, so no sequence starves. Among all waiting sequences, the one with the smallest step of submission minus
    /// `ageing` x priority runs first; of equal ones, the one that was submitted first. A higher priority does not
    /// preempt running sequences.
    ///
    /// # Errors
    /// As [`Engine::submit_group`].
    pub fn submit_prioritized(&mut self, request: Request, g: usize, priority: i32) -> Result<usize> {
        self.check(&request)?;
        let id = request.id;
        if g == 0 || id.checked_add(g as u64 - 1).is_none() {
            let want = "at least 1 completion, with ids below 2^64";
            return Err(Error::option("completions", want, format!("{g} from id {id}")));
        }
        let position = request.prompt.len();
        let sampler = self.runner.sampler(request.options);
        let sampler = sampler.map_err(|source| Error::Sample { id, position, source })?;
        Ok(self.scheduler.submit(request, g, sampler, priority))
    }

    fn check(&self, request: &Request) -> Result<()> {
        let cfg = &self.scheduler.cfg;
        request.check(cfg)?;
        let (id, want, found) = (request.id, self.max_seq_len, request.required_len(cfg));
        if found > want {
            let what = format!("expected at most {want} positions for prompt and new tokens, found {found}");
            return Err(Error::Request { id, what });
        }
        Ok(())
    }

    /// Returns `true` if there are neither running nor waiting sequences.
    pub fn is_idle(&self) -> bool {
        self.live() == 0 && self.waiting() == 0
    }

    /// Number of running sequences.
    pub fn live(&self) -> usize {
        self.scheduler.running.len()
    }

    /// Number of waiting sequences.
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting.len()
    }

    /// Counts of the work done so far.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters
    }

    /// The cache. `None` for [`KvKind::Off`](crate::KvKind::Off).
    pub fn cache(&self) -> Option<&dyn Cache> {
        self.scheduler.cache.as_deref()
    }

    /// Allocates the cache room that the submitted requests need if none of them ends early, at most `max_bytes`.
    /// Otherwise a paged cache grows when it needs pages, and copies what it holds.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn reserve(&mut self, max_bytes: usize) -> Result<()> {
        self.scheduler.reserve(max_bytes)
    }

    /// Ends the engine and returns the memory of its cache for [`Engine::with_memory`].
    pub fn into_memory(self) -> KvMemory {
        self.scheduler.cache.map_or_else(KvMemory::default, Cache::into_memory)
    }

    /// Takes the completions that have finished since the last call, in the order in which they finished.
    pub fn take_finished(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.scheduler.finished)
    }

    /// Runs until the engine is idle. Returns the completions in the order of submission.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn run(&mut self) -> Result<Vec<Completion>> {
        while !self.is_idle() {
            self.step()?;
        }
        let mut all = self.take_finished();
        all.sort_by_key(|c| c.index);
        Ok(all)
    }

    /// The new tokens of the last step. After an error they are those that its other sequences have got.
    pub fn events(&self) -> &[Event] {
        &self.scheduler.events
    }

    /// Runs one forward pass over the scheduled rows and samples a token for each sequence whose last row ran. On a
    /// GPU, if all scheduled rows are decode rows, runs up to [`EngineOptions::steps_per_sync`] forward passes and
    /// samples as many tokens of each sequence. A step in which a sequence has drafted tokens is one forward pass, and
    /// gives that sequence one token more than the accepted ones.
    ///
    /// # Errors
    /// [`Error::Sample`] for a row of logits that gives no token: its sequence has left the engine, the other
    /// sequences have their tokens, which [`Engine::events`] returns. [`Error::Model`] if the forward pass fails, if one
    /// of the draft model fails, or if the cache has no room for a single sequence: no sequence has a new token of the
    /// pass then.
    pub fn step(&mut self) -> Result<Step<'_>> {
        self.advance(None)
    }

    /// [`Engine::step`]; `watch` receives every row of logits that the LM head computes, once for each sequence whose
    /// next token is sampled from it, except for the first tokens of sequences that share a prompt.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_watched(&mut self, watch: &mut dyn FnMut(LogitRow<'_>)) -> Result<Step<'_>> {
        self.advance(Some(watch))
    }

    /// Continues a finished sequence: appends `tokens`, which are not sampled, and samples up to `max_new` tokens after
    /// them. Returns the index of the continuation. It is a sequence of its own with the same id, seed, sampling
    /// options and stop tokens: its prompt is the prompt, the completion and `tokens`. Its results are those of this
    /// [`Request`]; random numbers are addressed by position, so none is used twice.
    ///
    /// The cached rows of the finished sequence are not computed again, unless another sequence needed their room; see
    /// [`Continuation`](crate::Continuation). The last token of the completion has no row yet and runs with `tokens`.
    /// A sequence can be continued once. All sampled tokens are continued, also those that
    /// [`TextStops::finish`](crate::TextStops::finish) has cut from the completion. Their number depends on speculation
    /// and on [`EngineOptions::steps_per_sync`]: after a stop text, submit a new request instead.
    ///
    /// # Errors
    /// [`Error::Option`] if no sequence of this index can be continued: it has not finished, was continued or released,
    /// or [`EngineOptions::continuation`] is off. [`Error::Request`] if the continuation has no room. The sequence can
    /// still be continued then.
    pub fn extend(&mut self, index: usize, tokens: &[u32], max_new: usize) -> Result<usize> {
        let Some(request) = self.scheduler.continuation(index, tokens, max_new) else {
            let want = "a finished sequence that was not continued or released";
            return Err(Error::option("index", want, index));
        };
        self.check(&request)?;
        Ok(self.scheduler.extend(index, request))
    }

    /// Drops the finished sequences that can be continued, and frees their rows in the cache.
    pub fn release_finished(&mut self) {
        self.scheduler.release_finished();
    }

    /// Holds the rows that the running sequence of this index has computed so far, or a finished one that can be
    /// continued, until [`Engine::release_snapshot`]. They outlive the sequence. A sequence that is admitted later and
    /// whose tokens begin with those of a snapshot, or with a part of them, starts from these rows; the results are
    /// bit-identical.
    ///
    /// A paged cache holds references to the pages, which count as used: [`EngineOptions::kv_capacity`] includes them.
    /// Other caches hold copies.
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such sequence, or it has no rows, and for a sinks cache. [`Error::Model`] if
    /// the device has no memory for a copy.
    pub fn snapshot(&mut self, index: usize) -> Result<SnapshotId> {
        let want = "a running sequence, or a finished one that can be continued, with computed rows";
        let snapshot = self.scheduler.snapshot(index)?;
        snapshot.ok_or_else(|| Error::option("index", want, index))
    }

    /// Ends a snapshot and frees the rows that no sequence holds. Returns `false` if it has ended before.
    pub fn release_snapshot(&mut self, snapshot: SnapshotId) -> bool {
        self.scheduler.release_snapshot(snapshot)
    }

    /// A copy of the rows of a snapshot in host memory, for [`KvPrefix::save`] or another engine.
    ///
    /// # Errors
    /// [`Error::Option`] if the snapshot has ended, or for a lossy cache; [`Error::Model`] if the device fails.
    pub fn read_snapshot(&mut self, snapshot: SnapshotId) -> Result<KvPrefix> {
        let want = "a snapshot of this engine that was not released";
        let prefix = self.scheduler.read_snapshot(snapshot)?;
        prefix.ok_or_else(|| Error::option("snapshot", want, format!("{snapshot:?}")))
    }

    /// Writes the whole pages of `prefix` to the cache and keeps them as those of an earlier prompt; see
    /// [`PrefixCaching`](crate::PrefixCaching). They are evicted when no other page is free. `prefix` must be that of
    /// this model: [`KvPrefix::load`] compares the weights. Returns the number of tokens that are kept.
    ///
    /// # Errors
    /// [`Error::Option`] without a paged cache, without prefix caching, or if all slots are in use. [`Error::Model`]
    /// for rows of another shape.
    pub fn insert_prefix(&mut self, prefix: &KvPrefix) -> Result<usize> {
        self.scheduler.insert_rows(prefix)
    }

    /// Ends the sequence of this index in the order of submission. It keeps the tokens it has and finishes with
    /// [`FinishReason::Stop`](crate::FinishReason::Stop). Returns `false` if it is neither running nor waiting.
    pub fn stop(&mut self, index: usize) -> bool {
        self.scheduler.stop(index)
    }

    /// Passes the new tokens of the last step to `stops` and ends the sequences that reached a stop text. Call it once
    /// after each step, also after one with an error. [`TextStops::finish`] then returns the text of a sequence; callers
    /// that print text earlier call [`TextStops::push`] themselves.
    pub fn stop_at(&mut self, stops: &mut TextStops<'_>) {
        for event in &self.scheduler.events {
            stops.push(event);
        }
        for index in stops.reached() {
            self.stop(index);
        }
    }

    fn advance(&mut self, watch: Watch<'_>) -> Result<Step<'_>> {
        self.scheduler.events.clear();
        let before = self.scheduler.counters;
        let admitted = self.scheduler.admit();
        let admitted = admitted.and(self.sample_forked());
        self.scheduler.retire();
        admitted?;
        let ran = self.execute(watch);
        self.scheduler.retire();
        ran?;
        let after = self.scheduler.counters;
        let prefill_rows = (after.prefill_rows - before.prefill_rows) as usize;
        Ok(Step {
            events: &self.scheduler.events,
            passes: (after.passes - before.passes) as usize,
            prefill_rows,
            decode_rows: (after.layer_rows - before.layer_rows) as usize - prefill_rows,
            head_rows: (after.head_rows - before.head_rows) as usize,
        })
    }

    /// Samples the first tokens of sequences that have just forked their prompt.
    fn sample_forked(&mut self) -> Result<()> {
        let forked = std::mem::take(&mut self.scheduler.forked);
        let outcomes = self.runner.sample_forked(&forked, &self.scheduler.running);
        let accepted = self.scheduler.accept(outcomes);
        accepted.and(self.scheduler.separate())
    }

    /// Running sequences that wait for a prompt fork it if it is computed now, and get their first tokens.
    fn fork_waiting(&mut self) -> Result<()> {
        let forked = self.scheduler.fork_waiting();
        forked.and(self.sample_forked())
    }

    fn execute(&mut self, watch: Watch<'_>) -> Result<()> {
        self.fork_waiting()?;
        self.draft()?;
        let max_steps = if watch.is_none() { self.runner.max_steps() } else { 0 };
        self.scheduler.plan(&mut self.plan, max_steps)?;
        match self.plan.multi_step {
            Some(steps) => self.execute_steps(steps),
            None if self.plan.rows.is_empty() => Ok(()),
            None => self.execute_once(watch),
        }
    }

    /// Drafts tokens for the next step, if speculation is on.
    fn draft(&mut self) -> Result<()> {
        self.scheduler.plan_drafts();
        if let Some(draft_model) = &mut self.draft_model {
            let drafted = draft_model.draft(&mut self.scheduler.running);
            if drafted.is_err() {
                self.scheduler.running.iter_mut().for_each(Sequence::clear_draft);
            }
            return drafted;
        }
        self.scheduler.look_up_drafts();
        Ok(())
    }

    /// One forward pass. The host has the tokens afterwards.
    fn execute_once(&mut self, watch: Watch<'_>) -> Result<()> {
        let Scheduler { running, cache, .. } = &mut self.scheduler;
        let hidden = self.runner.forward(&self.plan, cache).map_err(Error::from);
        let batch = Batch { plan: &self.plan, running };
        let outcomes = match hidden.and_then(|hidden| self.runner.sample(batch, &hidden, watch)) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.scheduler.abandon(&self.plan);
                return Err(error);
            }
        };
        self.scheduler.mark_computed(&self.plan);
        let accepted = self.scheduler.accept(outcomes);
        accepted.and(self.scheduler.settle_drafts(&self.plan)).and(self.fork_waiting())
    }

    /// Several decode steps. The host gets the tokens of all of them at the end.
    fn execute_steps(&mut self, steps: usize) -> Result<()> {
        let Scheduler { running, cache, .. } = &mut self.scheduler;
        let cache = cache.as_deref_mut().expect("several steps without a synchronization have a cache");
        match self.runner.decode_steps(Batch { plan: &self.plan, running }, steps, cache) {
            Ok(decoded) => self.scheduler.accept_steps(&self.plan, &decoded),
            Err(error) => {
                self.scheduler.abandon(&self.plan);
                Err(error)
            }
        }
    }
}
