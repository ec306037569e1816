//! Preemption by offload: the same completions, fewer rows, and no harm from a store that fails.
use std::io::ErrorKind;

use super::*;
use crate::offload::OffloadStore;
use crate::rollout::completion::Counters;
use crate::rollout::options::Preemption;
use crate::storage::disk::Disk;

/// Four sequences of 12 + 20 tokens in a cache with room for two of them.
fn requests() -> Vec<Request> {
    (0..4).map(|id| request(id, &(0..12).map(|t| (5 * t + id as u32) % 37).collect::<Vec<_>>(), 20)).collect()
}

/// An engine with the requests.
fn engine(model: &Model, preemption: Preemption) -> Engine<'_> {
    let options = EngineOptions {
        kv: KvKind::Paged { page: 4 },
        kv_capacity: Some(64),
        watermark: Some(0),
        max_batch: 4,
        preemption,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(model, options).unwrap();
    for request in requests() {
        engine.submit(request).unwrap();
    }
    engine
}

/// Runs the requests. `before` is called before each step with its number.
fn run(
    preemption: Preemption,
    store: OffloadStore,
    before: &mut dyn FnMut(usize),
) -> (Counters, Option<ErrorKind>) {
    let model = model();
    let want: Vec<Completion> = requests().iter().map(|r| generate_naive(&model, r).unwrap()).collect();
    let mut engine = engine(&model, preemption);
    engine.offload_to(store).unwrap();
    for step in 0.. {
        before(step);
        if engine.is_idle() {
            break;
        }
        engine.step().unwrap();
    }
    let mut got = engine.take_finished();
    got.sort_by_key(|completion| completion.index);
    for (got, want) in got.iter().zip(want) {
        assert_eq!(*got, Completion { index: got.index, ..want });
    }
    assert_eq!(engine.cache().unwrap().usage().in_use, 0);
    assert_eq!(engine.offload_store().used(), 0);
    (engine.counters(), engine.offload_store().error().map(std::io::Error::kind))
}

#[test]
fn offloaded_rows_do_not_run_again() {
    let (recomputed, _) = run(Preemption::Recompute, OffloadStore::default(), &mut |_| ());
    assert!(recomputed.preemptions > 0 && recomputed.layer_rows > 4 * 31);
    assert_eq!((recomputed.offloaded_rows, recomputed.restored_rows), (0, 0));
    let disk = Disk::default().store();
    for store in [OffloadStore::default(), OffloadStore::in_memory(1 << 20), disk] {
        let (offloaded, error) = run(Preemption::Offload, store, &mut |_| ());
        assert_eq!((offloaded.preemptions, error), (recomputed.preemptions, None));
        assert_eq!(offloaded.layer_rows, 4 * 31, "every row runs once");
        assert_eq!(offloaded.offloaded_rows, offloaded.restored_rows);
        assert_eq!(offloaded.restored_rows, recomputed.layer_rows - 4 * 31);
    }
    // one operation per byte: these rows are cheaper to move
    let (auto, _) = run(Preemption::Auto, OffloadStore::default(), &mut |_| ());
    assert!(auto.restored_rows == 0 || auto.layer_rows == 4 * 31, "{auto:?}");
}

#[test]
fn rows_that_the_cache_holds_anyway_are_not_counted_as_restored() {
    let model = model();
    let mut engine = engine(&model, Preemption::Offload);
    engine.step().unwrap();
    let snapshot = engine.snapshot(3).unwrap();
    let got = engine.run().unwrap();
    same_as_naive(&model, &requests(), &got, "with a snapshot");
    let Counters { offloaded_rows, restored_rows, snapshot_rows, .. } = engine.counters();
    assert!(snapshot_rows > 0, "{:?}", engine.counters());
    assert_eq!(restored_rows + snapshot_rows, offloaded_rows, "{:?}", engine.counters());
    assert!(engine.release_snapshot(snapshot));
}

#[test]
fn what_the_store_has_no_room_for_is_computed_again() {
    let bytes_of_a_row = 2 * 2 * 2 * 6 * 4;
    let (none, _) = run(Preemption::Offload, OffloadStore::in_memory(5 * bytes_of_a_row), &mut |_| ());
    assert_eq!(none.offloaded_rows, 0);
    let (some, _) = run(Preemption::Offload, OffloadStore::in_memory(20 * bytes_of_a_row), &mut |_| ());
    assert!(some.restored_rows > 0 && some.layer_rows > 4 * 31, "{some:?}");
}

#[test]
fn a_disk_that_fails_in_any_step_changes_no_token() {
    let mut errors = 0;
    for failing in 0..40 {
        for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
            let disk = Disk::default();
            let store = disk.store();
            let (counters, error) = run(Preemption::Offload, store, &mut |step| {
                disk.fail(Some(kind).filter(|_| step >= failing));
            });
            assert!(error.is_none() || error == Some(kind));
            assert!(error.is_some() || counters.layer_rows == 4 * 31);
            errors += usize::from(error.is_some());
        }
    }
    assert!(errors > 4, "{errors}");
}

#[test]
fn a_store_is_not_replaced_while_it_holds_rows() {
    let model = model();
    let mut engine = engine(&model, Preemption::Offload);
    while engine.offload_store().used() == 0 {
        engine.step().unwrap();
    }
    let refused = engine.offload_to(OffloadStore::default()).unwrap_err().to_string();
    assert!(refused.starts_with("offload_to: expected before a sequence is preempted, found "), "{refused}");
    // a waiting sequence that is stopped leaves nothing in the store
    for index in 0..4 {
        engine.stop(index);
    }
    assert_eq!((engine.offload_store().used(), engine.cache().unwrap().usage().in_use), (0, 0));
}
