//! Rollouts whose tokens a GPU samples, ahead of the host where the cache allows it: for every family, scaling, kind of
//! cache, shared prefix and filter, the tokens and bits of the naive definition on the CPU.
//!
//! Engines that return all logits sample on the host and synchronize every step; other gates compare those.
use xtrain::decode::{
    Completion, Counters, Engine, EngineOptions, KvKind, PrefixCaching, Request, SampleOptions, Speculation,
    StopConditions,
};
use xtrain::model::Model;
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::decode::{naive_over, same};
use crate::families::FAMILIES;
use crate::fixtures::model;
use crate::rng::CaseRng;

/// Checkpoints with a scaling of RoPE or a sliding window.
const SMALL: [&str; 3] = ["llama_yarn", "llama_linear", "mistral_window"];

/// Completions of the last prompt.
const GROUP: usize = 3;

/// Engines. Each checkpoint runs with some of them.
fn setups() -> [EngineOptions; 9] {
    let of = |kv, max_batch, steps_per_sync| EngineOptions {
        kv,
        max_batch,
        steps_per_sync,
        watermark: Some(0),
        ..EngineOptions::default()
    };
    let prefix_caching = PrefixCaching::On;
    [
        EngineOptions { prefix_caching, ..of(KvKind::Paged { page: 4 }, 8, 8) },
        EngineOptions { prefix_caching, kv_capacity: Some(80), ..of(KvKind::Paged { page: 16 }, 3, 3) },
        EngineOptions { prefill_chunk: Some(7), ..of(KvKind::Contiguous, 2, 4) },
        of(KvKind::Growing, 5, 2),
        EngineOptions { prefix_caching, ..of(KvKind::Int8 { page: 8 }, 4, 5) },
        EngineOptions { kv_capacity: Some(72), prefill_chunk: Some(9), ..of(KvKind::Int8 { page: 4 }, 7, 3) },
        of(KvKind::Sinks { sinks: 2, window: 9 }, 3, 4),
        of(KvKind::Off, 4, 4),
        EngineOptions { speculation: Speculation::PromptLookup, ..of(KvKind::Paged { page: 5 }, 4, 4) },
    ]
}

/// Requests with each filter, a penalty and ends by a token. The second begins with the tokens of the first. The last is
/// that of a group.
fn requests(vocab: usize) -> Vec<Request> {
    let tokens = |id: u64, n: usize| {
        let mut rng = CaseRng::new(311, id);
        (0..n).map(|_| rng.below(vocab) as u32).collect::<Vec<u32>>()
    };
    let prompts =
        [tokens(0, 18), [tokens(0, 17), tokens(1, 4)].concat(), [7, 9].repeat(6), tokens(3, 1), tokens(4, 6)];
    let plain = SampleOptions::default();
    let options = [
        SampleOptions { temperature: 0.8, top_p: Some(0.7), ..plain },
        SampleOptions { temperature: 0.0, ..plain },
        SampleOptions { temperature: 0.0, repetition_penalty: Some(1.3), ..plain },
        SampleOptions { temperature: 1.2, min_p: Some(0.3), ..plain },
        SampleOptions { temperature: 1.0, top_k: Some(20), ..plain },
    ];
    let stop = StopConditions { eos: (0..vocab as u32).step_by(29).collect(), tokens: vec![8] };
    let requests = prompts.iter().zip(options).enumerate().map(|(at, (prompt, options))| Request {
        id: 3 * at as u64,
        options,
        stop: if at % 2 == 0 { stop.clone() } else { StopConditions::default() },
        ..Request::sampled(prompt, [11, 28, 12, 10, 11][at], 1.0, 5)
    });
    requests.collect()
}

/// The completions of an engine in the order of submission.
fn completions(
    model: &Model,
    requests: &[Request],
    options: EngineOptions,
) -> xtrain::decode::Result<(Vec<Completion>, Counters)> {
    let mut engine = Engine::new(model, options)?;
    let (last, first) = requests.split_last().expect("there are requests");
    for request in first {
        engine.submit(request.clone())?;
        // the pages of the first prompt are complete before the second is looked up
        engine.step()?;
    }
    engine.submit_group(last.clone(), GROUP)?;
    let mut all = engine.run()?;
    all.sort_by_key(|completion| completion.index);
    Ok((all, engine.counters()))
}

/// Compares the checkpoints `names` on a device with the CPU, or with the device where the arithmetic is bf16. Returns
/// the number of tokens.
pub(crate) fn over(device: &Device, names: &[&str], compute: Dtype) -> Result<usize, String> {
    let (mut tokens, mut sum) = (0, Counters::default());
    for (at, name) in names.iter().enumerate() {
        let on_cpu = model(&format!("models/{name}"), compute, &Device::cpu());
        let on_device = on_cpu.to_device(device).map_err(|e| e.to_string())?;
        let oracle = if compute == Dtype::F32 { &on_cpu } else { &on_device };
        let requests = requests(on_cpu.config().vocab);
        for (setup, options) in setups().into_iter().enumerate().filter(|(setup, _)| setup % 3 == at % 3) {
            let failed = |e: String| {
                format!("gate decoding ahead, seed 311: {name} in {compute}, setup {setup} on {device}: {e}")
            };
            let (got, counters) =
                completions(&on_device, &requests, options).map_err(|e| failed(e.to_string()))?;
            let last = requests.last().expect("there are requests");
            let group = (1..GROUP as u64).map(|n| Request { id: last.id + n, ..last.clone() });
            let all: Vec<Request> = requests.iter().cloned().chain(group).collect();
            if got.len() != all.len() {
                return Err(failed(format!("{} completions, expected {}", got.len(), all.len())));
            }
            for (got, request) in got.iter().zip(&all) {
                let want = naive_over(options.kv, oracle, request).map_err(|e| failed(e.to_string()))?;
                same(got, &want).map_err(failed)?;
                tokens += want.tokens.len();
            }
            sum.surplus_rows += counters.surplus_rows;
            sum.prefix_cache_hits += counters.prefix_cache_hits;
            sum.preemptions += counters.preemptions;
            sum.drafted += counters.drafted;
        }
    }
    let counts = [sum.surplus_rows, sum.prefix_cache_hits, sum.preemptions, sum.drafted];
    match counts.contains(&0) && names.len() > 2 {
        true => {
            Err(format!("gate decoding ahead: surplus rows, prefix hits, preemptions, drafts: {counts:?}"))
        }
        false => Ok(tokens),
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn tokens_that_a_gpu_samples_ahead_of_the_host_are_those_of_the_definition() {
    let names = [&FAMILIES[..], &SMALL].concat();
    for device in gpus(&[ThreadSchedule::Priorities(23)]) {
        let f32 = over(&device, &names, Dtype::F32).unwrap_or_else(|e| panic!("{e}"));
        let bf16 = over(&device, &["qwen2_bias"], Dtype::BF16).unwrap_or_else(|e| panic!("{e}"));
        println!("decoding ahead on {device}: {f32} tokens in f32, {bf16} in bf16, 0 differ");
        assert!(f32 > 1000 && bf16 > 50, "{f32}, {bf16}");
    }
}
