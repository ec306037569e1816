//! Tests of requests and options: what is refused, with which message, and the limits that are accepted.
use super::*;
use crate::error::Result;
use crate::rollout::naive::{generate_naive_int8, generate_naive_sinks};

#[test]
fn invalid_requests_and_options_are_refused_by_name() {
    let model = model();
    let mut engine =
        Engine::new(&model, EngineOptions { max_seq_len: Some(20), ..options(KvKind::default()) }).unwrap();
    let hot = SampleOptions { temperature: -1.0, ..SampleOptions::default() };
    let refused = [
        (request(4, &[], 1), "sequence 4: the prompt is empty, expected at least 1 token"),
        (request(4, &[1; 64], 1), "sequence 4: expected a prompt of at most 63 tokens, found 64"),
        (request(4, &[1, 37], 1), "sequence 4: prompt position 1: expected a token id below 37, found 37"),
        (request(4, &[1], 0), "sequence 4: expected at least 1 new token, found 0"),
        (
            request(4, &[1], 20),
            "sequence 4: expected at most 20 positions for prompt and new tokens, found 21",
        ),
        (
            Request { options: hot, ..request(4, &[1], 2) },
            "sequence 4, position 1: temperature: expected 0, or a finite number >= 1e-30, found -1.0",
        ),
    ];
    for (request, want) in refused {
        assert_eq!(engine.submit(request).unwrap_err().to_string(), want);
    }
    assert!(engine.submit_group(request(0, &[1], 1), 0).is_err());
    assert!(engine.submit_group(request(u64::MAX, &[1], 1), 2).is_err());
    assert!(engine.is_idle() && engine.run().unwrap().is_empty());
    engine.submit_group(request(u64::MAX - 1, &[1], 1), 2).unwrap();

    let with = |change: fn(&mut EngineOptions)| {
        let mut o = options(KvKind::Contiguous);
        change(&mut o);
        Engine::new(&model, o).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(with(|o| o.max_batch = 0), "max_batch: expected at least 1, found 0");
    assert_eq!(with(|o| o.prefill_chunk = Some(0)), "prefill_chunk: expected at least 1, found 0");
    assert_eq!(with(|o| o.kv = KvKind::Paged { page: 0 }), "page: expected at least 1, found 0");
    assert_eq!(
        with(|o| o.kv = KvKind::Paged { page: 1 << 60 }),
        "page: expected at most 1048577, found 1152921504606846976"
    );
    assert_eq!(
        with(|o| o.max_seq_len = Some(65)),
        "max_seq_len: expected at most 64, the maximum number of positions of the model, found 65"
    );
    assert!(with(|o| o.kv_capacity = Some(63)).starts_with("kv_capacity"));
}

#[test]
fn the_oracles_refuse_what_the_engine_refuses() {
    let model = model();
    for wrong in [request(4, &[], 1), request(4, &[1; 64], 1), request(4, &[1, 37], 1), request(4, &[1], 0)] {
        let refusal =
            |kv| Engine::new(&model, options(kv)).unwrap().submit(wrong.clone()).unwrap_err().to_string();
        let oracle: [fn(&Model, &Request) -> Result<Completion>; 3] =
            [generate_naive, generate_naive_repeat_kv, generate_naive_int8];
        for generate in oracle {
            assert_eq!(generate(&model, &wrong).unwrap_err().to_string(), refusal(KvKind::Growing));
        }
        if wrong.prompt.len() < 64 {
            let found = generate_naive_sinks(&model, &wrong, [1, 4]).unwrap_err().to_string();
            assert_eq!(found, refusal(KvKind::Sinks { sinks: 1, window: 4 }));
        }
    }
}

#[test]
fn the_oracle_of_sinks_accepts_windows_of_any_size_but_0() {
    let (model, request) = (model(), request(4, &[1, 2, 3], 4));
    for sinks in [0, 1] {
        let error = generate_naive_sinks(&model, &request, [sinks, 0]).unwrap_err().to_string();
        assert!(error.contains("a window of at least 1"), "{error}");
    }
    let whole = generate_naive_sinks(&model, &request, [0, usize::MAX]).unwrap();
    assert_eq!(whole.tokens, generate_naive(&model, &request).unwrap().tokens);
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let EngineOptions { kv, max_batch, steps_per_sync, ageing, watermark, prefill_chunk, .. } =
        EngineOptions::default();
    assert_eq!(kv, KvKind::Paged { page: 64 });
    assert_eq!((max_batch, steps_per_sync, ageing, watermark, prefill_chunk), (32, 8, 32, None, None));
}

#[test]
fn options_at_their_limits_are_accepted() {
    let contiguous = options(KvKind::Contiguous);
    for options in [
        EngineOptions { max_batch: 1 << 20, ..contiguous },
        EngineOptions { kv_capacity: Some(64), ..contiguous },
        EngineOptions { max_seq_len: Some(64), ..contiguous },
    ] {
        options.check(&config()).unwrap();
    }
    assert!(EngineOptions { max_batch: (1 << 20) + 1, ..contiguous }.check(&config()).is_err());
    let room = EngineOptions { kv_capacity: Some(130), ..contiguous }.room(&config());
    assert_eq!((room.sequences, room.positions), (2, 64), "whole sequences fit a contiguous cache");
}

#[test]
fn steps_per_sync_are_at_most_the_positions_of_a_sequence() {
    let max_steps = |steps_per_sync, max_seq_len| {
        EngineOptions { max_seq_len, steps_per_sync, ..options(KvKind::default()) }.max_steps(&config())
    };
    assert_eq!(
        [max_steps(8, None), max_steps(1_000_000, None), max_steps(usize::MAX, Some(20))],
        [8, 64, 20]
    );
}
