//! Tests of completions that wait for the prompt of another one.
use super::*;

#[test]
fn a_prompt_is_computed_once_more_if_the_sequence_that_computes_it_is_stopped() {
    let model = model();
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    for kv in KINDS {
        let chunked = EngineOptions { prefill_chunk: Some(3), ..options(kv) };
        let mut engine = Engine::new(&model, chunked).unwrap();
        engine.submit_group(request(10, &prompt, 4), 4).unwrap();
        engine.step().unwrap();
        assert!(engine.stop(0), "{kv}");
        for _ in 0..20 {
            engine.step().unwrap();
        }
        assert!(engine.is_idle(), "{kv}: the other three do not wait for each other");
        let finished = engine.take_finished();
        let others: Vec<Request> = (11..14).map(|id| request(id, &prompt, 4)).collect();
        same_as_naive(&model, &others, &finished[1..], &kv.to_string());
        assert_eq!(engine.counters().prefill_rows, 3 + 7, "{kv}");
    }
}

#[test]
fn a_preempted_completion_does_not_take_its_first_token_again() {
    let model = model();
    let (prompt, g) = ([4, 5, 6, 7], 9);
    // completions of different lengths: some finish while a preempted one and fresh ones wait
    let stop = StopConditions { eos: (0..4).collect(), tokens: vec![] };
    let all: Vec<Request> =
        (40..40 + g).map(|id| Request { stop: stop.clone(), ..request(id, &prompt, 12) }).collect();
    for kv in [KvKind::Growing, KvKind::Paged { page: 1 }, KvKind::Paged { page: 2 }] {
        for kv_capacity in [18, 22, 26] {
            let tight = EngineOptions { kv_capacity: Some(kv_capacity), max_batch: 4, ..options(kv) };
            let mut engine = Engine::new(&model, tight).unwrap();
            engine.submit_group(all[0].clone(), g as usize).unwrap();
            let got = engine.run().unwrap();
            assert!(engine.counters().preemptions > 0, "{kv}, {kv_capacity}");
            same_as_naive(&model, &all, &got, &format!("{kv}, {kv_capacity}"));
        }
    }
}

/// Runs two sequences of which the second cannot fork its prompt, and gets the slot of another group.
fn without_room_to_fork() -> crate::error::Result<()> {
    let model = model();
    let options = EngineOptions {
        kv_capacity: Some(60),
        prefill_chunk: Some(16),
        max_batch: 3,
        ..options(KvKind::Growing)
    };
    let long: Vec<u32> = (0..30).collect();
    let mut engine = Engine::new(&model, options)?;
    let first = [request(1, &[5], 3), request(2, &[6], 3), request(10, &long, 20), request(11, &long, 20)];
    engine.submit(first[0].clone())?;
    engine.submit(first[1].clone())?;
    engine.submit_group(first[2].clone(), 2)?;
    engine.step()?;
    // two of them get the slots of the short sequences and end together, before the second of the first group runs
    let others: Vec<Request> = (20..23).map(|id| request(id, &[1, 2, 3, 4], 4)).collect();
    engine.submit_prioritized(others[0].clone(), 3, 1)?;
    let got = engine.run()?;
    same_as_naive(&model, &[&first[..], &others].concat(), &got, "growing");
    Ok(())
}

#[test]
fn a_slot_that_keeps_another_prompt_is_freed_for_a_sequence_that_cannot_fork() {
    without_room_to_fork().unwrap();
}

#[test]
#[cfg(feature = "faults")]
fn a_slot_that_is_not_freed_is_found() {
    use xtrain_tensor::faults::{Fault, with};
    let error = with(Fault::PromptOfOtherGroupKept, without_room_to_fork).unwrap_err().to_string();
    assert!(error.contains("position"), "{error}");
}

/// A completion of a group ends with its first token, and its slot keeps the prompt for the next one. Meanwhile another
/// sequence needs the rest of the cache.
fn with_a_prompt_in_a_free_slot(kv: KvKind) -> crate::error::Result<()> {
    let model = model();
    let tight =
        EngineOptions { kv_capacity: Some(41), max_batch: 4, watermark: kv.page().map(|_| 0), ..options(kv) };
    let long: Vec<u32> = (0..40).map(|i| i % 30).collect();
    let mut engine = Engine::new(&model, tight)?;
    let all: Vec<Request> =
        (0..3).map(|id| request(id, &[7], 20)).chain((10..13).map(|id| request(id, &long, 1))).collect();
    engine.submit_group(all[0].clone(), 3)?;
    engine.submit_group(all[3].clone(), 3)?;
    let got = engine.run()?;
    same_as_naive(&model, &all, &got, &format!("{kv}"));
    Ok(())
}

#[test]
fn a_prompt_in_a_free_slot_is_freed_for_a_sequence_that_needs_its_room() {
    for kv in [KvKind::Growing, KvKind::Paged { page: 1 }] {
        with_a_prompt_in_a_free_slot(kv).unwrap();
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_prompt_that_is_kept_in_a_free_slot_is_found() {
    use xtrain_tensor::faults::{Fault, with};
    for kv in [KvKind::Growing, KvKind::Paged { page: 1 }] {
        let run = || with_a_prompt_in_a_free_slot(kv);
        let error = with(Fault::PromptInFreeSlotKept, run).unwrap_err().to_string();
        assert!(error.contains("full"), "{error}");
    }
}
