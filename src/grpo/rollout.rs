//! Rollouts: the completions of a generation batch.
use std::sync::Arc;

use super::Error;
use super::batch::{Group, Prompt, Sample};
use crate::decode::{
    Completion, Continuation, Engine, EngineOptions, KvMemory, Request, SampleOptions, StopConditions,
};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;
use crate::rewards::CompletionIndex;

/// How completions are generated.
#[derive(Debug, Clone)]
pub struct RolloutOptions {
    /// The seed of the run.
    pub seed: u64,
    /// Temperature and filters.
    pub sampling: SampleOptions,
    /// Longest completion in tokens, sampled and appended.
    pub max_new: usize,
    /// Maximum number of turns of a completion.
    pub max_turns: usize,
    /// Cache and batch of the engine. No result depends on them.
    pub engine: EngineOptions,
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
/// at once. A completion can be continued with text: its cached rows are not computed again.
pub struct Rollout<'a> {
    tokenizer: &'a Tokenizer,
    options: &'a RolloutOptions,
    max_positions: usize,
    /// Number of completions.
    total: usize,
    /// `None`: no completion can be continued.
    engine: Option<Engine<'a>>,
    /// Receives the memory of the engine.
    memory: &'a mut KvMemory,
    /// The completion of each sequence of the engine.
    sequences: Vec<CompletionIndex>,
    /// The groups, in the order of the requests, with their completions so far.
    groups: Vec<Group>,
}

impl<'a> Rollout<'a> {
    /// The first turn of all completions. Nothing is computed until [`Rollout::run`].
    ///
    /// # Errors
    /// As [`Engine::with_memory`], [`Engine::submit_group`] and [`Engine::reserve`].
    pub fn new(
        RolloutModel { model, memory }: RolloutModel<'a>,
        tokenizer: &'a Tokenizer,
        requests: Vec<GroupRequest>,
        options: &'a RolloutOptions,
    ) -> Result<Rollout<'a>, Error> {
        let total: usize = requests.iter().map(|request| request.size).sum();
        let longest = requests.iter().map(|request| request.prompt.ids.len()).max().unwrap_or(1);
        let max_positions = model.config().max_positions;
        let max_seq_len = (longest + options.max_new).min(max_positions);
        let max_batch = options.engine.max_batch.min(total.max(1));
        let continuation = if options.max_turns > 1 { Continuation::On } else { Continuation::Off };
        let engine =
            EngineOptions { max_seq_len: Some(max_seq_len), max_batch, continuation, ..options.engine };
        let mut engine = Engine::with_memory(model, engine, std::mem::take(memory))?;
        let (mut sequences, mut groups) = (Vec::with_capacity(total), Vec::with_capacity(requests.len()));
        for GroupRequest { prompt_id, prompt, first_id, size } in requests {
            let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
            let request = Request {
                id: first_id,
                seed: options.seed,
                prompt: prompt.ids.clone(),
                options: options.sampling,
                max_new: options.max_new,
                stop,
            };
            engine.submit_group(request, size)?;
            let place = |completion| CompletionIndex { prompt: groups.len(), completion };
            sequences.extend((0..size).map(place));
            groups.push(Group { prompt_id, prompt, samples: Vec::with_capacity(size) });
        }
        engine.reserve(RESERVED_BYTES)?;
        Ok(Rollout {
            tokenizer,
            options,
            max_positions,
            total,
            engine: Some(engine),
            memory,
            sequences,
            groups,
        })
    }

    /// Samples until all turns have ended. `progress` receives the number of completions whose turn has ended after each
    /// step.
    ///
    /// # Errors
    /// As [`Engine::step`]; those of `progress`, which stop it.
    pub fn run(&mut self, progress: &mut dyn FnMut(usize) -> Result<(), Error>) -> Result<(), Error> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let mut finished = Vec::new();
        while !engine.is_idle() {
            engine.step()?;
            finished.extend(engine.take_finished());
            let unfinished = engine.live() + engine.waiting();
            progress(self.total - unfinished)?;
        }
        finished.sort_by_key(|completion: &Completion| completion.index);
        for completion in finished {
            let CompletionIndex { prompt, completion: at } = self.sequences[completion.index];
            let samples = &mut self.groups[prompt].samples;
            match samples.get_mut(at) {
                Some(sample) => sample.push_turn(completion, self.tokenizer),
                None => samples.push(Sample::new(completion, self.tokenizer)),
            }
        }
        if !self.places().any(|at| self.can_append(at)) {
            self.end();
        }
        Ok(())
    }

    /// Drops the engine and keeps its memory.
    fn end(&mut self) {
        if let Some(engine) = self.engine.take() {
            *self.memory = engine.into_memory();
        }
    }

    /// The places of all completions, group by group.
    pub fn places(&self) -> impl Iterator<Item = CompletionIndex> + '_ {
        let of_group = |(prompt, group): (usize, &Group)| {
            (0..group.samples.len()).map(move |completion| CompletionIndex { prompt, completion })
        };
        self.groups.iter().enumerate().flat_map(of_group)
    }

    /// The groups, with their completions so far.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The completion at this place.
    pub fn sample(&self, at: CompletionIndex) -> &Sample {
        &self.groups[at.prompt].samples[at.completion]
    }

    /// Whether a completion can be continued: its last turn was not cut, it may have one more turn, and it has room for
    /// at least one token to append and one to sample.
    pub fn can_append(&self, at: CompletionIndex) -> bool {
        let sample = self.sample(at);
        sample.turns().len() < self.options.max_turns && !sample.truncated() && self.room(at) >= 2
    }

    /// Tokens that a completion may still have.
    fn room(&self, at: CompletionIndex) -> usize {
        let context = self.max_positions - self.groups[at.prompt].prompt.ids.len();
        self.options.max_new.min(context) - self.sample(at).tokens.len()
    }

    /// Continues a completion with the tokens of `text`. Text that leaves no room for a new token is not appended: the
    /// completion is truncated then. [`Rollout::run`] samples the next turn.
    ///
    /// # Errors
    /// [`Error::Append`] for a completion that cannot be continued or text without tokens; as [`Tokenizer::encode`] and
    /// [`Engine::extend`].
    pub fn append(&mut self, at: CompletionIndex, text: &str) -> Result<(), Error> {
        let refused = |want, found: &str| Error::Append { at, want, found: found.to_string() };
        let ids = self.tokenizer.encode(text)?;
        if ids.is_empty() {
            return Err(refused("text of at least one token", "none"));
        }
        let (can_append, room) = (self.can_append(at), self.room(at));
        let sample = &mut self.groups[at.prompt].samples[at.completion];
        let engine = self.engine.as_mut().filter(|_| can_append);
        let engine =
            engine.ok_or_else(|| refused("rewards", "text to append to a completion that has ended"))?;
        if ids.len() >= room {
            sample.cut = true;
            return Ok(());
        }
        let sequence =
            self.sequences.iter().rposition(|&other| other == at).expect("each completion has a sequence");
        engine.extend(sequence, &ids, self.options.max_new - sample.tokens.len() - ids.len())?;
        self.sequences.push(at);
        sample.append(&ids);
        Ok(())
    }

    /// Frees the cached rows of the completions that are not continued. Call it before the continued ones run.
    pub fn release_finished(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.release_finished();
        }
    }

    /// The groups with their completions.
    pub fn into_groups(mut self) -> Vec<Group> {
        self.end();
        self.groups
    }
}
