//! Rollouts: the completions of a generation batch.
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::Error;
use super::batch::{Group, Prompt, Sample};
use super::constraint::RolloutConstraint;
use super::exchange::{self, Turn};
use crate::decode::{
    Completion, Continuation, Engine, EngineOptions, KvMemory, Request, SampleOptions, StopConditions,
    TextStops,
};
use crate::model::comm::Communicator;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, shard_samples};
use crate::rewards::CompletionIndex;
use crate::tensor::faults::{self, Fault};

/// How completions are generated.
#[derive(Debug, Clone)]
pub struct RolloutOptions {
    /// The seed of the run.
    pub seed: u64,
    /// Temperature and filters.
    pub sampling: SampleOptions,
    /// What the completions have to match, each turn by itself. `None`: any text.
    pub constraint: Option<RolloutConstraint>,
    /// Texts that end a turn, with the token that completes one of them. Empty ones are ignored.
    pub stop_texts: Vec<String>,
    /// Longest completion in tokens, sampled and appended.
    pub max_new: usize,
    /// Maximum number of turns of a completion.
    pub max_turns: usize,
    /// Cache and batch of the engine. No result depends on them.
    pub engine: EngineOptions,
}

impl RolloutOptions {
    /// The request for a turn after these tokens.
    fn request(&self, id: u64, prompt: Vec<u32>, max_new: usize, tokenizer: &Tokenizer) -> Request {
        Request {
            id,
            seed: self.seed,
            prompt,
            options: self.sampling,
            max_new,
            stop: StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() },
            constraint: self.constraint.as_ref().map(|constraint| constraint.shared.clone()),
            top_logprobs: 0,
        }
    }
}

/// Maximum number of bytes of the KV cache that are allocated before the first token. A larger cache grows.
const RESERVED_BYTES: usize = 1 << 30;

/// A model with the memory of its KV cache, which rollouts with later weights reuse.
#[derive(Debug)]
pub struct RolloutModel<'a> {
    /// The model.
    pub model: &'a Model,
    /// The memory of the KV cache. It holds no prefix.
    pub memory: &'a mut KvMemory,
    /// The processes that have this model. Each generates a part of the groups.
    pub comm: &'a dyn Communicator,
}

/// A group to generate.
#[derive(Debug, Clone)]
pub struct GroupRequest {
    /// The index of the prompt in its file, or its number in the sequence of a task.
    pub prompt_id: u64,
    /// The prompt.
    pub prompt: Arc<Prompt>,
    /// The id of the first completion. The others have the ids after it.
    pub first_id: u64,
    /// Number of completions.
    pub size: usize,
}

/// The completions of groups in one engine: B prompts x G completions, one prefill per prompt, finished sequences leave
/// at once. A completion can be continued with text: its cached rows are not computed again, unless the
/// engine sampled tokens after its stop text. Each of several processes
/// has an engine for its groups, and receives the turns of the others.
pub struct Rollout<'a> {
    tokenizer: &'a Tokenizer,
    options: &'a RolloutOptions,
    max_positions: usize,
    comm: &'a dyn Communicator,
    /// The groups of this process.
    own: Range<usize>,
    /// `None`: no completion can be continued.
    engine: Option<Engine<'a>>,
    /// The texts of the turns that run. `None`: there are no stop texts.
    stops: Option<TextStops<'a>>,
    /// Completions for which the engine sampled tokens after the stop text of the last turn.
    surplus: BTreeSet<CompletionIndex>,
    /// Receives the memory of the engine.
    memory: &'a mut KvMemory,
    /// The completion of each sequence of the engine.
    sequences: Vec<CompletionIndex>,
    /// The turns that have ended since the last exchange. Empty with one process.
    turns: Vec<Turn>,
    /// The groups, in the order of the requests. Their completions are in `samples` until the end.
    groups: Vec<Group>,
    /// The completions of each group. `None`: the first turn has not ended.
    samples: Vec<Vec<Option<Sample>>>,
}

impl<'a> Rollout<'a> {
    /// The first turn of all completions. Nothing is computed until [`Rollout::step`].
    ///
    /// # Errors
    /// As [`Engine::with_memory`], [`Engine::submit_group`] and [`Engine::reserve`].
    pub fn new(
        RolloutModel { model, memory, comm }: RolloutModel<'a>,
        tokenizer: &'a Tokenizer,
        requests: Vec<GroupRequest>,
        options: &'a RolloutOptions,
    ) -> Result<Rollout<'a>, Error> {
        let own = shard_samples(requests.len(), comm.size(), comm.rank());
        let total: usize = requests[own.clone()].iter().map(|request| request.size).sum();
        let longest = requests[own.clone()].iter().map(|request| request.prompt.ids.len()).max().unwrap_or(1);
        let max_positions = model.config().max_positions;
        let max_seq_len = (longest + options.max_new).min(max_positions);
        let max_batch = options.engine.max_batch.min(total.max(1));
        let continuation = if options.max_turns > 1 { Continuation::On } else { Continuation::Off };
        let mut engine =
            EngineOptions { max_seq_len: Some(max_seq_len), max_batch, continuation, ..options.engine };
        if options.max_turns > 1 && !options.stop_texts.is_empty() {
            // A turn with tokens after its stop text cannot be continued from its rows.
            engine.steps_per_sync = 1;
        }
        let mut engine = Engine::with_memory(model, engine, std::mem::take(memory))?;
        let (mut sequences, mut groups, mut samples) = (Vec::with_capacity(total), Vec::new(), Vec::new());
        for (at, GroupRequest { prompt_id, prompt, first_id, size }) in requests.into_iter().enumerate() {
            groups.push(Group { prompt_id, prompt: prompt.clone(), samples: Vec::new() });
            samples.push(vec![None; size]);
            if !own.contains(&at) {
                continue;
            }
            let renumbered = faults::on(Fault::GroupsNumberedByProcess);
            let first_id = if renumbered { first_id - (own.start * size) as u64 } else { first_id };
            let request = options.request(first_id, prompt.ids.clone(), options.max_new, tokenizer);
            engine.submit_group(request, size)?;
            sequences.extend((0..size).map(|completion| CompletionIndex { prompt: at, completion }));
        }
        engine.reserve(RESERVED_BYTES)?;
        Ok(Rollout {
            tokenizer,
            options,
            max_positions,
            comm,
            own,
            engine: Some(engine),
            stops: (!options.stop_texts.is_empty())
                .then(|| TextStops::new(tokenizer, options.stop_texts.clone())),
            surplus: BTreeSet::new(),
            memory,
            sequences,
            turns: Vec::new(),
            groups,
            samples,
        })
    }

    /// One step of the engine. Returns the completions whose turn has ended in this step, in order. `None`: all turns
    /// of this process have ended before.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step(&mut self) -> Result<Option<Vec<CompletionIndex>>, Error> {
        let Some(engine) = self.engine.as_mut().filter(|engine| !engine.is_idle()) else {
            if !self.places().any(|at| self.own.contains(&at.prompt) && self.can_append(at)) {
                self.end();
            }
            return Ok(None);
        };
        engine.step()?;
        if let Some(stops) = &mut self.stops {
            engine.stop_at(stops);
        }
        let mut ended = Vec::new();
        for mut turn in engine.take_finished() {
            let (at, sampled) = (self.sequences[turn.index], turn.tokens.len());
            if let Some(stops) = &mut self.stops {
                stops.finish(&mut turn);
            }
            if turn.tokens.len() < sampled {
                self.surplus.insert(at);
            }
            if self.comm.size() > 1 {
                self.turns.push(Turn { at, turn: turn.clone() });
            }
            self.push_turn(at, turn);
            ended.push(at);
        }
        ended.sort();
        Ok(Some(ended))
    }

    fn push_turn(&mut self, at: CompletionIndex, turn: Completion) {
        match &mut self.samples[at.prompt][at.completion] {
            Some(sample) => sample.push_turn(turn, &self.options.stop_texts, self.tokenizer),
            sample => *sample = Some(Sample::new(turn, &self.options.stop_texts, self.tokenizer)),
        }
    }

    /// Exchanges the turns with the other processes. Afterwards, each process has all completions. `ended`: whether all
    /// turns of this process have ended.
    ///
    /// # Errors
    /// That of `ended`. [`Error::Interrupted`] in all processes if one was interrupted. A process has ended.
    pub fn exchange(&mut self, ended: Result<(), Error>) -> Result<(), Error> {
        let own = std::mem::take(&mut self.turns);
        for Turn { at, turn } in exchange::turns(self.comm, ended, &own)? {
            self.push_turn(at, turn);
        }
        Ok(())
    }

    /// The processes that generate the groups.
    pub fn comm(&self) -> &'a dyn Communicator {
        self.comm
    }

    /// Drops the engine and keeps its memory.
    fn end(&mut self) {
        if let Some(engine) = self.engine.take() {
            *self.memory = engine.into_memory();
        }
    }

    /// The places of all completions, group by group.
    pub fn places(&self) -> impl Iterator<Item = CompletionIndex> + '_ {
        let of_group = |(prompt, group): (usize, &Vec<_>)| {
            (0..group.len()).map(move |completion| CompletionIndex { prompt, completion })
        };
        self.samples.iter().enumerate().flat_map(of_group)
    }

    /// The prompt of this group.
    pub fn prompt(&self, group: usize) -> &Prompt {
        &self.groups[group].prompt
    }

    /// The completion at this place, whose first turn has ended.
    pub fn sample(&self, at: CompletionIndex) -> &Sample {
        self.samples[at.prompt][at.completion].as_ref().expect("the first turn has ended")
    }

    /// The sampled text of the last turn of a completion. `None`: completions have one turn.
    pub fn turn_text(&self, at: CompletionIndex) -> Option<String> {
        (self.options.max_turns > 1).then(|| self.sample(at).turn_text(self.tokenizer))
    }

    /// Whether a completion can be continued: its last turn was not cut, it may have one more turn, and it has room for
    /// at least one token to append and one to sample.
    pub fn can_append(&self, at: CompletionIndex) -> bool {
        let Some(sample) = &self.samples[at.prompt][at.completion] else { return false };
        let needed = if faults::on(Fault::AppendLeavesNoRoomToSample) { 1 } else { 2 };
        sample.turns().len() < self.options.max_turns && !sample.truncated() && self.room(at) >= needed
    }

    /// Tokens that a completion may still have.
    fn room(&self, at: CompletionIndex) -> usize {
        let context = self.max_positions - self.groups[at.prompt].prompt.ids.len();
        self.options.max_new.min(context) - self.sample(at).tokens.len()
    }

    /// Continues a completion with the tokens of `text`. Text that leaves no room for a new token is not appended: the
    /// completion is truncated then. [`Rollout::step`] samples the next turn.
    ///
    /// # Errors
    /// [`Error::Append`] for a completion that cannot be continued or text without tokens; as [`Tokenizer::encode`] and
    /// [`Engine::extend`].
    pub fn append(&mut self, at: CompletionIndex, text: &str) -> Result<(), Error> {
        let refused = |want, found: &str| Error::Append { at, want, found: found.to_string() };
        let ids = self.tokenizer.encode_continuation(text)?;
        if ids.is_empty() {
            return Err(refused("text of at least one token", "none"));
        }
        let (can_append, room) = (self.can_append(at), self.room(at));
        let sample = self.samples[at.prompt][at.completion].as_mut().expect("the first turn has ended");
        let is_own = self.own.contains(&at.prompt);
        if !can_append || (is_own && self.engine.is_none()) {
            return Err(refused("rewards", "text to append to a completion that has ended"));
        }
        if ids.len() >= room {
            sample.cut = true;
            return Ok(());
        }
        if let Some(engine) = self.engine.as_mut().filter(|_| is_own) {
            let max_new = self.options.max_new - sample.tokens.len() - ids.len();
            if self.surplus.remove(&at) && !faults::on(Fault::SurplusContinued) {
                let tokens =
                    [&self.groups[at.prompt].prompt.ids, &sample.tokens, &ids].map(Vec::as_slice).concat();
                engine.submit(self.options.request(sample.id, tokens, max_new, self.tokenizer))?;
            } else {
                let sequence = self.sequences.iter().rposition(|&other| other == at);
                engine.extend(sequence.expect("each completion has a sequence"), &ids, max_new)?;
            }
            self.sequences.push(at);
        }
        sample.append(&ids);
        Ok(())
    }

    /// Frees the cached rows of the completions that are not continued. Call it before the continued ones run.
    pub fn release_finished(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.release_finished();
        }
    }

    /// The groups with their completions. All turns have ended.
    pub fn into_groups(mut self) -> Vec<Group> {
        self.end();
        let complete = |(mut group, samples): (Group, Vec<Option<Sample>>)| {
            group.samples = samples.into_iter().flatten().collect();
            group
        };
        self.groups.into_iter().zip(self.samples).map(complete).collect()
    }
}
