//! Tests of the engine: scheduling, counters, errors. tests/gates also checks its results bit for bit.
use std::cell::Cell;
use std::collections::BTreeSet;

use xtrain_model::{Config, Model};
use xtrain_tensor::{Device, Dtype};

use super::completion::{Completion, FinishReason};
use super::engine::Engine;
use super::fronts::{generate, generate_greedy_cached};
use super::naive::{generate_naive, generate_naive_repeat_kv};
use super::options::{EngineOptions, PrefixCaching};
use super::request::{Request, StopConditions};
use crate::cache::{KvKind, KvMemory};
use crate::error::Error;
use crate::sampler::SampleOptions;

mod continuation;
mod ends;
mod failed_head;
mod groups;
mod offloaded_layers;
mod offloading;
mod refusals;
mod released;
mod snapshots;
mod steps;

thread_local! {
    /// Whether the LM head fails in the engines of this thread.
    pub(super) static HEAD_FAILS: Cell<bool> = const { Cell::new(false) };
}

const KINDS: [KvKind; 5] = [
    KvKind::Growing,
    KvKind::Contiguous,
    KvKind::Paged { page: 1 },
    KvKind::Paged { page: 5 },
    KvKind::Paged { page: 16 },
];

fn config() -> Config {
    Config {
        vocab: 37,
        dim: 24,
        ffn_dim: 40,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 6,
        max_positions: 64,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: false,
        ..Config::default()
    }
}

/// Weights large enough that tokens vary.
fn model() -> Model {
    let mut model = Model::init(&config(), Dtype::F32, &Device::cpu(), 7).unwrap();
    for p in model.params.iter_mut().filter(|p| p.shape().len() == 2) {
        p.value_mut().unwrap().data_mut::<f32>().unwrap().iter_mut().for_each(|x| *x *= 12.0);
    }
    model
}

/// With the most probable tokens.
fn request(id: u64, prompt: &[u32], max_new: usize) -> Request {
    Request { id, top_logprobs: 2, ..Request::sampled(prompt, max_new, 1.0, 3) }
}

fn options(kv: KvKind) -> EngineOptions {
    EngineOptions { kv, max_batch: 8, watermark: Some(0), ..EngineOptions::default() }
}

/// Checks that the completions are bitwise equal to those of the oracle, for each request by its id.
#[track_caller]
fn same_as_naive(model: &Model, requests: &[Request], got: &[Completion], what: &str) {
    let by_id = |id: u64| got.iter().find(|c| c.id == id);
    for request in requests {
        let want = generate_naive(model, request).unwrap();
        let got = by_id(request.id).unwrap_or_else(|| panic!("{what}: sequence {} is missing", request.id));
        let bits = |c: &Completion| {
            [&c.logprobs, &c.processed_logprobs].map(|p| p.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        assert_eq!(got.tokens, want.tokens, "{what}, sequence {}", request.id);
        assert_eq!(bits(got), bits(&want), "{what}, sequence {}", request.id);
        assert_eq!(got.top_logprobs, want.top_logprobs, "{what}, sequence {}", request.id);
        assert_eq!((got.finish_reason, got.prompt_len), (want.finish_reason, want.prompt_len), "{what}");
    }
    assert_eq!(got.len(), requests.len(), "{what}");
}

#[test]
fn the_oracle_with_expanded_heads_equals_the_oracle() {
    let f32 = model();
    let bf16 = Model::init(&config(), Dtype::BF16, &Device::cpu(), 11).unwrap();
    for (model, what) in [(&f32, "f32"), (&bf16, "bf16")] {
        let requests = [request(1, &[1, 2, 3, 4, 5], 30), request(2, &[6], 9), Request::greedy(&[7; 40], 30)];
        for request in requests {
            let expanded = generate_naive_repeat_kv(model, &request).unwrap();
            same_as_naive(model, &[request], &[expanded], what);
        }
    }
}

#[test]
fn only_required_rows_run() {
    let model = model();
    for kv in KINDS {
        for prefill_chunk in [None, Some(1), Some(3)] {
            let mut engine = Engine::new(&model, EngineOptions { prefill_chunk, ..options(kv) }).unwrap();
            engine.submit(request(1, &[1, 2, 3, 4, 5], 9)).unwrap();
            engine.submit(request(2, &[6], 1)).unwrap();
            engine.run().unwrap();
            let c = engine.counters();
            assert_eq!((c.layer_rows, c.head_rows), (5 + 9 - 1 + 1, 9 + 1), "{kv}");
            let usage = engine.cache().unwrap().usage();
            let per_token = engine.cache().unwrap().shape().bytes_per_token() as u64;
            assert_eq!(usage.written, c.layer_rows * per_token, "{kv}");
            assert_eq!(usage.in_use, 0, "{kv}: all slots are free again");
        }
    }
}

/// The rows of the new tokens of a group if equal tokens run once: those of its different beginnings.
fn different_beginnings(group: &[Completion]) -> usize {
    let beginnings = |c: &Completion| (1..c.tokens.len()).map(|n| c.tokens[..n].to_vec()).collect::<Vec<_>>();
    group.iter().flat_map(beginnings).collect::<BTreeSet<_>>().len()
}

#[test]
fn a_prompt_and_equal_tokens_of_several_completions_run_once() {
    let model = model();
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    for kv in KINDS {
        for max_batch in [1, 2, 3, 8] {
            for prefill_chunk in [None, Some(2)] {
                let what = format!("{kv}, max_batch {max_batch}, chunk {prefill_chunk:?}");
                let mut engine =
                    Engine::new(&model, EngineOptions { prefill_chunk, max_batch, ..options(kv) }).unwrap();
                engine.submit_group(request(10, &prompt, 6), 5).unwrap();
                engine.submit_group(request(20, &prompt[..3], 4), 2).unwrap();
                let got = engine.run().unwrap();
                let mut all: Vec<Request> = (10..15).map(|id| request(id, &prompt, 6)).collect();
                all.extend((20..22).map(|id| request(id, &prompt[..3], 4)));
                same_as_naive(&model, &all, &got, &what);
                let c = engine.counters();
                assert_eq!(c.prefill_rows, 7 + 3, "{what}");
                let rows = (c.layer_rows - c.prefill_rows) as usize;
                assert_eq!(c.head_rows as usize, 2 + rows, "{what}");
                let (least, most) =
                    (different_beginnings(&got[..5]) + different_beginnings(&got[5..]), 5 * 5 + 2 * 3);
                assert!(least < most, "some completions begin with the same tokens");
                match max_batch {
                    1 => assert_eq!((rows, c.forks), (most, 4 + 1), "{what}"),
                    8 => assert_eq!(rows, least, "{what}"),
                    _ => assert!((least..=most).contains(&rows), "{what}: {rows} rows"),
                }
                assert_eq!(engine.cache().unwrap().usage().in_use, 0, "{what}");
            }
        }
    }
}

#[test]
fn completions_of_one_prompt_share_its_pages() {
    let model = model();
    let mut engine = Engine::new(&model, options(KvKind::Paged { page: 4 })).unwrap();
    engine.submit_group(request(0, &[9; 16], 3), 8).unwrap();
    let mut tokens = vec![Vec::new(); 8];
    for _ in 0..2 {
        engine.step().unwrap().events.iter().for_each(|event| tokens[event.index].push(event.token));
    }
    assert_eq!(engine.live(), 8);
    // the row of the first token is in a page that sequences with the same first token share
    let different = |n: usize| tokens.iter().map(|tokens| &tokens[..n]).collect::<BTreeSet<_>>().len();
    assert!((2..8).contains(&different(1)), "{tokens:?}");
    let usage = engine.cache().unwrap().usage();
    assert_eq!((usage.in_use, usage.positions), (16 + 4 * different(1), 17 * different(2)));
}

#[test]
fn waiting_sequences_take_the_slots_of_finished_ones_at_once() {
    let model = model();
    let requests: Vec<Request> =
        (0..7u64).map(|i| request(i, &[1 + i as u32; 3][..=i as usize % 3], 1 + i as usize * 2)).collect();
    for kv in KINDS {
        let mut engine = Engine::new(&model, EngineOptions { max_batch: 3, ..options(kv) }).unwrap();
        for request in &requests {
            engine.submit(request.clone()).unwrap();
        }
        let mut order = Vec::new();
        while !engine.is_idle() {
            let (waiting, live) = (engine.waiting(), engine.live());
            let step = engine.step().unwrap();
            let rows = step.prefill_rows + step.decode_rows;
            order.extend(step.events.iter().filter(|e| e.finish.is_some()).map(|e| e.id));
            assert_eq!(step.events.len(), (live + waiting).min(3), "{kv}: every slot is taken");
            assert_eq!(step.head_rows, step.events.len(), "{kv}");
            assert!(rows >= step.events.len(), "{kv}");
        }
        same_as_naive(&model, &requests, &engine.take_finished(), &kv.to_string());
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6], "{kv}");
    }
}

#[test]
fn a_step_has_at_most_max_batched_tokens_rows() {
    let model = model();
    let requests: Vec<Request> =
        (0..4u64).map(|i| request(i, &[5, 6, 7, 8, 9, 10, 11][i as usize..], 5)).collect();
    for max_batched_tokens in [1, 2, 5, 9] {
        let bounded =
            EngineOptions { max_batched_tokens: Some(max_batched_tokens), ..options(KvKind::default()) };
        let mut engine = Engine::new(&model, bounded).unwrap();
        for request in &requests {
            engine.submit(request.clone()).unwrap();
        }
        while !engine.is_idle() {
            let step = engine.step().unwrap();
            assert!((1..=max_batched_tokens).contains(&(step.prefill_rows + step.decode_rows)), "{step:?}");
        }
        same_as_naive(&model, &requests, &engine.take_finished(), &format!("{max_batched_tokens} rows"));
    }
}

#[test]
fn a_preempted_sequence_gets_the_same_tokens() {
    let model = model();
    let prompts: [&[u32]; 4] = [&[1, 2, 3], &[4; 9], &[5, 6], &[7, 8, 9, 10]];
    for kv in [KvKind::Growing, KvKind::Paged { page: 1 }, KvKind::Paged { page: 4 }] {
        for kv_capacity in [24, 28, 40] {
            let tight = EngineOptions { kv_capacity: Some(kv_capacity), ..options(kv) };
            let mut engine = Engine::new(&model, tight).unwrap();
            let mut requests = Vec::new();
            for (i, prompt) in prompts.iter().enumerate() {
                let first = request(10 * i as u64, prompt, 12);
                let g = 1 + i % 3;
                engine.submit_group(first.clone(), g).unwrap();
                requests.extend((0..g as u64).map(|n| Request { id: first.id + n, ..first.clone() }));
            }
            let got = engine.run().unwrap();
            assert!(engine.counters().preemptions > 0, "{kv}, {kv_capacity}");
            same_as_naive(&model, &requests, &got, &format!("{kv}, {kv_capacity}"));
            assert_eq!(engine.cache().unwrap().usage().in_use, 0);
        }
    }
}

#[test]
fn completions_of_one_prompt_wait_if_the_cache_is_too_small_for_all() {
    let model = model();
    let (prompt, g) = ([4, 5, 6, 7, 8, 9, 10], 12);
    let all: Vec<Request> = (30..30 + g).map(|id| request(id, &prompt, 20)).collect();
    for kv in [KvKind::Growing, KvKind::Paged { page: 1 }, KvKind::Paged { page: 5 }] {
        // one sequence has 27 positions; twelve have 324, or 247 with a shared prompt
        for kv_capacity in [30, 45, 90] {
            let tight =
                EngineOptions { kv_capacity: Some(kv_capacity), max_batch: g as usize, ..options(kv) };
            let mut engine = Engine::new(&model, tight).unwrap();
            engine.submit_group(all[0].clone(), g as usize).unwrap();
            let mut peak = 0;
            while !engine.is_idle() {
                engine.step().unwrap();
                peak = peak.max(engine.cache().unwrap().usage().slots);
            }
            let what = format!("{kv}, {kv_capacity} positions");
            same_as_naive(&model, &all, &engine.take_finished(), &what);
            assert!(engine.counters().preemptions > 0 && peak <= kv_capacity, "{what}: {peak} slots");
        }
    }
}

#[test]
fn an_engine_in_the_memory_of_another_model_uses_none_of_its_keys_values_or_prefixes() {
    let (prompt, g) = ([4, 5, 6, 7, 8, 9, 10], 3);
    let all: Vec<Request> = (30..30 + g).map(|id| request(id, &prompt, 20)).collect();
    for dtype in [Dtype::F32, Dtype::BF16] {
        for kv in KINDS {
            let what = format!("{kv}, {dtype}");
            let mut model = Model::init(&config(), dtype, &Device::cpu(), 1).unwrap();
            let options = EngineOptions { prefix_caching: PrefixCaching::On, ..options(kv) };
            let (mut memory, mut bytes) = (KvMemory::default(), 0);
            for step in 0..3 {
                let mut engine = Engine::with_memory(&model, options, memory).unwrap();
                if step == 1 {
                    engine.reserve(usize::MAX).unwrap();
                }
                engine.submit_group(all[0].clone(), g as usize).unwrap();
                same_as_naive(&model, &all, &engine.run().unwrap(), &what);
                let counters = engine.counters();
                assert_eq!((counters.prefill_rows, counters.prefix_cache_hits), (7, 0), "{what}");
                memory = engine.into_memory();
                assert!(step == 0 || memory.bytes() == bytes, "{what}: {} bytes", memory.bytes());
                bytes = memory.bytes();
                assert_eq!(bytes == 0, kv == KvKind::Growing, "{what}");
                memory.poison();
                model.params.norm.value_mut().unwrap().data_mut::<f32>().unwrap()[0] += 0.5;
            }
        }
    }
}

#[test]
fn reserved_room_is_that_of_the_prompt_and_all_completions() {
    let model = model();
    let options = options(KvKind::Paged { page: 4 });
    for (max_pages, pages) in [(1000, 2 + 5 * 3 + 2 + 2 * 3), (10, 10)] {
        let mut engine = Engine::new(&model, options).unwrap();
        engine.submit_group(request(1, &[1; 9], 10), 5).unwrap();
        engine.submit_group(request(11, &[2; 9], 10), 2).unwrap();
        let page = 4 * engine.cache().unwrap().shape().bytes_per_token();
        engine.reserve(max_pages * page).unwrap();
        assert_eq!(engine.cache().unwrap().bytes(), pages * page);
        engine.run().unwrap();
        if max_pages > pages {
            let usage = engine.cache().unwrap().usage();
            assert_eq!(usage.slots, 4 * pages, "the cache has not grown");
        }
    }
}

#[test]
fn the_streamed_pieces_of_a_completion_concatenate_to_its_text() {
    let tokenizer = xtrain_model::tokenizer::Tokenizer::byte();
    let completion = |tokens: Vec<u32>, finish_reason| {
        let (logprobs, processed_logprobs) = (vec![0.0; tokens.len()], vec![0.0; tokens.len()]);
        Completion {
            index: 0,
            id: 0,
            prompt_len: 1,
            tokens,
            logprobs,
            processed_logprobs,
            top_logprobs: Vec::new(),
            finish_reason,
        }
    };
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let ended = [bytes("caf\u{e9} \u{1f600}!"), vec![256]].concat();
    let cut = bytes("\u{1f600}")[..3].to_vec();
    for (tokens, reason, want) in [
        (ended.clone(), FinishReason::Eos, "caf\u{e9} \u{1f600}!"),
        (ended, FinishReason::Length, "caf\u{e9} \u{1f600}!<|endoftext|>"),
        (cut, FinishReason::Context, "\u{fffd}"),
        (vec![256], FinishReason::Eos, ""),
        (vec![], FinishReason::Stop, ""),
    ] {
        let completion = completion(tokens, reason);
        assert_eq!(completion.text(&tokenizer), want);
        let mut stream = tokenizer.stream();
        let pieces: Vec<String> = completion.text_tokens().iter().map(|&id| stream.push(id)).collect();
        assert!(pieces.iter().all(|p| !p.contains('\u{fffd}')), "part of a character: {pieces:?}");
        assert_eq!(pieces.concat() + &stream.finish(), want);
    }
}

#[test]
fn a_cache_too_small_for_one_sequence_is_an_error() {
    let model = model();
    for kv in [KvKind::Growing, KvKind::Paged { page: 4 }] {
        let tight = EngineOptions { kv_capacity: Some(8), ..options(kv) };
        let mut engine = Engine::new(&model, tight).unwrap();
        engine.submit(request(0, &[1; 6], 12)).unwrap();
        engine.submit(request(1, &[2; 2], 2)).unwrap();
        let full = xtrain_model::Error::CacheFull { seq: 0, pos: 8 };
        assert_eq!(engine.run(), Err(Error::Model(full)), "{kv}");
        assert!(engine.stop(0));
        let left = engine.run().unwrap();
        assert_eq!(
            left.iter().map(|c| c.id).collect::<Vec<_>>(),
            [0, 1],
            "{kv}: the other sequence completes"
        );
        assert_eq!(left[0].finish_reason, FinishReason::Stop);
    }
}

#[test]
fn a_row_without_a_token_ends_its_sequence_and_no_other() {
    let mut model = model();
    model.params.embed.value_mut().unwrap().data_mut::<f32>().unwrap()[5 * 24] = f32::NAN;
    for kv in KINDS {
        let mut engine = Engine::new(&model, options(kv)).unwrap();
        let good = request(3, &[1, 2], 1);
        engine.submit_group(request(7, &[1, 5, 3], 8), 2).unwrap();
        engine.submit(good.clone()).unwrap();
        let refused = engine.step().unwrap_err();
        assert!(matches!(refused, Error::Sample { id: 7, position: 3, .. }), "{kv}: {refused}");
        let events: Vec<(u64, usize)> =
            engine.events().iter().map(|event| (event.id, event.position)).collect();
        assert_eq!(events, [(3, 2)], "{kv}: the other sequence has a token");
        assert_eq!(
            refused.to_string(),
            "sequence 7, position 3: sampler: logit of token 0: expected a finite value or -inf, found NaN"
        );
        same_as_naive(&model, &[good], &engine.run().unwrap(), &kv.to_string());
        assert_eq!(engine.cache().unwrap().usage().in_use, 0, "{kv}");
    }
}
