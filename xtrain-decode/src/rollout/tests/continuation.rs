//! Tests of continued sequences.
use super::*;
use crate::rollout::options::Continuation;

fn continuing(kv: KvKind) -> EngineOptions {
    EngineOptions { continuation: Continuation::On, ..options(kv) }
}

/// The request that a continuation of `done` equals.
fn longer(first: &Request, done: &Completion, tokens: &[u32], max_new: usize) -> Request {
    Request { prompt: [&first.prompt[..], &done.tokens, tokens].concat(), max_new, ..first.clone() }
}

#[test]
fn a_continuation_runs_only_its_new_rows_and_equals_the_longer_request() {
    let model = model();
    for kv in [&KINDS[..], &[KvKind::Off]].concat() {
        for prefill_chunk in [None, Some(2)] {
            // as many slots as sequences: the one that finishes first keeps its rows while the other runs
            let options = EngineOptions { prefill_chunk, max_batch: 2, ..continuing(kv) };
            let mut engine = Engine::new(&model, options).unwrap();
            let requests = [request(1, &[1, 2, 3, 4, 5], 9), request(2, &[6], 4)];
            for request in &requests {
                engine.submit(request.clone()).unwrap();
            }
            let mut done = engine.run().unwrap();
            let mut longer_requests = requests.to_vec();
            for turn in 0..3 {
                let before = engine.counters();
                let next =
                    |(request, done): (&Request, &Completion)| longer(request, done, &[7, 8], 3 + turn);
                longer_requests = longer_requests.iter().zip(&done).map(next).collect();
                for completion in &done {
                    engine.extend(completion.index, &[7, 8], 3 + turn).unwrap();
                }
                done = engine.run().unwrap();
                same_as_naive(&model, &longer_requests, &done, &format!("{kv}, turn {turn}"));
                let after = engine.counters();
                let total: usize = longer_requests.iter().map(|request| request.prompt.len()).sum();
                let prefilled = after.prefill_rows - before.prefill_rows;
                let kept = after.continued_rows - before.continued_rows;
                if kv == KvKind::Off {
                    assert_eq!(kept, 0);
                } else {
                    // two appended tokens and the last token of the turn before
                    assert_eq!((prefilled, kept), (2 * 3, total as u64 - 2 * 3), "{kv}, turn {turn}");
                }
            }
        }
    }
}

#[test]
fn a_continuation_without_rows_runs_after_the_sequences_that_were_submitted_before_it() {
    let model = model();
    let options = EngineOptions { max_batch: 1, ..continuing(KvKind::Paged { page: 5 }) };
    let mut engine = Engine::new(&model, options).unwrap();
    for id in 1..3 {
        engine.submit(request(id, &[1, 2, id as u32], 3)).unwrap();
    }
    let mut order = Vec::new();
    while engine.live() + engine.waiting() > 0 {
        engine.step().unwrap();
        for done in engine.take_finished() {
            order.push((done.id, done.prompt_len));
            if order.len() == 1 {
                engine.submit(request(3, &[1, 2, 3], 3)).unwrap();
                engine.extend(done.index, &[7], 2).unwrap();
            }
        }
    }
    assert_eq!(order.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3, 1], "{order:?}");
    assert_eq!(engine.counters().continued_rows, 0, "its rows were not kept");
}

#[test]
fn held_rows_give_way_to_other_sequences() {
    let model = model();
    // Two sequences hold all slots, or all pages.
    let paged = KvKind::Paged { page: 5 };
    for (kv, max_batch, kv_capacity) in
        [(paged, 2, None), (paged, 4, Some(30)), (KvKind::Growing, 2, None), (KvKind::Contiguous, 2, None)]
    {
        let o = EngineOptions { max_batch, max_seq_len: Some(30), kv_capacity, ..continuing(kv) };
        let mut engine = Engine::new(&model, o).unwrap();
        let first = [request(1, &[1, 2, 3], 9), request(2, &[4, 5], 9)];
        for request in &first {
            engine.submit(request.clone()).unwrap();
        }
        let held = engine.run().unwrap();
        let others = [request(3, &[9; 20], 5), request(4, &[8; 12], 6), request(5, &[7; 9], 7)];
        for request in &others {
            engine.submit(request.clone()).unwrap();
        }
        same_as_naive(&model, &others, &engine.run().unwrap(), "others");
        for completion in &held {
            engine.extend(completion.index, &[1], 5).unwrap();
        }
        let longer: Vec<Request> =
            first.iter().zip(&held).map(|(r, done)| longer(r, done, &[1], 5)).collect();
        same_as_naive(&model, &longer, &engine.run().unwrap(), "continued");
        engine.release_finished();
        if let KvKind::Paged { .. } = kv {
            assert_eq!(engine.cache().unwrap().usage().in_use, 0);
        }
    }
}

#[test]
fn what_cannot_be_continued_is_an_error() {
    let model = model();
    let refused = |engine: &mut Engine<'_>, index, tokens: &[u32], max_new, want: &str| {
        let error = engine.extend(index, tokens, max_new).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    let absent = "index: expected a finished sequence";
    let mut engine = Engine::new(&model, options(KvKind::default())).unwrap();
    engine.submit(request(1, &[1, 2], 3)).unwrap();
    engine.run().unwrap();
    refused(&mut engine, 0, &[1], 3, absent);
    let mut engine = Engine::new(&model, continuing(KvKind::default())).unwrap();
    engine.submit(request(1, &[1, 2], 3)).unwrap();
    refused(&mut engine, 0, &[1], 3, absent);
    engine.run().unwrap();
    refused(&mut engine, 7, &[1], 3, absent);
    refused(&mut engine, 0, &[37], 3, "prompt position 5: expected a token id below 37, found 37");
    refused(&mut engine, 0, &[1; 60], 3, "expected a prompt of at most 63 tokens, found 65");
    refused(&mut engine, 0, &[1], 0, "at least 1 new token");
    assert_eq!(engine.extend(0, &[1], 3).unwrap(), 1, "a refused continuation can be repeated");
    refused(&mut engine, 0, &[1], 3, absent);
    assert_eq!(engine.run().unwrap()[0].index, 1);
    engine.release_finished();
    refused(&mut engine, 1, &[1], 3, absent);
}

#[test]
fn each_of_several_equal_completions_keeps_its_own_rows() {
    let model = model();
    for kv in KINDS {
        let mut engine = Engine::new(&model, continuing(kv)).unwrap();
        let greedy = Request { options: SampleOptions::greedy(), ..request(0, &[1, 2, 3], 5) };
        engine.submit_group(greedy.clone(), 3).unwrap();
        let done = engine.run().unwrap();
        let mut longer_requests = Vec::new();
        for completion in &done {
            engine.extend(completion.index, &[4], 5).unwrap();
            let longer = longer(&greedy, completion, &[4], 5);
            longer_requests.push(Request { id: completion.id, ..longer });
        }
        same_as_naive(&model, &longer_requests, &engine.run().unwrap(), &kv.to_string());
        // the last token of a completion has no row
        assert_eq!(engine.counters().continued_rows, 3 * (3 + 5 - 1), "{kv}");
    }
}

#[test]
fn held_rows_give_way_to_a_sequence_that_runs_alone() {
    let model = model();
    let paged = EngineOptions { kv_capacity: Some(30), ..continuing(KvKind::Paged { page: 5 }) };
    let mut engine = Engine::new(&model, EngineOptions { max_seq_len: Some(30), ..paged }).unwrap();
    engine.submit(request(1, &[1, 2, 3], 9)).unwrap();
    engine.run().unwrap();
    let long = request(2, &[7; 22], 5);
    engine.submit(long.clone()).unwrap();
    same_as_naive(&model, &[long], &engine.run().unwrap(), "the long one");
}
