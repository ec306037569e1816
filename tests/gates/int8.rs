//! The int8 cache: on a GPU it has the bits of its naive definition on the CPU, in f32, and it differs from an exact
//! one.
//!
//! On the CPU, a third of the cases with pages of the invariance gate and a part of those of the speculation gate use
//! it.
use xtrain::decode::{EngineOptions, KvKind, LogitsRows, PrefixCaching, Request, generate};
use xtrain::model::Model;
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::decode::{Oracle, logits, logits_over, options, same};
use crate::rng::CaseRng;

/// Prompts around a page and around a chunk of keys; two of them begin with the same tokens.
fn requests(vocab: usize) -> Vec<Request> {
    let tokens = |id: usize, n: usize| {
        let mut rng = CaseRng::new(301, id as u64);
        (0..n).map(|_| rng.below(vocab) as u32).collect::<Vec<u32>>()
    };
    let prompts = [tokens(0, 5), tokens(1, 40), tokens(2, 63), [tokens(1, 33), tokens(3, 9)].concat()];
    let request = |(id, prompt): (usize, &Vec<u32>)| Request {
        id: id as u64,
        ..Request::sampled(prompt, 6, [0.0, 0.8][id % 2], 9)
    };
    prompts.iter().enumerate().map(request).collect()
}

/// Compares rollouts on a device with the naive definition on the CPU. Returns the number of compared rows.
pub(crate) fn over(device: &Device) -> Result<usize, String> {
    let cfg = crate::gpu::config(true);
    let on_cpu = Model::init(&cfg, Dtype::F32, &Device::cpu(), 44).unwrap();
    let on_device = on_cpu.to_device(device).unwrap();
    let oracle = Oracle::of(KvKind::Int8 { page: 8 }, &on_cpu, requests(cfg.vocab));
    let mut rows = 0;
    for (page, max_batch, kv_capacity) in [(8, 4, None), (16, 2, Some(96)), (64, 1, None)] {
        let options = EngineOptions {
            kv_capacity,
            prefill_chunk: Some(17),
            prefix_caching: PrefixCaching::On,
            ..options(KvKind::Int8 { page }, max_batch)
        };
        let failed = |e: String| format!("gate int8, seed 301, pages of {page}, on {device}: {e}");
        rows += oracle.check(&on_device, options).map_err(failed)?;
        // several steps without a synchronization
        let options = EngineOptions { logits_rows: LogitsRows::Sampled, steps_per_sync: 4, ..options };
        let done =
            generate(&on_device, oracle.requests.clone(), options).map_err(|e| failed(e.to_string()))?;
        done.iter().zip(&oracle.completions).try_for_each(|(got, want)| same(got, want)).map_err(failed)?;
    }
    Ok(rows)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_gpu_has_the_bits_of_the_definition() {
    for device in gpus(&[ThreadSchedule::Random(5)]) {
        let rows = over(&device).unwrap_or_else(|e| panic!("{e}"));
        assert!(rows > 400, "{rows} rows on {device}");
    }
}

#[test]
fn int8_logits_are_near_the_exact_ones_and_differ() {
    let cfg = crate::gpu::config(true);
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 44).unwrap();
    let kv = KvKind::Int8 { page: 8 };
    for request in requests(cfg.vocab) {
        let (exact, int8) = (logits(&model, &request.prompt), logits_over(kv, &model, &request.prompt));
        let largest = exact.iter().fold(0f32, |m, x| m.max(x.abs()));
        let apart = exact.iter().zip(&int8).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        // an element of a head vector is off by at most 1/254 of the largest one
        assert!(apart > 0.0 && apart < 0.1 * largest, "{apart} of {largest}");
    }
}
