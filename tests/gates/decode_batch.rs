//! Batched decoding is bit-identical to decoding each sequence alone.
use xtrain::decode::{
    Completion, Engine, EngineOptions, KvKind, Request, SampleOptions, generate, generate_cached_batch,
    generate_naive,
};
use xtrain::model::{Eager, NoCache, Rows};
use xtrain::tensor::Dtype;
use xtrain::tensor::rng::{Purpose, draw};
use xtrain::tensor::testing::assert_bits_eq;

use crate::decode::{KINDS, Oracle, logits, options, prompts, qwen3, same};

fn single(request: &Request, n: u64) -> Request {
    Request { id: request.id + n, ..request.clone() }
}

#[test]
fn each_of_g_completions_equals_a_single_completion() {
    for (dtype, g) in [(Dtype::F32, 6), (Dtype::BF16, 3)] {
        let model = qwen3(dtype);
        let ways = [
            SampleOptions::greedy(),
            SampleOptions::default(),
            SampleOptions { temperature: 0.7, top_p: Some(0.95), ..SampleOptions::default() },
        ];
        for (prompt, options) in prompts()[1..].iter().zip(ways) {
            let request = Request { id: 100, options, ..Request::sampled(prompt, 16, 1.0, 77) };
            let got = generate_cached_batch(&model, request.clone(), g).unwrap();
            assert_eq!(got.len(), g);
            for (n, got) in got.iter().enumerate() {
                let request = single(&request, n as u64);
                same(got, &generate_naive(&model, &request).unwrap()).unwrap();
                let alone = generate(&model, vec![request], EngineOptions::default()).unwrap();
                same(got, &alone[0]).unwrap();
            }
            let different = got.iter().any(|c| c.tokens != got[0].tokens);
            assert_eq!(different, options.temperature > 0.0, "{options:?}");
        }
    }
}

#[test]
fn groups_of_completions_run_as_one_batch_with_every_cache() {
    let model = qwen3(Dtype::F32);
    let groups: Vec<Request> = prompts()[..4]
        .iter()
        .enumerate()
        .map(|(i, prompt)| Request { id: 10 * i as u64, ..Request::sampled(prompt, 10 + 3 * i, 1.0, 5) })
        .collect();
    let all = groups.iter().flat_map(|r| (0..3).map(|n| single(r, n))).collect();
    let oracle = Oracle::new(&model, all);
    for kv in KINDS {
        for (max_batch, prefill_chunk) in [(12, None), (5, Some(4)), (2, Some(1))] {
            let o = EngineOptions { prefill_chunk, ..options(kv, max_batch) };
            let mut engine = Engine::new(&model, o).unwrap();
            groups.iter().for_each(|r| _ = engine.submit_group(r.clone(), 3).unwrap());
            let done = oracle.finish(&mut engine);
            done.unwrap_or_else(|e| panic!("{kv}, {max_batch} at a time, chunk {prefill_chunk:?}: {e}"));
        }
    }
}

#[test]
fn forward_batched_ragged_matches_looped() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        let model = qwen3(dtype);
        let seqs = prompts();
        let rows = Rows::whole(&seqs);
        let hidden = model.forward(&mut Eager, &mut NoCache::new(&rows).unwrap(), &rows).unwrap();
        let batched = model.logits(&hidden).unwrap();
        let looped: Vec<f32> = seqs.iter().flat_map(|s| logits(&model, s)).collect();
        assert_bits_eq(batched.data().unwrap(), &looped, dtype);
    }
}

#[test]
fn a_sequence_is_unaffected_by_others_that_finish_or_join() {
    let model = qwen3(Dtype::F32);
    let lengths = [1, 30, 2, 17, 9, 4, 21, 3];
    let make =
        |(i, n): (usize, usize)| Request { id: i as u64, ..Request::sampled(&prompts()[i % 5], n, 1.0, 6) };
    let oracle = Oracle::new(&model, lengths.into_iter().enumerate().map(make).collect());
    for kv in KINDS {
        for max_batch in [1, 3, 8] {
            oracle.check(&model, options(kv, max_batch)).unwrap_or_else(|e| panic!("{kv}, {max_batch}: {e}"));
        }
    }
}

#[test]
fn a_preempted_sequence_has_the_same_bits() {
    let model = qwen3(Dtype::F32);
    let make = |(i, p): (usize, Vec<u32>)| Request { id: i as u64, ..Request::sampled(&p, 20, 1.0, 8) };
    let oracle = Oracle::new(&model, prompts().into_iter().enumerate().map(make).collect());
    for kv in [KvKind::Growing, KvKind::Paged { page: 1 }, KvKind::Paged { page: 8 }] {
        for prefill_chunk in [None, Some(3)] {
            let o = EngineOptions { kv_capacity: Some(64), prefill_chunk, ..options(kv, 5) };
            let mut engine = Engine::new(&model, o).unwrap();
            oracle.requests.iter().for_each(|r| _ = engine.submit(r.clone()).unwrap());
            oracle.finish(&mut engine).unwrap_or_else(|e| panic!("{kv}, chunk {prefill_chunk:?}: {e}"));
            assert!(engine.counters().preemptions > 0, "{kv}");
        }
    }
}

/// Random requests, and random options of an engine that runs them.
fn random_case(case: u64) -> (Vec<Request>, EngineOptions) {
    let word = |i: u32| draw(91, case, i, Purpose::DataOrder);
    let pick = |w: u32, n: usize| w as usize % n;
    let [kv, chunk, batch, rows] = word(0);
    let request = |i: usize| {
        let [len, new, way, first] = word(1 + i as u32);
        let tokens =
            (0..1 + pick(len, 25)).map(|t| draw(17, case, first ^ t as u32, Purpose::DataOrder)[0] % 512);
        let options = SampleOptions {
            temperature: [0.0, 0.7, 1.0, 1.4][pick(way, 4)],
            top_k: [None, Some(5)][pick(way >> 8, 2)],
            ..SampleOptions::default()
        };
        let prompt: Vec<u32> = tokens.collect();
        Request { id: i as u64, options, ..Request::sampled(&prompt, 1 + pick(new, 9), 1.0, case) }
    };
    let options = EngineOptions {
        prefill_chunk: [None, Some(1 + pick(chunk, 9))][pick(chunk >> 16, 2)],
        max_batched_tokens: [None, Some(1 + pick(rows, 50))][pick(rows >> 16, 2)],
        ..options(KINDS[pick(kv, KINDS.len())], 1 + pick(batch, 8))
    };
    ((0..2 + pick(kv >> 16, 7)).map(request).collect(), options)
}

#[test]
fn random_requests_in_random_engines_have_the_bits_of_the_oracle() {
    let (f32, bf16) = (qwen3(Dtype::F32), qwen3(Dtype::BF16));
    let mut rows = 0;
    for case in 0..200 {
        let model = if case % 8 == 0 { &bf16 } else { &f32 };
        let (requests, options) = random_case(case);
        let got = Oracle::new(model, requests).check(model, options);
        rows += got.unwrap_or_else(|e| panic!("decode_batch, case {case}, {options:?}: {e}"));
    }
    println!("decode_batch: 200 cases, {rows} rows of logits, 0 differ");
}

#[test]
fn adjacent_ids_draw_different_tokens() {
    let model = qwen3(Dtype::F32);
    let all = generate_cached_batch(&model, Request::sampled(&prompts()[1], 12, 1.0, 0), 16).unwrap();
    let mut tokens: Vec<&Completion> = all.iter().collect();
    tokens.sort_by(|a, b| a.tokens.cmp(&b.tokens));
    tokens.dedup_by(|a, b| a.tokens == b.tokens);
    assert_eq!(tokens.len(), 16);
}

#[cfg(feature = "faults")]
#[test]
fn a_random_state_shared_by_a_batch_is_caught() {
    let model = qwen3(Dtype::F32);
    let make = |i: u64| Request { id: i, ..Request::sampled(&prompts()[1], 12, 1.0, 4) };
    let oracle = Oracle::new(&model, (0..3).map(make).collect());
    let run = || oracle.check(&model, options(KvKind::default(), 3));
    run().unwrap();
    let found = xtrain::tensor::faults::with(xtrain::tensor::faults::Fault::RngUsesFirstSequenceId, run)
        .expect_err("the fault is found");
    println!("decode_batch, rng-uses-first-sequence-id, seed 4: {found}");
    assert!(found.starts_with("sequence 1, row "), "{found}");
}
