//! Tests of single steps: which rows run, what they report, and what they leave in the cache.
use std::sync::Arc;

use super::*;
use crate::rollout::completion::Event;

#[test]
fn an_engine_that_shares_its_model_runs_on_another_thread() {
    let (model, draft) = (Arc::new(model()), Arc::new(model()));
    let run = |mut engine: Engine<'_>| {
        engine.submit_group(request(1, &[5, 6, 7], 9), 3).unwrap();
        engine.run().unwrap()
    };
    let options = options(KvKind::default());
    let want = run(Engine::new(&*model, options).unwrap());
    let mut shared: Engine<'static> = Engine::new(model.clone(), options).unwrap();
    shared.draft_with(draft).unwrap();
    assert_eq!(std::thread::spawn(move || run(shared)).join().unwrap(), want);
    assert_eq!(Arc::strong_count(&model), 1);
}

#[test]
fn a_step_counts_its_own_passes_and_rows() {
    let model = model();
    let mut engine = Engine::new(&model, options(KvKind::default())).unwrap();
    let idle = |engine: &mut Engine<'_>| {
        let before = engine.counters();
        let step = engine.step().unwrap();
        assert_eq!((step.passes, step.prefill_rows, step.decode_rows, step.head_rows), (0, 0, 0, 0));
        assert_eq!(engine.counters(), before, "an idle engine does not run the model");
    };
    idle(&mut engine);
    engine.submit(request(1, &[1, 2, 3], 3)).unwrap();
    let mut steps = Vec::new();
    while !engine.is_idle() {
        let step = engine.step().unwrap();
        steps.push((step.passes, step.prefill_rows, step.decode_rows, step.head_rows));
    }
    assert_eq!(steps, [(1, 3, 0, 1), (1, 0, 1, 1), (1, 0, 1, 1)]);
    idle(&mut engine);
}

#[test]
fn decode_rows_run_before_prompts() {
    let model = model();
    for kv in KINDS {
        let mut engine =
            Engine::new(&model, EngineOptions { max_batched_tokens: Some(3), ..options(kv) }).unwrap();
        engine.submit(request(1, &[7; 20], 2)).unwrap();
        engine.submit(request(2, &[5], 6)).unwrap();
        for step in 0..6 {
            let tokens: Vec<u64> = engine.step().unwrap().events.iter().map(|event| event.id).collect();
            assert_eq!(tokens, [2], "{kv}, step {step}: the long prompt gets the two other rows");
        }
    }
}

#[test]
fn without_a_cache_a_step_runs_whole_sequences_up_to_its_limit() {
    let model = model();
    let limited = EngineOptions { max_batched_tokens: Some(6), ..options(KvKind::Off) };
    for (prompts, rows) in [(&[3, 3][..], 6), (&[3, 4], 3), (&[9, 2], 9), (&[9, 1], 1), (&[4, 2, 1], 5)] {
        let mut engine = Engine::new(&model, limited).unwrap();
        for &n in prompts {
            engine.submit(request(n as u64, &vec![5; n], 1)).unwrap();
        }
        // a prompt of one token runs first, as a decode row
        assert_eq!(engine.step().unwrap().prefill_rows, rows, "{prompts:?}");
        while !engine.is_idle() {
            assert!(engine.step().unwrap().prefill_rows > 0, "{prompts:?}");
        }
    }
}

#[test]
fn the_rows_of_a_finished_sequence_are_freed_before_the_next_one_is_admitted() {
    let model = model();
    for kv in KINDS {
        let mut engine = Engine::new(&model, EngineOptions { max_batch: 1, ..options(kv) }).unwrap();
        engine.submit(request(1, &[1, 2, 3], 1)).unwrap();
        engine.submit(request(2, &[4, 5], 1)).unwrap();
        engine.step().unwrap();
        assert_eq!((engine.waiting(), engine.cache().unwrap().usage().in_use), (1, 0), "{kv}");
    }
}

#[test]
fn a_prompt_reuses_the_rows_of_an_earlier_completion() {
    let model = model();
    let caching = EngineOptions { prefix_caching: PrefixCaching::On, ..options(KvKind::Paged { page: 4 }) };
    let mut engine = Engine::new(&model, caching).unwrap();
    engine.submit(request(1, &[1, 2, 3], 20)).unwrap();
    let done = engine.run().unwrap().remove(0);
    let prompt = [&[1, 2, 3], &done.tokens[..], &[9]].concat();
    engine.submit(request(2, &prompt, 4)).unwrap();
    let got = engine.run().unwrap();
    // 22 rows were computed, which are 5 whole pages
    assert_eq!(engine.counters().prefix_cache_hits, 20);
    same_as_naive(&model, &[request(2, &prompt, 4)], &got, "prefix");
}

#[test]
fn a_finish_reason_has_a_name_and_an_end_of_text_token_is_not_text() {
    let event = |finish| Event {
        index: 0,
        id: 0,
        position: 1,
        token: 2,
        logprob: 0.0,
        processed_logprob: 0.0,
        finish,
    };
    assert!(event(None).is_text());
    for (reason, name, is_text) in [
        (FinishReason::Eos, "eos", false),
        (FinishReason::Stop, "stop", true),
        (FinishReason::Length, "length", true),
        (FinishReason::Context, "context", true),
    ] {
        assert_eq!((reason.to_string().as_str(), event(Some(reason)).is_text()), (name, is_text));
    }
}

fn device_top_ks() -> [u32; 4] {
    [None, Some(5), Some(u32::MAX as usize), Some((1 << 32) + 5)].map(crate::rollout::runner::device_top_k)
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_device_keeps_all_tokens_if_top_k_is_above_32_bits() {
    assert_eq!(device_top_ks(), [0, 5, u32::MAX, u32::MAX]);
    #[cfg(feature = "faults")]
    assert_eq!(xtrain_tensor::faults::with(xtrain_tensor::faults::Fault::TopKCutToU32, device_top_ks)[3], 5);
}
