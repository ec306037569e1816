//! Tokens, log-probabilities and logits of cached decoding are bit-identical to those of naive recomputation.
use xtrain::decode::cache::{Cache, CacheShape};
use xtrain::decode::{
    EngineOptions, FinishReason, KvKind, KvMemory, Request, Room, SampleOptions, StopConditions, generate,
    generate_cached, generate_greedy_cached, generate_naive,
};
use xtrain::model::{Eager, KvStore, KvView, Model, Result, Rows};
use xtrain::tensor::ops::Slots;
use xtrain::tensor::testing::{gpus, times};
use xtrain::tensor::{Device, Dtype, Tensor, ThreadSchedule};

use crate::decode::{KINDS, Oracle, answers, ids, options, prompts, qwen3, same};
use crate::families::FAMILIES;
use crate::fixtures::{golden, json, model, sha};

/// Prompts of all lengths, each with other sampling options.
fn requests(max_new: usize) -> Vec<Request> {
    let ways = [
        SampleOptions::greedy(),
        SampleOptions::default(),
        SampleOptions { temperature: 0.8, top_k: Some(20), top_p: Some(0.9), ..SampleOptions::default() },
        SampleOptions { temperature: 1.3, min_p: Some(0.05), ..SampleOptions::default() },
        SampleOptions { repetition_penalty: Some(1.3), ..SampleOptions::default() },
    ];
    let make =
        |id, prompt: &[u32], options| Request { id, options, ..Request::sampled(prompt, max_new, 1.0, 1234) };
    (40..).zip(prompts()).zip(ways).map(|((id, prompt), options)| make(id, &prompt, options)).collect()
}

/// Prefill chunk sizes: none, and `sizes` if there is a cache.
fn chunks<const N: usize>(kv: KvKind, sizes: [usize; N]) -> Vec<Option<usize>> {
    let sizes = sizes.into_iter().filter(|_| kv != KvKind::Off);
    [None].into_iter().chain(sizes.map(Some)).collect()
}

#[test]
fn cached_decoding_has_the_bits_of_naive_recomputation() {
    let mut rows = 0;
    for (dtype, max_new) in [(Dtype::F32, 40), (Dtype::BF16, 6)] {
        let model = qwen3(dtype);
        let oracle = Oracle::new(&model, requests(max_new));
        for kv in KINDS {
            for prefill_chunk in chunks(kv, [1, 3, 7]) {
                let o = EngineOptions { prefill_chunk, ..options(kv, 5) };
                let got = oracle.check(&model, o);
                rows += got.unwrap_or_else(|e| panic!("{kv}, {dtype}, chunk {prefill_chunk:?}: {e}"));
            }
        }
    }
    println!("decode_kv: {rows} rows of logits, 0 differ");
}

#[test]
fn a_long_prompt_has_the_same_bits_across_page_and_chunk_borders() {
    let model = qwen3(Dtype::F32);
    let prompt = ids(&answers()["long"]["prompt"]);
    let oracle = Oracle::new(&model, vec![Request::sampled(&prompt, 30, 1.0, 9)]);
    for kv in KINDS {
        for prefill_chunk in chunks(kv, [64, 50]) {
            let o = EngineOptions { prefill_chunk, ..options(kv, 1) };
            oracle.check(&model, o).unwrap_or_else(|e| panic!("{kv}, chunk {prefill_chunk:?}: {e}"));
        }
    }
}

#[test]
fn the_three_cached_calls_equal_the_oracle() {
    let model = qwen3(Dtype::F32);
    for prompt in prompts() {
        let got = generate_greedy_cached(&model, &prompt, 24).unwrap();
        same(&got, &generate_naive(&model, &Request::greedy(&prompt, 24)).unwrap()).unwrap();
        let got = generate_cached(&model, &prompt, 24, 0.9, 5).unwrap();
        same(&got, &generate_naive(&model, &Request::sampled(&prompt, 24, 0.9, 5)).unwrap()).unwrap();
        let cold = generate_cached(&model, &prompt, 24, 0.0, 5).unwrap();
        assert_eq!(cold.tokens, generate_greedy_cached(&model, &prompt, 24).unwrap().tokens);
    }
}

#[test]
fn sampled_tokens_are_the_golden_tokens() {
    golden_samples(&qwen3(Dtype::F32), &KINDS).unwrap();
}

/// The test command checks the paged cache, the longer suite all caches.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn tokens_sampled_on_a_gpu_are_the_golden_tokens() {
    for device in gpus(&[ThreadSchedule::Random(8)]) {
        let kinds = if times(0, 1) == 1 { &KINDS[..] } else { &[KvKind::Paged { page: 5 }] };
        golden_samples(&qwen3(Dtype::F32).to_device(&device).unwrap(), kinds).unwrap();
        println!("golden samples on {device}: {} caches, 0 differ", kinds.len());
    }
}

/// Compares sampled tokens and their log-probabilities with the golden lines, for these caches.
fn golden_samples(model: &Model, kinds: &[KvKind]) -> std::result::Result<(), String> {
    let ways = [
        ("a", SampleOptions::default()),
        ("b", SampleOptions { temperature: 0.8, top_k: Some(20), top_p: Some(0.9), ..Default::default() }),
        ("c", SampleOptions { temperature: 1.3, min_p: Some(0.05), ..Default::default() }),
    ];
    for &kv in kinds {
        let request = |options| Request { id: 7, options, ..Request::sampled(&prompts()[1], 64, 1.0, 1234) };
        let all = ways.iter().map(|w| request(w.1)).collect();
        let o = EngineOptions { kv, max_batch: 2, ..EngineOptions::default() };
        for (got, (line, _)) in generate(model, all, o).unwrap().into_iter().zip(ways) {
            let tokens: Vec<String> = got.tokens.iter().map(u32::to_string).collect();
            let found = format!("{} {}", sha(got.logprobs), tokens.join(","));
            let processed = sha(got.processed_logprobs);
            for (what, found) in [(format!("S/{line}"), found), (format!("S/{line}/processed"), processed)] {
                let want = golden("sampled.txt", &what);
                if found != want {
                    return Err(format!("{what}, {kv}, seed 1234: found {found}, expected {want}"));
                }
            }
        }
    }
    Ok(())
}

/// A prompt and the reference's greedy continuation.
struct Continuation {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    eos: Vec<u32>,
    reason: FinishReason,
}

impl Continuation {
    /// Truncates the tokens after the first end-of-text token of `eos`, if any.
    fn new(prompt: Vec<u32>, mut greedy: Vec<u32>, eos: Vec<u32>) -> Continuation {
        let end = greedy.iter().position(|t| eos.contains(t));
        greedy.truncate(end.map_or(greedy.len(), |n| n + 1));
        let reason = if end.is_some() { FinishReason::Eos } else { FinishReason::Length };
        Continuation { prompt, greedy, eos, reason }
    }

    /// The request. It allows more tokens if the continuation ends with an end-of-text token.
    fn request(&self, id: u64) -> Request {
        let more = if self.reason == FinishReason::Eos { 40 } else { 0 };
        let stop = StopConditions { eos: self.eos.clone(), tokens: Vec::new() };
        Request { id, stop, ..Request::greedy(&self.prompt, self.greedy.len() + more) }
    }
}

/// Every greedy continuation of a fixture.
fn continuations(dir: &str) -> Vec<Continuation> {
    let answers = json(&format!("{dir}/ref.json"));
    let prompts: Vec<Vec<u32>> = answers["prompts"].as_array().unwrap().iter().map(ids).collect();
    let list = |v: &serde_json::Value| v.as_array().unwrap().clone();
    let cases = list(&answers["cases"]).into_iter().chain([answers["long"].clone()]);
    let mut all: Vec<Continuation> =
        cases.map(|c| Continuation::new(ids(&c["prompt"]), ids(&c["greedy"]), Vec::new())).collect();
    let (ragged, eos) = (&answers["ragged"], &answers["eos"]);
    for (n, &at) in ids(&ragged["prompt_indices"]).iter().enumerate() {
        let (prompt, ends) = (&prompts[at as usize], ids(&eos["eos_token_ids"]));
        all.push(Continuation::new(prompt.clone(), ids(&ragged["greedy"][n]), Vec::new()));
        all.push(Continuation::new(prompt.clone(), ids(&eos["ragged_generated"][n]), ends));
    }
    let at = eos["prompt_index"].as_u64().unwrap() as usize;
    all.push(Continuation::new(prompts[at].clone(), ids(&eos["generated"]), ids(&eos["eos_token_ids"])));
    all
}

#[test]
fn greedy_continuations_are_those_of_the_reference() {
    for name in FAMILIES {
        greedy_continuations(&format!("models/{name}"));
    }
}

fn greedy_continuations(dir: &str) {
    let (model, expected) = (model(dir, Dtype::F32, &Device::cpu()), continuations(dir));
    assert!(expected.len() == 13 && expected.iter().any(|a| a.reason == FinishReason::Eos), "{dir}");
    for kv in [KvKind::Growing, KvKind::Contiguous, KvKind::default(), KvKind::Paged { page: 5 }] {
        let requests = expected.iter().enumerate().map(|(id, a)| a.request(id as u64)).collect();
        let o = EngineOptions { kv, max_batch: 4, prefill_chunk: Some(20), ..EngineOptions::default() };
        for (got, want) in generate(&model, requests, o).unwrap().iter().zip(&expected) {
            let what = format!("{dir}, {kv}, sequence {}", got.id);
            assert_eq!((&got.tokens, got.finish_reason), (&want.greedy, want.reason), "{what}");
        }
    }
}

/// A cache, and a copy of each layer's content when it was last extended.
struct Watched {
    cache: Box<dyn Cache>,
    seen: Vec<(Tensor, Tensor, Slots)>,
}

impl KvStore<Eager> for Watched {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        let kv = self.cache.extend(layer, k, v, rows)?;
        self.seen.push((kv.k.clone(), kv.v.clone(), kv.slots.clone()));
        Ok(kv)
    }
}

#[test]
fn a_cache_holds_the_golden_keys_and_values() {
    let (model, prompt) = (qwen3(Dtype::F32), &prompts()[2]);
    let CacheShape { n_layers, n_kv_heads, head_dim, .. } = CacheShape::of(&model);
    for kv in KINDS {
        let room = Room { sequences: 2, positions: 64, slots: None };
        let Some(cache) = kv.cache(&model, room, KvMemory::default()).unwrap() else { continue };
        let mut store = Watched { cache, seen: Vec::new() };
        // in two chunks, after another sequence
        for chunk in [0..4, 4..prompt.len()] {
            let mut rows = Rows::default();
            chunk.clone().for_each(|t| rows.push(0, t as u32, 3));
            chunk.for_each(|t| rows.push(1, t as u32, prompt[t]));
            store.seen.clear();
            model.forward(&mut Eager, &mut store, &rows).unwrap();
        }
        let mut values = Vec::new();
        assert_eq!(store.seen.len(), n_layers);
        for (k, v, slots) in &store.seen {
            for data in [k, v].map(|t| t.data::<f32>().unwrap()) {
                for head in 0..n_kv_heads {
                    for t in 0..prompt.len() {
                        let at = (slots.slot(1, t) * n_kv_heads + head) * head_dim;
                        values.extend_from_slice(&data[at..at + head_dim]);
                    }
                }
            }
        }
        assert_eq!(sha(values), golden("models.txt", "K/qwen3_tied"), "{kv}");
    }
}

#[cfg(feature = "faults")]
mod faults {
    use xtrain::tensor::faults::{self, Fault};

    use super::*;

    /// The gate must find the fault in a cache of kind `kv`; the difference contains `want`.
    #[track_caller]
    fn caught(fault: Fault, kv: KvKind, want: &str) {
        let model = qwen3(Dtype::F32);
        let oracle = Oracle::new(&model, requests(20));
        let run = || oracle.check(&model, options(kv, 5));
        run().unwrap();
        let found = faults::with(fault, run).expect_err("the fault is found");
        println!("decode_kv, {kv}, {fault}, seed 1234: {found}");
        assert!(found.contains(want), "{fault}: {found}");
    }

    #[test]
    fn a_dropped_cache_write_is_caught() {
        for kv in KINDS.into_iter().filter(|&kv| kv != KvKind::Off) {
            caught(Fault::DroppedCacheWrite, kv, "sequence 41, row 2");
        }
    }

    #[test]
    fn a_page_off_by_one_is_caught() {
        caught(Fault::PageOffByOne, KvKind::Paged { page: 5 }, "sequence 42, row 0");
        caught(Fault::PageOffByOne, KvKind::Paged { page: 16 }, "sequence 43, row 0");
    }

    #[test]
    fn a_position_off_by_one_is_caught() {
        for kv in KINDS.into_iter().filter(|&kv| kv != KvKind::Off) {
            caught(Fault::PositionOffByOne, kv, "expected position 1, found 2");
        }
    }
}
