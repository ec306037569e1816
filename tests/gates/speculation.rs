//! Speculative decoding does not change a bit: random engines with drafts against naive recomputation, over an int8
//! cache by its definition.
//!
//! A case has prompts that repeat themselves, groups, stop tokens, penalties, a cache with little room, prefix caching,
//! sequences that are stopped from outside and sequences that are continued. The test command runs 600 cases,
//! `XTRAIN_SOAK=1` 10,000.
use xtrain::decode::{
    Completion, Continuation, Counters, Engine, EngineOptions, FinishReason, KvKind, LogitsRows,
    PrefixCaching, Request, SampleOptions, Speculation, StopConditions, generate_naive,
};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::{gpus, times};
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::decode::{Oracle, same};
use crate::rng::CaseRng;

pub(crate) mod draft_model;

const SEED: u64 = 97;

/// A small vocabulary: last tokens often occurred before, and drafted tokens are accepted by chance.
fn config() -> Config {
    Config {
        vocab: 6,
        dim: 8,
        ffn_dim: 12,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        max_positions: 72,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    }
}

fn model(dtype: Dtype, seed: u64) -> Model {
    Model::init(&config(), dtype, &Device::cpu(), seed).unwrap()
}

/// A prompt that repeats a random piece; in one case of two, what the model makes of it follows.
fn prompt_of(model: &Model, rng: &mut CaseRng) -> Vec<u32> {
    let prompt = prompt(rng);
    if rng.one_in(2) {
        return prompt;
    }
    let more = generate_naive(model, &Request::greedy(&prompt, rng.between(1, 24))).unwrap();
    [prompt, more.tokens].concat()
}

/// A prompt that repeats a random piece.
fn prompt(rng: &mut CaseRng) -> Vec<u32> {
    let piece: Vec<u32> = (0..rng.between(1, 7)).map(|_| rng.below(6) as u32).collect();
    let mut prompt: Vec<u32> = piece.iter().copied().cycle().take(rng.between(1, 30)).collect();
    if rng.one_in(3) {
        prompt.push(rng.below(6) as u32);
    }
    prompt
}

/// Requests in groups: the size of each group, and the requests of its members.
fn groups(model: &Model, rng: &mut CaseRng) -> Vec<(usize, Request)> {
    let n = rng.between(1, 4);
    let mut groups = Vec::new();
    let mut id = 10 * rng.below(1000) as u64;
    for _ in 0..n {
        let g = if rng.one_in(3) { rng.between(2, 3) } else { 1 };
        let options = SampleOptions {
            temperature: rng.choose(&[0.0, 0.0, 0.3, 1.0]),
            top_k: rng.one_in(3).then_some(2),
            top_p: rng.one_in(4).then_some(0.8),
            min_p: None,
            repetition_penalty: rng.one_in(3).then_some(1.15),
        };
        let prompt = prompt_of(model, rng);
        let eos = if rng.one_in(3) { vec![rng.choose(&prompt)] } else { Vec::new() };
        let tokens = if rng.one_in(6) { vec![rng.below(6) as u32] } else { Vec::new() };
        let max_new = rng.between(1, 30);
        let stop = StopConditions { eos, tokens };
        let top_logprobs = CaseRng::new(SEED + 2, id).choose(&[0, 0, 1, 4]);
        let request = Request { id, seed: 5, prompt, options, max_new, stop, constraint: None, top_logprobs };
        groups.push((g, request));
        id += g as u64;
    }
    groups
}

/// What the cases had.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    rows: usize,
    drafted: u64,
    accepted: u64,
    preemptions: u64,
    hits: u64,
    continued: u64,
    stopped: usize,
    /// Completions that an end token ended.
    ended: usize,
}

impl Seen {
    fn add(&mut self, c: Counters) {
        self.drafted += c.drafted;
        self.accepted += c.accepted;
        self.preemptions += c.preemptions;
        self.hits += c.prefix_cache_hits;
        self.continued += c.continued_rows;
    }
}

fn members(groups: &[(usize, Request)]) -> Vec<Request> {
    let of = |(g, request): &(usize, Request)| {
        (0..*g as u64).map(|n| Request { id: request.id + n, ..request.clone() }).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of).collect()
}

fn engine_options(number: u64, rng: &mut CaseRng, longest: usize) -> EngineOptions {
    let kv = match rng.below(8) {
        0 => KvKind::Growing,
        1 => KvKind::Contiguous,
        _ => KvKind::Paged { page: rng.choose(&[1, 2, 3, 5, 8, 16, 64]) },
    };
    let kv = match kv {
        KvKind::Paged { page } if number.is_multiple_of(4) => KvKind::Int8 { page },
        kv => kv,
    };
    let page = kv.page().unwrap_or(1);
    // of its own random numbers, so that the other options are those without it
    let watermark =
        CaseRng::new(SEED + 1, longest as u64).choose(&[Some(0), Some(0), Some(1), Some(9), None]);
    let tight = rng.one_in(2).then(|| longest + 2 * page + rng.below(longest + 1));
    EngineOptions {
        kv,
        max_batch: rng.between(1, 6),
        prefill_chunk: rng.one_in(2).then(|| rng.between(1, 9)),
        max_batched_tokens: rng.one_in(3).then(|| rng.between(1, 24)),
        kv_capacity: tight.filter(|_| kv != KvKind::Contiguous),
        max_seq_len: Some(longest),
        logits_rows: rng.choose(&[LogitsRows::Sampled, LogitsRows::All]),
        prefix_caching: rng.choose(&[PrefixCaching::Off, PrefixCaching::On]),
        continuation: if rng.one_in(4) { Continuation::On } else { Continuation::Off },
        speculation: Speculation::PromptLookup,
        watermark,
        ..EngineOptions::default()
    }
}

/// Models of other weights that draft: one has fewer positions.
fn draft_models() -> [Model; 2] {
    let small = Config { n_layers: 1, max_positions: 40, ..config() };
    [model(Dtype::F32, 41), Model::init(&small, Dtype::F32, &Device::cpu(), 45).unwrap()]
}

/// One case: an engine with speculation, compared with the oracle row by row.
fn case(number: u64, models: &[Model; 2], drafts: &[Model; 2], seen: &mut Seen) -> Result<(), String> {
    let mut rng = CaseRng::new(SEED, number);
    let model = &models[usize::from(rng.one_in(4))];
    let groups = groups(model, &mut rng);
    let requests = members(&groups);
    let longest = requests.iter().map(|r| r.required_len(model.config())).max().unwrap();
    let room = if rng.one_in(4) { longest } else { (longest + 12).min(model.config().max_positions) };
    let options = engine_options(number, &mut rng, room);
    let oracle = Oracle::of(options.kv, model, requests);
    let failed = |e: String| format!("gate speculation, seed {SEED}, case {number}, {options:?}: {e}");
    let mut engine = Engine::new(model, options).map_err(|e| failed(e.to_string()))?;
    if rng.one_in(3) {
        engine.draft_with(&drafts[rng.below(2)]).map_err(|e| failed(e.to_string()))?;
    }
    for (g, request) in &groups {
        engine.submit_group(request.clone(), *g).map_err(|e| failed(e.to_string()))?;
    }
    if rng.one_in(5) {
        seen.stopped += stop_from_outside(&mut engine, &oracle, &mut rng).map_err(failed)?;
        seen.add(engine.counters());
        return Ok(());
    }
    seen.rows += if rng.one_in(2) {
        oracle.finish(&mut engine).map_err(failed)?
    } else {
        unwatched(&mut engine, &oracle.completions).map_err(failed)?
    };
    let c = engine.counters();
    let alone = groups.iter().all(|(g, _)| *g == 1);
    if c.preemptions == 0 && options.prefix_caching == PrefixCaching::Off && alone {
        let rows = |c: &Completion| (c.prompt_len + c.tokens.len() - 1) as u64;
        let want = oracle.completions.iter().map(rows).sum::<u64>();
        if c.layer_rows != want {
            return Err(failed(format!("layer rows: got {}, want {want}", c.layer_rows)));
        }
    }
    if options.continuation == Continuation::On {
        continue_all(&mut engine, &oracle, (model, room), &mut rng).map_err(failed)?;
        engine.release_finished();
    }
    let ends = |c: &&Completion| matches!(c.finish_reason, FinishReason::Eos | FinishReason::Stop);
    seen.ended += oracle.completions.iter().filter(ends).count();
    seen.add(engine.counters());
    let in_use = engine.cache().map_or(0, |cache| cache.usage().in_use);
    if options.prefix_caching == PrefixCaching::Off && in_use > 0 {
        return Err(failed(format!("{in_use} slots are in use at the end")));
    }
    Ok(())
}

/// Stops one sequence after some steps: its tokens are the first of the oracle's, the others are complete.
fn stop_from_outside(engine: &mut Engine<'_>, oracle: &Oracle, rng: &mut CaseRng) -> Result<usize, String> {
    let (at, index) = (rng.below(20), rng.below(oracle.requests.len()));
    let (mut step, mut stopped, mut tokens) = (0, 0, 0);
    while !engine.is_idle() {
        let events = engine.step().map_err(|e| e.to_string())?.events;
        tokens += events.iter().filter(|event| event.index == index).count();
        if step == at {
            stopped += usize::from(engine.stop(index));
        }
        step += 1;
    }
    let mut got = engine.take_finished();
    got.sort_by_key(|c| c.index);
    for (got, want) in got.iter().zip(&oracle.completions) {
        let mut want = want.clone();
        if stopped > 0 && got.index == index {
            want.tokens.truncate(tokens);
            want.logprobs.truncate(tokens);
            want.processed_logprobs.truncate(tokens);
            want.top_logprobs.truncate(tokens);
            want.finish_reason = FinishReason::Stop;
        }
        same(got, &want)?;
    }
    match got.len() == oracle.requests.len() {
        true => Ok(stopped),
        false => Err(format!("got {} completions, want {}", got.len(), oracle.requests.len())),
    }
}

/// Continues every sequence that has room, and compares the continuations with those of new requests.
fn continue_all(
    engine: &mut Engine<'_>,
    oracle: &Oracle,
    (model, room): (&Model, usize),
    rng: &mut CaseRng,
) -> Result<(), String> {
    let mut requests = Vec::new();
    for (index, (request, done)) in oracle.requests.iter().zip(&oracle.completions).enumerate() {
        let more: Vec<u32> = (0..rng.below(4)).map(|_| rng.below(6) as u32).collect();
        let prompt = [&request.prompt[..], &done.tokens, &more].concat();
        let max_new = rng.between(1, 12);
        if prompt.len() + max_new > room || prompt.len() >= model.config().max_positions {
            continue;
        }
        engine.extend(index, &more, max_new).map_err(|e| e.to_string())?;
        requests.push(Request { prompt, max_new, ..request.clone() });
    }
    let kv = engine.cache().map_or(KvKind::Off, |cache| cache.kind());
    let want = Oracle::of(kv, model, requests);
    unwatched(engine, &want.completions).map(drop)
}

/// Runs the engine and compares its completions. Returns the number of tokens.
fn unwatched(engine: &mut Engine<'_>, want: &[Completion]) -> Result<usize, String> {
    let got = engine.run().map_err(|e| e.to_string())?;
    if got.len() != want.len() {
        return Err(format!("got {} completions, want {}", got.len(), want.len()));
    }
    got.iter().zip(want).try_for_each(|(got, want)| same(got, want))?;
    Ok(got.iter().map(|c| c.tokens.len()).sum())
}

/// The cases of a range, or the first difference.
pub(crate) fn over(cases: std::ops::Range<u64>) -> Result<Seen, String> {
    let models = [model(Dtype::F32, 41), model(Dtype::BF16, 42)];
    let (drafts, mut seen) = (draft_models(), Seen::default());
    for number in cases {
        case(number, &models, &drafts, &mut seen)?;
    }
    Ok(seen)
}

#[test]
fn drafts_do_not_change_a_bit() {
    let n = times(600, 10_000);
    let seen = over(0..n).unwrap_or_else(|e| panic!("{e}"));
    println!("speculation: {n} cases, {seen:?}; 0 differ");
    let least = [seen.drafted - seen.accepted, seen.accepted, seen.preemptions, seen.hits, seen.continued];
    assert!(least.iter().all(|&count| count > n / 10), "{seen:?}");
    assert!(seen.stopped > n as usize / 50 && seen.ended > n as usize / 10, "{seen:?}");
}

/// Sequences without a pattern draft little. Returns the number of their tokens.
pub(crate) fn pauses() -> Result<usize, String> {
    let cfg = Config { max_positions: 600, ..config() };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 43).unwrap();
    let options =
        EngineOptions { speculation: Speculation::PromptLookup, max_batch: 1, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, options).unwrap();
    (0..2).for_each(|id| {
        engine.submit(Request { id, ..Request::sampled(&[1, 2, 3], 590, 1.0, 7) }).unwrap();
    });
    let done = engine.run().map_err(|e| e.to_string())?;
    let tokens: usize = done.iter().map(|c| c.tokens.len()).sum();
    let drafted = engine.counters().drafted as usize;
    match drafted * 8 < tokens {
        true => Ok(tokens),
        false => {
            Err(format!("gate speculation, seed 7: {drafted} tokens were drafted for {tokens} random ones"))
        }
    }
}

#[test]
fn a_sequence_without_a_pattern_drafts_little() {
    pauses().unwrap_or_else(|e| panic!("{e}"));
}

/// Requests of repeated pieces on a GPU or the emulator, compared with naive recomputation on the CPU. Returns the
/// number of accepted tokens.
pub(crate) fn on_gpu(device: &Device) -> Result<usize, String> {
    let cfg = Config { vocab: 6, ..crate::gpu::config(true) };
    let on_cpu = Model::init(&cfg, Dtype::F32, &Device::cpu(), 44).unwrap();
    let on_device = on_cpu.to_device(device).unwrap();
    let request = |id: u64| {
        let prompt = prompt(&mut CaseRng::new(SEED, id));
        let mut request = Request::sampled(&prompt, 24, [0.0, 0.3][id as usize % 2], 6);
        request.options.repetition_penalty = (id == 2).then_some(1.1);
        Request { id, top_logprobs: usize::from(id == 3), ..request }
    };
    let oracle = Oracle::new(&on_cpu, (0..4).map(request).collect());
    let mut accepted = 0;
    for (steps_per_sync, watched) in [(1, true), (4, false)] {
        let speculation = Speculation::PromptLookup;
        let options = EngineOptions { steps_per_sync, speculation, max_batch: 2, ..EngineOptions::default() };
        let mut engine = Engine::new(&on_device, options).map_err(|e| e.to_string())?;
        oracle.requests.iter().for_each(|request| _ = engine.submit(request.clone()).unwrap());
        let done = match watched {
            true => oracle.finish(&mut engine),
            false => unwatched(&mut engine, &oracle.completions),
        };
        done.map_err(|e| format!("gate speculation, seed {SEED}, on {device}: {e}"))?;
        accepted += engine.counters().accepted as usize;
    }
    Ok(accepted)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn drafts_do_not_change_a_bit_on_a_gpu() {
    for device in gpus(&[ThreadSchedule::Random(5)]) {
        let accepted = on_gpu(&device).unwrap_or_else(|e| panic!("{e}"));
        assert!(accepted > 20, "{accepted} accepted tokens on {device}");
    }
}

/// Requests with a repetition penalty and a draft model on a GPU or the emulator, compared with naive recomputation on
/// the CPU: a drafted token may be new, and then counts in the penalty of the row after it. Returns the number of
/// accepted tokens.
pub(crate) fn new_tokens_on_gpu(device: &Device) -> Result<usize, String> {
    let cfg = Config { vocab: 40, ..crate::gpu::config(true) };
    let on_cpu = Model::init(&cfg, Dtype::F32, &Device::cpu(), 44).unwrap();
    let on_device = on_cpu.to_device(device).unwrap();
    let request = |id: u64| {
        let mut request = Request::sampled(&prompt(&mut CaseRng::new(SEED, id)), 12, 0.0, 6);
        request.options.repetition_penalty = Some([0.6, 2.0][id as usize % 2]);
        Request { id, ..request }
    };
    let requests: Vec<Request> = (0..6).map(request).collect();
    let want: Vec<Completion> = requests.iter().map(|r| generate_naive(&on_cpu, r).unwrap()).collect();
    let options = EngineOptions { max_batch: 2, ..EngineOptions::default() };
    let failed = |e: String| format!("gate speculation, seed {SEED}, penalties on {device}: {e}");
    let mut engine = Engine::new(&on_device, options).map_err(|e| failed(e.to_string()))?;
    engine.draft_with(&on_device).map_err(|e| failed(e.to_string()))?;
    requests.into_iter().for_each(|request| _ = engine.submit(request).unwrap());
    unwatched(&mut engine, &want).map_err(failed)?;
    Ok(engine.counters().accepted as usize)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn new_drafted_tokens_count_in_penalties_on_a_gpu() {
    for device in gpus(&[ThreadSchedule::Forward]) {
        let accepted = new_tokens_on_gpu(&device).unwrap_or_else(|e| panic!("{e}"));
        assert!(accepted > 20, "{accepted} accepted tokens on {device}");
    }
}

/// [`over`] as many cases as find each fault.
#[cfg(feature = "faults")]
pub(crate) fn some() -> Result<usize, String> {
    over(0..200).map(|seen| seen.rows)
}

/// A draft model with the weights of the model: every drafted token is accepted, sampled ones, too, also after
/// preemption, in forks and in slots that are used again. Returns the number of drafted tokens.
pub(crate) fn same_weights() -> Result<usize, String> {
    let model = model(Dtype::F32, 41);
    let options = EngineOptions {
        kv: KvKind::Paged { page: 4 },
        max_batch: 3,
        kv_capacity: Some(96),
        watermark: Some(0),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&model, options).map_err(|e| e.to_string())?;
    engine.draft_with(&model).map_err(|e| e.to_string())?;
    let request = |id: u64| {
        let temperature = [0.0, 0.7, 1.0][id as usize % 3];
        Request { id: 10 * id, ..Request::sampled(&prompt(&mut CaseRng::new(SEED, id)), 30, temperature, 9) }
    };
    (0..8).for_each(|id| _ = engine.submit_group(request(id), 1 + id as usize % 2).unwrap());
    engine.run().map_err(|e| e.to_string())?;
    let Counters { drafted, accepted, preemptions, .. } = engine.counters();
    let failed =
        |what: String| Err(format!("gate speculation, seed {SEED}, the model drafts for itself: {what}"));
    if accepted < drafted {
        return failed(format!("{accepted} of {drafted} drafted tokens were accepted"));
    }
    if preemptions == 0 || drafted < 100 {
        return failed(format!("{preemptions} preemptions, {drafted} drafted tokens"));
    }
    Ok(drafted as usize)
}

#[test]
fn a_model_that_drafts_for_itself_has_every_token_accepted() {
    same_weights().unwrap_or_else(|e| panic!("{e}"));
}

/// A draft model with another vocabulary is refused.
pub(crate) fn vocabularies() -> Result<usize, String> {
    let other = Model::init(&Config { vocab: 7, ..config() }, Dtype::F32, &Device::cpu(), 1).unwrap();
    let model = model(Dtype::F32, 41);
    let mut engine = Engine::new(&model, EngineOptions::default()).map_err(|e| e.to_string())?;
    let found = engine.draft_with(&other).map_err(|e| e.to_string());
    let want = "draft: expected the vocabulary of the model, found 7 tokens, the model has 6";
    match found {
        Err(message) if message == want => Ok(1),
        found => Err(format!("gate speculation, seed 0: got {found:?}, want {want}")),
    }
}

#[test]
fn a_draft_model_with_another_vocabulary_is_refused() {
    vocabularies().unwrap_or_else(|e| panic!("{e}"));
    let model = model(Dtype::F32, 41);
    let off = EngineOptions { kv: KvKind::Off, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, off).unwrap();
    let error = engine.draft_with(&model).unwrap_err().to_string();
    assert!(error.contains("speculation: expected off, without a cache"), "{error}");
}
