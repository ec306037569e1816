//! Constrained output: random engines against a naive loop that tries every token.
//!
//! A case has prompts in groups, each with a regular expression or none, end-of-text tokens, filters, penalties, a
//! cache with little room, prefix caching, drafts and sequences that are continued. The naive loop has no cache, no
//! batch and another automaton. The test command runs 1,000 cases, `XTRAIN_SOAK=1` 10,000.
use std::collections::HashMap;

use xtrain::decode::{
    Completion, Continuation, Counters, Engine, EngineOptions, FinishReason, KvKind, LogitsRows, Preemption,
    PrefixCaching, Request, SampleOptions, Speculation, StopConditions, generate_naive,
};
use xtrain::grammar::{Grammars, Language};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::{gpus, times};
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::decode::same;
use crate::rng::CaseRng;

mod naive;
mod regexes;
mod schemas;
mod validator;

use naive::Automaton;

const SEED: u64 = 107;
/// Ids beyond those of the tokenizer, as of a padded embedding table.
const PADDING: usize = 4;

fn config(vocab: usize) -> Config {
    Config {
        vocab,
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

/// Byte-level BPE: single bytes, and tokens of several characters or of parts of them.
fn tokenizer() -> Tokenizer {
    let text = "the cat sat; the dogs sat. maybe yes, no? 12 34 1999-12 {\"n\": 12, \"s\": \"ab\"} \
                日本語 日本人 éüé hello world ";
    let texts = (0..20).map(|n| format!("{text}{n}"));
    Tokenizer::train_bpe(texts, 330, &["<|im_end|>"]).unwrap()
}

/// What all cases share.
struct Fixture {
    tokenizer: Tokenizer,
    models: [Model; 2],
    draft: Model,
    grammars: Grammars,
    automata: HashMap<String, Automaton>,
}

impl Fixture {
    fn new() -> Fixture {
        let tokenizer = tokenizer();
        let vocab = tokenizer.vocab_size() + PADDING;
        let model = |dtype, seed| Model::init(&config(vocab), dtype, &Device::cpu(), seed).unwrap();
        let small = Config { n_layers: 1, max_positions: 40, ..config(vocab) };
        Fixture {
            models: [model(Dtype::F32, 41), model(Dtype::BF16, 42)],
            draft: Model::init(&small, Dtype::F32, &Device::cpu(), 45).unwrap(),
            grammars: Grammars::new(&tokenizer, vocab).unwrap(),
            automata: HashMap::new(),
            tokenizer,
        }
    }
}

/// A request, the number of its completions, and the regular expression that they match.
struct Group {
    request: Request,
    size: usize,
    regex: Option<String>,
}

/// What the cases had.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    tokens: usize,
    constrained: usize,
    complete: usize,
    eos: usize,
    cut: usize,
    accepted: u64,
    preemptions: u64,
    hits: u64,
    shared: u64,
    continued: u64,
}

impl Seen {
    fn count(&mut self, done: &Completion, regex: Option<&String>) {
        self.tokens += done.tokens.len();
        if regex.is_some() {
            self.constrained += 1;
            match done.finish_reason {
                FinishReason::Stop => self.complete += 1,
                FinishReason::Eos => self.eos += 1,
                _ => self.cut += 1,
            }
        }
    }

    fn add(&mut self, c: Counters) {
        self.accepted += c.accepted;
        self.preemptions += c.preemptions;
        self.hits += c.prefix_cache_hits;
        self.shared += c.forks;
        self.continued += c.continued_rows;
    }
}

fn group(fixture: &mut Fixture, rng: &mut CaseRng, id: u64) -> Group {
    let size = if rng.one_in(3) { rng.between(2, 4) } else { 1 };
    let options = SampleOptions {
        temperature: rng.choose(&[0.0, 0.7, 1.0, 1.0]),
        top_k: rng.one_in(4).then(|| rng.choose(&[1, 2, 5, 40])),
        top_p: rng.one_in(3).then(|| rng.choose(&[0.05, 0.5, 0.9])),
        min_p: rng.one_in(6).then_some(0.5),
        repetition_penalty: rng.one_in(4).then_some(1.15),
    };
    let text: String =
        (0..rng.between(1, 5)).map(|_| rng.choose(&["the cat", " sat", "12", "é", "ab"])).collect();
    let prompt = fixture.tokenizer.encode(&text).unwrap();
    let regex = (!rng.one_in(6)).then(|| regexes::regex(rng));
    let constraint = regex.clone().map(|regex| fixture.grammars.constraint(&Language::Regex(regex)).unwrap());
    let eos = if rng.one_in(4) { Vec::new() } else { fixture.tokenizer.eos_ids().to_vec() };
    // sometimes a token that is text in the tokenizer
    let eos = if rng.one_in(8) { vec![300] } else { eos };
    let tokens = if rng.one_in(8) { vec![rng.between(256, 320) as u32] } else { Vec::new() };
    let stop = StopConditions { eos, tokens };
    let request = Request {
        id,
        seed: 5,
        prompt,
        options,
        max_new: rng.between(1, 24),
        stop,
        constraint,
        top_logprobs: 0,
    };
    Group { request, size, regex }
}

fn engine_options(rng: &mut CaseRng, longest: usize) -> EngineOptions {
    let kv = match rng.below(8) {
        0 => KvKind::Growing,
        1 => KvKind::Contiguous,
        2 => KvKind::Off,
        _ => KvKind::Paged { page: rng.choose(&[1, 2, 3, 5, 8, 16, 64]) },
    };
    let page = if let KvKind::Paged { page } = kv { page } else { 1 };
    let tight = rng.one_in(2).then(|| longest.next_multiple_of(page) + page * rng.below(3));
    let drafts = kv != KvKind::Off && rng.one_in(2);
    EngineOptions {
        kv,
        max_batch: rng.between(1, 6),
        prefill_chunk: rng.one_in(2).then(|| rng.between(1, 9)),
        max_batched_tokens: rng.one_in(3).then(|| rng.between(1, 24)),
        kv_capacity: tight.filter(|_| matches!(kv, KvKind::Growing | KvKind::Paged { .. })),
        max_seq_len: Some(longest),
        watermark: [Some(0), Some(0), None][longest % 3],
        logits_rows: rng.choose(&[LogitsRows::Sampled, LogitsRows::All]),
        prefix_caching: rng.choose(&[PrefixCaching::Off, PrefixCaching::On]),
        continuation: if rng.one_in(4) { Continuation::On } else { Continuation::Off },
        preemption: rng.choose(&[Preemption::Recompute, Preemption::Offload]),
        speculation: if drafts { Speculation::PromptLookup } else { Speculation::Off },
        ..EngineOptions::default()
    }
}

/// The naive completions of a group.
fn naive(fixture: &mut Fixture, model: usize, group: &Group) -> Vec<Completion> {
    let automata = &mut fixture.automata;
    let automaton = group
        .regex
        .as_ref()
        .map(|regex| automata.entry(regex.clone()).or_insert_with(|| Automaton::new(regex)));
    let mut automaton = automaton;
    let one = |n: usize| {
        let request = Request { id: group.request.id + n as u64, ..group.request.clone() };
        naive::complete(&fixture.models[model], &fixture.tokenizer, &request, automaton.as_deref_mut())
    };
    (0..group.size).map(one).collect()
}

fn compare(got: Vec<Completion>, want: &[Completion]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("got {} completions, want {}", got.len(), want.len()));
    }
    got.iter().zip(want).try_for_each(|(got, want)| same(got, want))
}

/// One case: an engine, compared with the naive loop.
fn case(number: u64, fixture: &mut Fixture, seen: &mut Seen) -> Result<(), String> {
    let mut rng = CaseRng::new(SEED, number);
    let model = usize::from(rng.one_in(4));
    let groups: Vec<Group> =
        (0..rng.between(1, 4)).map(|n| group(fixture, &mut rng, 10 * n as u64)).collect();
    let want: Vec<Vec<Completion>> = groups.iter().map(|group| naive(fixture, model, group)).collect();
    for (group, done) in groups.iter().zip(&want) {
        done.iter().for_each(|done| seen.count(done, group.regex.as_ref()));
    }
    let cfg = fixture.models[model].config();
    let longest = groups.iter().map(|group| group.request.required_len(cfg)).max().unwrap();
    let room = (longest + 12).min(cfg.max_positions);
    let options = engine_options(&mut rng, room);
    let regexes: Vec<_> = groups.iter().map(|group| group.regex.as_deref()).collect();
    let failed =
        |e: String| format!("gate constraints, seed {SEED}, case {number}, {regexes:?}, {options:?}: {e}");
    let mut engine = Engine::new(&fixture.models[model], options).map_err(|e| failed(e.to_string()))?;
    if options.speculation != Speculation::Off && rng.one_in(2) {
        engine.draft_with(&fixture.draft).map_err(|e| failed(e.to_string()))?;
    }
    for group in &groups {
        engine.submit_group(group.request.clone(), group.size).map_err(|e| failed(e.to_string()))?;
    }
    let got = engine.run().map_err(|e| failed(e.to_string()))?;
    compare(got, &want.concat()).map_err(failed)?;
    if rng.one_in(10) {
        let oracle = generate_naive(&fixture.models[model], &groups[0].request);
        same(&oracle.map_err(|e| failed(e.to_string()))?, &want[0][0]).map_err(failed)?;
    }
    if options.continuation == Continuation::On {
        let mut longer = Vec::new();
        for (index, (group, done)) in
            groups.iter().zip(&want).enumerate().filter(|(_, (group, _))| group.size == 1)
        {
            let index = groups[..index].iter().map(|group| group.size).sum();
            let prompt = [&group.request.prompt[..], &done[0].tokens, &[300, 301]].concat();
            if prompt.len() + 8 <= room {
                engine.extend(index, &[300, 301], 8).map_err(|e| failed(e.to_string()))?;
                let request = Request { prompt, max_new: 8, ..group.request.clone() };
                longer.push(Group { request, size: 1, regex: group.regex.clone() });
            }
        }
        let counters = engine.counters();
        let got = engine.run().map_err(|e| failed(e.to_string()))?;
        let want: Vec<Completion> = longer.iter().flat_map(|group| naive(fixture, model, group)).collect();
        compare(got, &want).map_err(failed)?;
        seen.add(counters);
        return Ok(());
    }
    seen.add(engine.counters());
    Ok(())
}

/// The cases of a range, or the first difference.
pub(crate) fn over(cases: std::ops::Range<u64>) -> Result<Seen, String> {
    let (mut fixture, mut seen) = (Fixture::new(), Seen::default());
    for number in cases {
        case(number, &mut fixture, &mut seen)?;
    }
    Ok(seen)
}

/// [`over`] as many cases as find each fault.
#[cfg(feature = "faults")]
pub(crate) fn some() -> Result<usize, String> {
    over(0..150).map(|seen| seen.tokens)
}

#[test]
fn constrained_completions_are_those_of_a_naive_loop_that_tries_every_token() {
    let n = times(1000, 10_000);
    let seen = over(0..n).unwrap_or_else(|e| panic!("{e}"));
    println!("constraints: {n} cases, {seen:?}; 0 differ");
    let least = [seen.accepted, seen.preemptions, seen.hits, seen.shared, seen.continued];
    assert!(least.iter().all(|&count| count > n / 40), "{seen:?}");
    assert!([seen.complete, seen.eos, seen.cut].iter().all(|&count| count > n as usize / 5), "{seen:?}");
}

/// Requests with and without a constraint in one batch on a GPU or the emulator, which otherwise runs several steps
/// between two synchronizations: the completions are those of the naive loop on the CPU.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn constrained_completions_do_not_change_a_bit_on_a_gpu() {
    let mut fixture = Fixture::new();
    let cfg = Config { vocab: fixture.tokenizer.vocab_size() + PADDING, ..crate::gpu::config(true) };
    fixture.models[0] = Model::init(&cfg, Dtype::F32, &Device::cpu(), 44).unwrap();
    let regexes = [Some("(yes|no), [0-9]{2}"), None, Some("[a-f]{2,5}é?")];
    let group = |(n, regex): (usize, &Option<&str>)| {
        let constraint =
            regex.map(|regex| fixture.grammars.constraint(&Language::Regex(regex.into())).unwrap());
        let mut request =
            Request { id: 10 * n as u64, constraint, ..Request::sampled(&[300, 301], 12, 1.0, 6) };
        request.stop.eos = fixture.tokenizer.eos_ids().to_vec();
        Group { request, size: 1 + n % 2, regex: regex.map(String::from) }
    };
    let groups: Vec<Group> = regexes.iter().enumerate().map(group).collect();
    let want: Vec<Completion> = groups.iter().flat_map(|group| naive(&mut fixture, 0, group)).collect();
    for device in gpus(&[ThreadSchedule::Random(5)]) {
        let on_device = fixture.models[0].to_device(&device).unwrap();
        for speculation in [Speculation::Off, Speculation::PromptLookup] {
            let options = EngineOptions { steps_per_sync: 4, speculation, ..EngineOptions::default() };
            let mut engine = Engine::new(&on_device, options).unwrap();
            groups.iter().for_each(|g| _ = engine.submit_group(g.request.clone(), g.size).unwrap());
            compare(engine.run().unwrap(), &want)
                .unwrap_or_else(|e| panic!("gate constraints, on {device}: {e}"));
        }
    }
}
