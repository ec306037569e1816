//! The gate of multi-step scheduling. An engine that lets a GPU sample for several steps between synchronizations
//! returns the CPU's tokens, bits and finish reasons, also when sequences finish between two synchronizations, have a
//! repetition penalty, wait or are preempted.
use xtrain::decode::{
    Completion, Continuation, Counters, Engine, EngineOptions, Event, KvKind, LogitsRows, Request,
    SampleOptions, StopConditions, generate_naive,
};
use xtrain::model::{Biases, Config, Model};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::gpu::{self, biased};
use crate::rng::CaseRng;

fn config() -> Config {
    let biases = Biases { qkv: true, o: true, mlp: true };
    Config { vocab: 29, max_positions: 48, qk_norm: true, biases, ..gpu::config(false) }
}

/// Requests that end by a token, by their length or by the context, some of them penalised, filtered or greedy.
fn requests() -> Vec<Request> {
    let mut rng = CaseRng::new(31, 1);
    let request = |id: usize| {
        let prompt: Vec<u32> = (0..[1, 7, 3, 12, 30][id % 5]).map(|_| rng.below(29) as u32).collect();
        let options = SampleOptions {
            temperature: [1.0, 0.0, 1.3][id % 3],
            repetition_penalty: [None, Some(1.4)][id % 2],
            top_k: [None, None, Some(9)][id % 3],
            ..SampleOptions::default()
        };
        let stop = StopConditions { eos: vec![3, 17], tokens: vec![8] };
        Request { id: id as u64 + 5, options, stop, ..Request::sampled(&prompt, [25, 9, 40][id % 3], 1.0, 6) }
    };
    (0..9).map(request).collect()
}

/// The result of an engine.
struct Run {
    events: Vec<Event>,
    completions: Vec<Completion>,
    counters: Counters,
}

fn run(model: &Model, options: EngineOptions) -> Result<Run, String> {
    let mut engine = Engine::new(model, options).map_err(|e| e.to_string())?;
    for request in requests() {
        engine.submit(request).map_err(|e| e.to_string())?;
    }
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().map_err(|e| e.to_string())?.events);
    }
    let mut completions = engine.take_finished();
    completions.sort_by_key(|c| c.index);
    Ok(Run { events, completions, counters: engine.counters() })
}

fn same(got: &Completion, want: &Completion, what: &str) -> Result<usize, String> {
    let compared = crate::decode::same(got, want);
    compared.map(|()| 3 * want.tokens.len()).map_err(|e| format!("gate multi-step, seed 31: {what}: {e}"))
}

/// Engines with plenty of room, with few sequence slots and with little cache.
fn setups() -> [(KvKind, usize, Option<usize>); 5] {
    [
        (KvKind::default(), 16, None),
        (KvKind::Paged { page: 4 }, 3, None),
        (KvKind::Paged { page: 4 }, 9, Some(96)),
        (KvKind::Contiguous, 4, None),
        (KvKind::Growing, 5, None),
    ]
}

/// Compares every setup on the device with the oracle on the CPU; returns the number of compared values.
pub(crate) fn over(device: &Device) -> Result<usize, String> {
    let model = |device: &Device| biased(&config(), Dtype::F32, device);
    let on_device = model(device).for_inference().map_err(|e| e.to_string())?; // as the commands open it
    let on_cpu = model(&Device::cpu());
    let want: Result<Vec<Completion>, _> = requests().iter().map(|r| generate_naive(&on_cpu, r)).collect();
    let want = want.map_err(|e| e.to_string())?;
    let (mut n, mut surplus, mut preemptions) = (0, 0, 0);
    for (kv, max_batch, kv_capacity) in setups() {
        for steps_per_sync in [2, 8] {
            let what = format!(
                "{kv}, {max_batch} at a time, synchronized every {steps_per_sync} steps, on {device}"
            );
            let options = EngineOptions {
                kv,
                max_batch,
                kv_capacity,
                steps_per_sync,
                watermark: Some(0),
                prefill_chunk: Some(5),
                ..EngineOptions::default()
            };
            let got = run(&on_device, options).map_err(|e| format!("gate multi-step: {what}: {e}"))?;
            for (got, want) in got.completions.iter().zip(&want) {
                n += same(got, want, &what)?;
            }
            if got.completions.len() != want.len() {
                return Err(format!("gate multi-step: {what}: {} completions", got.completions.len()));
            }
            // if no sequence waits, events have the order of an engine that synchronizes every step
            let expected = run(&on_cpu, options)?.events;
            if max_batch > want.len() && got.events != expected {
                return Err(format!("gate multi-step: {what}: events in another order"));
            }
            surplus += got.counters.surplus_rows;
            preemptions += got.counters.preemptions;
        }
    }
    if surplus == 0 || preemptions == 0 {
        return Err(format!("gate multi-step: {surplus} surplus rows, {preemptions} preemptions"));
    }
    Ok(n)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn several_steps_per_sync_have_the_bits_and_finish_reasons_of_the_cpu() {
    for device in gpus(&[ThreadSchedule::Priorities(21)]) {
        let n = over(&device).unwrap_or_else(|e| panic!("{e}"));
        println!("multi-step on {device}: {n} values compared, 0 differ");
    }
}

/// Continues completions twice on the device, with pages and with little cache, and compares every turn with the longer
/// request on the CPU; returns the number of compared values.
fn continuations(device: &Device) -> Result<usize, String> {
    let model = |device: &Device| biased(&config(), Dtype::F32, device);
    let on_device = model(device).for_inference().map_err(|e| e.to_string())?;
    let on_cpu = model(&Device::cpu());
    let (mut n, mut kept) = (0, 0);
    for (kv_capacity, steps_per_sync) in [(None, 1), (None, 4), (Some(96), 4)] {
        let what = format!("continuation, {steps_per_sync} steps, {kv_capacity:?} positions, on {device}");
        let failed = |e: xtrain::decode::Error| format!("gate multi-step: {what}: {e}");
        let (kv, continuation) = (KvKind::Paged { page: 4 }, Continuation::On);
        let options = EngineOptions {
            kv,
            kv_capacity,
            steps_per_sync,
            continuation,
            watermark: Some(0),
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(&on_device, options).map_err(failed)?;
        // Three turns of the longest prompt have to fit in the context.
        let mut turn: Vec<Request> = requests()
            .into_iter()
            .filter(|r| r.prompt.len() < 20)
            .map(|r| Request { max_new: 6, ..r })
            .collect();
        for request in &turn {
            engine.submit(request.clone()).map_err(failed)?;
        }
        for appended in [&[5, 8][..], &[11], &[]] {
            let done = engine.run().map_err(failed)?;
            for (request, got) in turn.iter_mut().zip(&done) {
                n += same(got, &generate_naive(&on_cpu, request).map_err(failed)?, &what)?;
                request.prompt.extend(got.tokens.iter().chain(appended));
                if !appended.is_empty() {
                    engine.extend(got.index, appended, request.max_new).map_err(failed)?;
                }
            }
        }
        kept += engine.counters().continued_rows;
    }
    match kept {
        0 => Err("gate multi-step: no row of a continued sequence was kept".to_string()),
        _ => Ok(n),
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn continuations_on_a_gpu_have_the_bits_of_the_cpu() {
    for device in gpus(&[ThreadSchedule::Priorities(22)]) {
        let n = continuations(&device).unwrap_or_else(|e| panic!("{e}"));
        println!("continuations on {device}: {n} values compared, 0 differ");
    }
}

/// Positions that stay those of the first step between two synchronizations give other values.
#[cfg(feature = "faults")]
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_fault_of_a_continuation_is_found_on_a_gpu() {
    use xtrain::tensor::faults::{self, Fault};

    for device in gpus(&[ThreadSchedule::Forward]) {
        let found = faults::with(Fault::StaleStepIndices, || continuations(&device));
        println!("{}", found.expect_err("a fault that was not found"));
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn completions_of_one_prompt_share_its_rows_on_a_gpu_and_decode_apart() {
    let model = |device: &Device| biased(&config(), Dtype::F32, device);
    let (prompt, new, g) = ([1, 2, 3, 4, 5], 10, 3);
    let request = |id| Request { id, ..Request::sampled(&prompt, new, 0.0, 6) };
    let on_cpu = model(&Device::cpu());
    let want: Vec<Completion> = (0..=g).map(|id| generate_naive(&on_cpu, &request(id)).unwrap()).collect();
    for device in gpus(&[ThreadSchedule::Forward]) {
        let on_device = model(&device);
        for logits_rows in [LogitsRows::Sampled, LogitsRows::All] {
            let options = EngineOptions { logits_rows, ..EngineOptions::default() };
            let mut engine = Engine::new(&on_device, options).unwrap();
            engine.submit_group(request(0), g as usize).unwrap();
            let mut got = engine.run().unwrap();
            engine.submit(request(g)).unwrap();
            got.extend(engine.run().unwrap());
            assert_eq!(got.len(), want.len());
            got.iter().zip(&want).for_each(|(got, want)| _ = same(got, want, "group").unwrap());
            let c = engine.counters();
            // the completions are equal, but each computes its rows: the host does not see the tokens of each step
            let rows = (2 * prompt.len(), want.len() * (new - 1));
            assert_eq!((c.prefill_rows as usize, (c.layer_rows - c.prefill_rows) as usize), rows, "{device}");
        }
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_sampling_failure_is_reported_as_by_an_engine_that_synchronizes_every_step() {
    // a sequence that draws this token cannot draw another one
    let poisoned = |device: &Device| {
        let mut model = Model::init(&config(), Dtype::F32, &Device::cpu(), 3).unwrap();
        for p in model.params.iter_mut().filter(|p| p.name().contains("embed")) {
            p.value_mut().unwrap().data_mut::<f32>().unwrap()[24 * 11] = f32::NAN;
        }
        model.to_device(device).unwrap()
    };
    let end = |device: &Device| {
        let model = poisoned(device);
        let mut engine = Engine::new(&model, EngineOptions::default()).unwrap();
        for (id, prompt) in [(1, vec![1, 2, 3]), (2, vec![4]), (3, vec![5, 6])] {
            let request = Request { id, ..Request::sampled(&prompt, 40, 1.0, 9) };
            engine.submit(request).unwrap();
        }
        let (mut errors, mut completions) = (Vec::new(), Vec::new());
        while !engine.is_idle() {
            if let Err(e) = engine.step() {
                errors.push(e.to_string());
            }
            completions.extend(engine.take_finished());
        }
        errors.sort();
        completions.sort_by_key(|c| c.index);
        (errors, completions)
    };
    let want = end(&Device::cpu());
    assert!(!want.0.is_empty(), "{want:?}");
    for device in gpus(&[ThreadSchedule::Forward]) {
        assert_eq!(end(&device), want, "{device}");
    }
}
