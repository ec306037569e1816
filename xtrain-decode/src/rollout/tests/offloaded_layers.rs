//! Engines with offloaded layers: what is refused, and errors of the disk.
use std::sync::Arc;

use super::*;
use crate::cache::{LayerOffload, Room};
use crate::storage::disk::Disk;

/// An engine for sequences of 64 positions whose cache may have `resident` bytes in memory and `limit` bytes outside.
fn engine<'m>(
    model: &'m Model,
    kv: KvKind,
    [resident, limit]: [usize; 2],
    disk: &Disk,
) -> crate::Result<Engine<'m>> {
    let offload = LayerOffload::in_storage(Arc::new(disk.clone()), resident, limit);
    let options = EngineOptions { max_batch: 1, max_seq_len: Some(64), ..options(kv) };
    Engine::with_memory(model, options, KvMemory::offloading(offload))
}

/// A model of four layers.
fn deep() -> Model {
    let cfg = Config { n_layers: 4, windows: Vec::new(), ..config() };
    Model::init(&cfg, Dtype::F32, &Device::cpu(), 3).unwrap()
}

/// Bytes of a layer with 64 positions.
fn layer(model: &Model) -> usize {
    let cfg = model.config();
    64 * 2 * cfg.n_kv_heads * cfg.head_dim * 4
}

#[test]
fn what_cannot_be_offloaded_is_refused_with_the_bytes_that_it_needs() {
    let (model, disk) = (deep(), Disk::default());
    let layer = layer(&model);
    // two checksums of eight bytes for each layer
    let least = 2 * layer + 4 * 16;
    let refused = |kv, sizes| match engine(&model, kv, sizes, &disk) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{kv}: {sizes:?} is accepted"),
    };
    for kv in [KvKind::Off, KvKind::Growing, KvKind::Sinks { sinks: 2, window: 6 }] {
        let want = format!("kv: expected contiguous, paged or int8, to offload layers, found {kv}");
        assert_eq!(refused(kv, [least, 1 << 20]), want);
    }
    for kv in [KvKind::Contiguous, KvKind::Paged { page: 64 }] {
        let want = format!(
            "kv_resident: expected room for two layers, found {} bytes; with 64 positions they take {least} bytes",
            least - 1
        );
        assert_eq!(refused(kv, [least - 1, 1 << 20]), want);
        let limit = 4 * layer - 1;
        let want = format!(
            "offload_limit: expected room for the layers that are offloaded, found {limit} bytes; 4 layers of 64 \
             positions take {} bytes",
            4 * layer
        );
        assert_eq!(refused(kv, [least, limit]), want);
        assert!(engine(&model, kv, [least, limit + 1], &disk).is_ok());
    }
}

#[test]
fn layers_stay_in_memory_as_far_as_they_fit() {
    let (model, disk) = (deep(), Disk::default());
    let layer = layer(&model);
    // one more layer stays, so that three are offloaded; or all stay
    for (resident, want) in [(2 * layer + 64, 2), (3 * layer + 64, 3), (4 * layer - 1, 3), (4 * layer, 4)] {
        let engine = engine(&model, KvKind::Contiguous, [resident, 1 << 20], &disk).unwrap();
        let cache = engine.cache().unwrap();
        assert_eq!(cache.bytes(), want * layer, "{resident} of {} bytes", 4 * layer);
    }
}

#[test]
fn an_engine_continues_when_the_disk_works_again() {
    let model = deep();
    for kv in [KvKind::Contiguous, KvKind::Paged { page: 8 }, KvKind::Int8 { page: 8 }] {
        let run = |fails_at: Option<usize>| {
            let disk = Disk::default();
            let room = Room { sequences: 1, positions: 64, slots: None };
            let resident = LayerOffload::least_resident(kv, &model, room);
            let mut engine = engine(&model, kv, [resident, 1 << 20], &disk).unwrap();
            engine.submit(request(0, &[1, 2, 3], 12)).unwrap();
            for step in 0..12 {
                if fails_at == Some(step) {
                    disk.fail(Some(std::io::ErrorKind::StorageFull));
                    let error = engine.step().unwrap_err();
                    assert!(error.to_string().contains("in the offload file"), "{error}");
                    disk.fail(None);
                }
                engine.step().unwrap();
            }
            engine.take_finished().remove(0)
        };
        let want = run(None);
        for step in [0, 1, 7] {
            let got = run(Some(step));
            assert_eq!((&got.tokens, &got.logprobs), (&want.tokens, &want.logprobs), "{kv}, step {step}");
        }
    }
}
