//! Rows from the prefix cache are bit-identical to computed rows, and are counted.
use xtrain::decode::{Engine, EngineOptions, KvKind, PrefixCaching, Request};
use xtrain::tensor::Dtype;
use xtrain::tensor::rng::{Purpose, draw};

use crate::decode::{Oracle, options, qwen3};

/// Prompts with shared prefixes: each takes a random part of an earlier prompt, or of an earlier prompt and its
/// completion, and continues with its own tokens.
fn requests(case: u64, n: usize) -> Vec<Request> {
    let pick = |w: u32, n: usize| w as usize % n;
    let token = |i: usize, t: usize| draw(23, case, (i * 64 + t) as u32, Purpose::DataOrder)[0] % 512;
    let mut all: Vec<Vec<u32>> = Vec::new();
    for i in 0..n {
        let [earlier, share, own, _] = draw(29, case, i as u32, Purpose::DataOrder);
        let mut prompt = match all.get(pick(earlier, all.len() + 1)) {
            Some(earlier) => earlier[..pick(share, earlier.len() + 1)].to_vec(),
            None => Vec::new(),
        };
        prompt.extend((0..1 + pick(own, 24)).map(|t| token(i, t)));
        prompt.truncate(120);
        all.push(prompt);
    }
    let new = |i: u64| 1 + pick(draw(31, case, i as u32, Purpose::DataOrder)[0], 12);
    let request =
        |(i, p): (u64, &Vec<u32>)| Request { id: i, ..Request::sampled(p, new(i), (i % 2) as f32, case) };
    (0..).zip(&all).map(request).collect()
}

/// The compared rows, the prefix cache hits and the preemptions of the cases, or the first difference.
pub(crate) fn over(cases: std::ops::Range<u64>) -> Result<[u64; 3], String> {
    let (f32, bf16) = (qwen3(Dtype::F32), qwen3(Dtype::BF16));
    let [mut rows, mut hits, mut preempted] = [0; 3];
    for case in cases {
        let model = if case % 4 == 0 { &bf16 } else { &f32 };
        let oracle = Oracle::new(model, requests(case, 10));
        let [page, batch, chunk, tight] = draw(37, case, 0, Purpose::DataOrder);
        let longest = oracle.requests.iter().map(|r| r.prompt.len() + r.max_new).max().unwrap();
        let o = EngineOptions {
            prefix_caching: PrefixCaching::On,
            prefill_chunk: [None, Some(1 + chunk as usize % 20)][chunk as usize >> 8 & 1],
            kv_capacity: [None, Some(2 * longest + 32)][tight as usize & 1],
            ..options(KvKind::Paged { page: [1, 3, 8, 16][page as usize % 4] }, 1 + batch as usize % 4)
        };
        let mut engine = Engine::new(model, o).unwrap();
        // some requests first, the others when these have finished
        for part in [0..6, 6..10] {
            oracle.requests[part.clone()].iter().for_each(|r| _ = engine.submit(r.clone()).unwrap());
            let done = oracle.finish_part(&mut engine, part);
            rows += done.map_err(|e| format!("gate prefix cache, case {case}, seed 37, {o:?}: {e}"))? as u64;
        }
        let c = engine.counters();
        let prompt_rows: usize = oracle.requests.iter().map(|r| r.prompt.len()).sum();
        if c.preemptions == 0 {
            assert_eq!(c.prefill_rows + c.prefix_cache_hits, prompt_rows as u64, "case {case}, {o:?}");
        }
        hits += c.prefix_cache_hits;
        preempted += c.preemptions;
    }
    Ok([rows, hits, preempted])
}

#[test]
fn a_prompt_with_a_cached_prefix_reuses_its_rows_and_has_the_same_bits() {
    let [rows, hits, preempted] = over(0..60).unwrap_or_else(|e| panic!("{e}"));
    println!("prefix cache: 60 cases, {rows} rows of logits, 0 differ, {hits} cache hits");
    assert!(hits > 1000 && preempted > 0, "{hits} cache hits, {preempted} preemptions");
}

/// Two prompts with the same first page run at the same time, in a cache with exactly the pages of the longer
/// sequence. The page that the shorter one leaves behind must not take the place of the last page of the longer one.
/// Returns the number of compared rows.
#[cfg(feature = "faults")]
pub(crate) fn duplicates() -> Result<usize, String> {
    let model = qwen3(Dtype::F32);
    let long: Vec<u32> = (0..60).map(|t| 7 * t % 512).collect();
    let requests = [(0, &long[..5], 1), (1, &long, 2)];
    let requests = requests.map(|(id, prompt, new)| Request { id, ..Request::sampled(prompt, new, 1.0, 31) });
    let oracle = Oracle::new(&model, requests.to_vec());
    let caching = EngineOptions {
        prefix_caching: PrefixCaching::On,
        kv_capacity: Some(65),
        max_seq_len: Some(64),
        ..options(KvKind::Paged { page: 5 }, 2)
    };
    oracle.check(&model, caching).map_err(|e| format!("gate prefix cache, seed 31: duplicates: {e}"))
}

/// A prompt that is complete serves a later request while its own sequence still runs. Returns the number of rows
/// that the later requests take from it.
pub(crate) fn running() -> Result<usize, String> {
    let model = qwen3(Dtype::F32);
    let prompt: Vec<u32> = (0..40).collect();
    let mut rows = 0;
    for chunk in [None, Some(8), Some(40)] {
        let o = EngineOptions {
            prefix_caching: PrefixCaching::On,
            prefill_chunk: chunk,
            ..options(KvKind::Paged { page: 16 }, 2)
        };
        let error = |e| format!("gate prefix cache, seed 0: {e}");
        let mut engine = Engine::new(&model, o).map_err(error)?;
        engine.submit(Request::sampled(&prompt, 60, 1.0, 0)).map_err(error)?;
        while engine.counters().prefill_rows < 40 {
            let _ = engine.step().map_err(error)?;
        }
        engine.submit(Request { id: 1, ..Request::sampled(&prompt, 1, 1.0, 0) }).map_err(error)?;
        let _ = engine.step().map_err(error)?;
        let hits = engine.counters().prefix_cache_hits;
        if hits != 32 {
            return Err(format!(
                "gate prefix cache, seed 0: prompts in chunks of {chunk:?}: a request took {hits} rows of a prompt \
                 that is complete, expected 32"
            ));
        }
        rows += hits as usize;
    }
    Ok(rows)
}

#[test]
fn a_complete_prompt_serves_others_while_its_sequence_runs() {
    let rows = running().unwrap_or_else(|e| panic!("{e}"));
    println!("prefix cache: {rows} rows of prompts whose sequences still run");
}

#[test]
fn prefix_caching_is_off_by_default_and_needs_pages() {
    let model = qwen3(Dtype::F32);
    let prompt: Vec<u32> = (0..40).collect();
    for (prefixes, again) in [(PrefixCaching::Off, 40), (PrefixCaching::On, 40 - 32)] {
        for kv in [KvKind::Paged { page: 16 }, KvKind::Contiguous, KvKind::Off] {
            let mut engine =
                Engine::new(&model, EngineOptions { prefix_caching: prefixes, ..options(kv, 4) }).unwrap();
            let mut run = || {
                let before = engine.counters().prefill_rows;
                engine.submit_group(Request::sampled(&prompt, 1, 1.0, 0), 3).unwrap();
                engine.run().unwrap();
                engine.counters().prefill_rows - before
            };
            let rows = [run(), run()];
            match kv {
                KvKind::Paged { .. } => assert_eq!(rows, [40, again], "{prefixes:?}"),
                _ => assert_eq!(rows[0], rows[1], "{kv}"),
            }
        }
    }
}
