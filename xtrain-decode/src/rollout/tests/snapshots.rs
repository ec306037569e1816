//! A snapshot belongs to one engine.
use super::*;

/// Whether the second of two engines releases, and reads, a snapshot of the first one. Each has one.
fn accepts_the_snapshot_of_another() -> [bool; 2] {
    let model = model();
    let mut both = [0, 1].map(|_| {
        let mut engine = Engine::new(&model, options(KvKind::default())).unwrap();
        engine.submit(request(0, &[1, 2, 3], 5)).unwrap();
        engine.step().unwrap();
        let snapshot = engine.snapshot(0).unwrap();
        (engine, snapshot)
    });
    let first = both[0].1;
    let (second, own) = &mut both[1];
    assert!(second.read_snapshot(*own).is_ok());
    let read = second.read_snapshot(first).is_ok();
    [second.release_snapshot(first), read]
}

#[test]
fn the_snapshot_of_another_engine_is_refused() {
    assert_eq!(accepts_the_snapshot_of_another(), [false, false]);
}

#[test]
#[cfg(feature = "faults")]
fn an_engine_that_does_not_compare_is_found() {
    use xtrain_tensor::faults::{self, Fault};
    let accepted = faults::with(Fault::SnapshotEngineNotCompared, accepts_the_snapshot_of_another);
    assert_eq!(accepted, [true, true]);
}
