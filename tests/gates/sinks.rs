//! The sinks cache: rollouts beyond the model's context have the bits of the naive definition, on the CPU and on a GPU.
//!
//! A ninth of the cases of the invariance gate and of the held rows use it too, inside the context.
use xtrain::decode::{Engine, EngineOptions, Error, KvKind, Request, Speculation, StopConditions, generate};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::decode::{Oracle, logits, logits_over, naive_over, options, same, windowed};
use crate::rng::CaseRng;

/// The model's context.
const CONTEXT: usize = 24;

fn model(compute: Dtype, device: &Device) -> Model {
    let cfg = Config { qk_norm: true, ..windowed(CONTEXT) };
    Model::init(&cfg, compute, device, 45).unwrap()
}

/// Prompts shorter and longer than the cache and than the context; two of them begin with the same tokens.
fn requests() -> Vec<Request> {
    let tokens = |id: u64, n: usize| {
        let mut rng = CaseRng::new(302, id);
        (0..n).map(|_| rng.below(37) as u32).collect::<Vec<u32>>()
    };
    let prompts = [tokens(0, 1), tokens(1, 11), tokens(2, 23), [tokens(1, 9), tokens(3, 31)].concat()];
    let request = |(id, prompt): (usize, &Vec<u32>)| Request {
        id: id as u64,
        ..Request::sampled(prompt, 40, [0.0, 0.8][id % 2], 9)
    };
    prompts.iter().enumerate().map(request).collect()
}

/// Compares rollouts on a device, in `compute`, with the naive definition on the CPU. Returns the number of compared
/// rows.
fn over(device: &Device, compute: Dtype) -> Result<usize, String> {
    let (on_cpu, on_device) = (model(compute, &Device::cpu()), model(compute, device));
    let mut rows = 0;
    for (sinks, window) in [(4, 12), (0, 5), (3, 1), (2, 22)] {
        let kv = KvKind::Sinks { sinks, window };
        let oracle = Oracle::of(kv, &on_cpu, requests());
        assert!(oracle.completions.iter().all(|done| done.tokens.len() == 40), "beyond the context");
        for (max_batch, prefill_chunk, max_batched_tokens) in
            [(4, None, None), (2, Some(7), Some(9)), (1, Some(1), None)]
        {
            let options = EngineOptions { prefill_chunk, max_batched_tokens, ..options(kv, max_batch) };
            let failed =
                |e: String| format!("gate sinks, seed 302, {kv} on {device}, batch {max_batch}: {e}");
            rows += oracle.check(&on_device, options).map_err(failed)?;
        }
    }
    Ok(rows)
}

#[test]
fn a_sequence_beyond_the_context_has_the_bits_of_the_definition() {
    for compute in [Dtype::F32, Dtype::BF16] {
        let rows = over(&Device::cpu(), compute).unwrap_or_else(|e| panic!("{e}"));
        println!("sinks: {rows} rows in {compute}, 0 differ");
        assert!(rows > 2500, "{rows} rows");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_gpu_has_the_bits_of_the_definition() {
    for device in gpus(&[ThreadSchedule::Random(6)]) {
        let rows = over(&device, Dtype::F32).unwrap_or_else(|e| panic!("{e}"));
        assert!(rows > 2500, "{rows} rows on {device}");
    }
}

/// Compares completions that end by a token, between two synchronizations if the GPU decodes ahead, with the naive
/// definition on the CPU. Returns the number of tokens.
pub(crate) fn ends(device: &Device) -> Result<usize, String> {
    let kv = KvKind::Sinks { sinks: 2, window: 3 };
    let (on_cpu, on_device) = (model(Dtype::F32, &Device::cpu()), model(Dtype::F32, device));
    let stop = StopConditions { eos: (0..4).collect(), tokens: Vec::new() };
    let request =
        |r: Request| Request { stop: stop.clone(), ..Request::sampled(&r.prompt, 40, 0.8, 9 + r.id) };
    let mut tokens = 0;
    for request in requests().into_iter().map(request) {
        let want = naive_over(kv, &on_cpu, &request).map_err(|e| e.to_string())?;
        let failed = |e: String| format!("gate sinks, seed {}, {kv} on {device}: {e}", request.seed);
        let options = EngineOptions { kv, max_batch: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(&on_device, options).map_err(|e| failed(e.to_string()))?;
        engine.submit(request.clone()).map_err(|e| failed(e.to_string()))?;
        let done = engine.run().map_err(|e| failed(e.to_string()))?;
        same(&done[0], &want).map_err(failed)?;
        tokens += want.tokens.len();
    }
    Ok(tokens)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn sequences_that_end_on_a_gpu_have_the_tokens_of_the_definition() {
    for device in gpus(&[ThreadSchedule::Forward]) {
        let tokens = ends(&device).unwrap_or_else(|e| panic!("{e}"));
        assert!((8..100).contains(&tokens), "{tokens} tokens before the ends");
    }
}

#[test]
fn rows_have_exact_bits_until_a_position_is_overwritten() {
    let model = model(Dtype::F32, &Device::cpu());
    let tokens = &requests()[2].prompt;
    let (exact, sinks) =
        (logits(&model, tokens), logits_over(KvKind::Sinks { sinks: 2, window: 8 }, &model, tokens));
    let rows = |all: &[f32]| {
        all.chunks(37).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect::<Vec<Vec<_>>>()
    };
    let same: Vec<bool> = rows(&exact).iter().zip(&rows(&sinks)).map(|(a, b)| a == b).collect();
    assert_eq!(same, (0..tokens.len()).map(|pos| pos < 10).collect::<Vec<_>>());
}

#[test]
fn what_a_sinks_cache_cannot_do_is_refused() {
    let model = model(Dtype::F32, &Device::cpu());
    let kv = KvKind::Sinks { sinks: 4, window: 12 };
    let refused = |options: EngineOptions| match Engine::new(&model, options) {
        Err(error @ Error::Option { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let sizes = "sinks and a window of at most the model's maximum number of positions together";
    for (sinks, window) in [(4, 21), (24, 1), (usize::MAX, 1)] {
        let kv = KvKind::Sinks { sinks, window };
        let found = format!("{kv} and a model of 24 positions");
        assert_eq!(refused(options(kv, 1)), format!("kv: expected {sizes}, found {found}"));
    }
    assert_eq!(
        refused(options(KvKind::Sinks { sinks: 0, window: 0 }, 1)),
        "window: expected at least 1, found 0"
    );
    let speculation = Speculation::PromptLookup;
    let error = refused(EngineOptions { speculation, ..options(kv, 1) });
    assert_eq!(error, "speculation: expected off, with a sinks cache, found PromptLookup");
    let error = refused(EngineOptions { kv_capacity: Some(15), ..options(kv, 1) });
    assert!(error.contains("at least 16 for one sequence of a sinks:4+12 cache, found 15"), "{error}");
    let mut engine = Engine::new(&model, options(kv, 1)).unwrap();
    engine.submit(requests().swap_remove(1)).unwrap();
    engine.step().unwrap();
    let error = engine.snapshot(0).unwrap_err().to_string();
    assert_eq!(error, "kv: expected a cache that keeps all positions, for a snapshot, found sinks:4+12");
    // only this kind has sequences beyond the context
    for kv in [KvKind::Growing, KvKind::Int8 { page: 8 }] {
        let error =
            generate(&model, vec![requests().swap_remove(3)], options(kv, 1)).unwrap_err().to_string();
        assert!(error.contains("expected a prompt of at most 23 tokens, found 40"), "{error}");
        let done = generate(&model, vec![requests().swap_remove(2)], options(kv, 1)).unwrap();
        assert_eq!(done[0].tokens.len(), 1, "the context is full");
    }
}
