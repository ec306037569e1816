//! Rows that outlive their sequence: what their release and a loaded prefix change for the sequences that wait.
use super::*;

fn options() -> EngineOptions {
    EngineOptions {
        kv: KvKind::Paged { page: 4 },
        max_seq_len: Some(32),
        kv_capacity: Some(64),
        watermark: Some(0),
        max_batch: 4,
        prefix_caching: PrefixCaching::On,
        ..EngineOptions::default()
    }
}

fn prompt(first: u32, len: u32) -> Vec<u32> {
    (0..len).map(|t| (first + 7 * t) % 37).collect()
}

#[test]
fn a_released_snapshot_lets_a_waiting_sequence_run_at_once() {
    let model = model();
    let mut engine =
        Engine::new(&model, EngineOptions { prefix_caching: PrefixCaching::Off, ..options() }).unwrap();
    let held = engine.submit(request(0, &prompt(0, 24), 8)).unwrap();
    engine.step().unwrap();
    let snapshot = engine.snapshot(held).unwrap();
    assert!(engine.stop(held));
    engine.submit(request(1, &prompt(1, 24), 8)).unwrap();
    engine.step().unwrap();
    engine.submit(request(2, &prompt(2, 24), 8)).unwrap();
    for _ in 0..2 {
        engine.step().unwrap();
        assert_eq!((engine.live(), engine.waiting()), (1, 1), "the pages of the snapshot are missing");
    }
    assert!(engine.release_snapshot(snapshot) && !engine.release_snapshot(snapshot));
    engine.step().unwrap();
    assert_eq!((engine.live(), engine.waiting()), (2, 0));
}

#[test]
fn a_prefix_that_is_loaded_between_two_sequences_of_a_group_replaces_their_prompt() {
    let model = model();
    let prefix = {
        let mut engine = Engine::new(&model, options()).unwrap();
        let sequence = engine.submit(request(0, &prompt(3, 16), 2)).unwrap();
        engine.step().unwrap();
        let snapshot = engine.snapshot(sequence).unwrap();
        engine.read_snapshot(snapshot).unwrap()
    };
    let mut engine = Engine::new(&model, EngineOptions { max_batch: 1, ..options() }).unwrap();
    let requests: Vec<Request> = (0..2).map(|id| request(id, &prompt(5, 10), 3)).collect();
    engine.submit_group(requests[0].clone(), 2).unwrap();
    while engine.live() + engine.waiting() == 2 {
        engine.step().unwrap();
    }
    assert_eq!((engine.live(), engine.waiting()), (0, 1));
    assert_eq!(engine.insert_prefix(&prefix).unwrap(), 16);
    let got = engine.run().unwrap();
    same_as_naive(&model, &requests, &got, "a group with a prefix between its sequences");
    assert_eq!(
        engine.counters().prefix_cache_hits,
        8,
        "the second sequence finds the prompt of the first one"
    );
}
