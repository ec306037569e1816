//! A rollout over a sinks cache takes the same memory whatever its length, and as much as its estimate says.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
use xtrain::decode::{Engine, EngineOptions, KvKind, Request, Room};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::{CountedHeap, alone, times};
use xtrain::tensor::{Device, Dtype, Simd};

#[global_allocator]
static ALLOCATOR: CountedHeap = CountedHeap;

/// `n_layers` layers with `n_kv_heads` heads of `head_dim` values.
fn model([n_layers, n_kv_heads, head_dim]: [usize; 3], max_positions: usize) -> Model {
    let cfg = Config {
        vocab: 16,
        dim: 8,
        ffn_dim: 8,
        n_layers,
        n_heads: n_kv_heads,
        n_kv_heads,
        head_dim,
        max_positions,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    };
    Model::init(&cfg, Dtype::F32, &Device::cpu_with(1, Simd::detect()), 3).unwrap().for_inference().unwrap()
}

/// The largest number of bytes of an engine that samples `n` of at most `max_new` tokens, without the tokens and their
/// log-probabilities: 12 bytes each, which are reserved at the start.
fn peak(model: &Model, kv: KvKind, n: usize, max_new: usize) -> usize {
    let run = || {
        let options = EngineOptions { kv, max_batch: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(model, options).unwrap();
        engine.submit(Request::sampled(&[1, 2, 3], max_new, 1.0, 7)).unwrap();
        (0..n).for_each(|_| assert_eq!(engine.step().unwrap().events.len(), 1));
    };
    CountedHeap::measure(run).1 - 12 * max_new
}

#[test]
fn a_sinks_cache_takes_constant_memory() {
    if !alone("a_sinks_cache_takes_constant_memory") {
        return;
    }
    let (model, kv) = (model([2, 1, 8], 64), KvKind::Sinks { sinks: 4, window: 60 });
    let n = times(30_000, 1_000_000) as usize;
    // it does not end: a completion is a copy of its tokens
    let max_new = n + 1;
    peak(&model, kv, n / 10, max_new);
    let (early, late) = (peak(&model, kv, n / 10, max_new), peak(&model, kv, n, max_new));
    println!("{kv}: {early} bytes after {} tokens, {late} bytes after {n} tokens", n / 10);
    assert!(late * 100 <= early * 101, "expected at most {early} bytes and 1 %, found {late}");
    #[cfg(feature = "faults")]
    {
        use xtrain::tensor::faults::{self, Fault};
        let grown = faults::with(Fault::SinksStagedRowsLeaked, || peak(&model, kv, 3000, max_new));
        assert!(grown > 2 * early, "SinksStagedRowsLeaked: {grown} bytes");
    }
}

#[test]
fn a_sinks_cache_takes_the_memory_of_its_estimate() {
    if !alone("a_sinks_cache_takes_the_memory_of_its_estimate") {
        return;
    }
    for n_layers in [4, 8] {
        let model = model([n_layers, 4, 64], 1024);
        let kv = KvKind::Sinks { sinks: 4, window: 1020 };
        // the first engine of its device: later ones use the memory of earlier tensors
        let found = peak(&model, kv, 1100, 1101) as u64;
        let want = kv.allocated_bytes(&model, Room { sequences: 1, positions: 1104, slots: None });
        println!("{kv}, {n_layers} layers: estimate {want}, peak {found} bytes");
        assert!(found.abs_diff(want) * 20 <= want, "expected {want} bytes to 5 %, found {found}");
    }
}
