//! A rollout over a sinks cache takes the same memory whatever its length, and as much as its estimate says. A cache that
//! offloads layers takes the memory that it may have.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
use xtrain::decode::{Completion, Engine, EngineOptions, KvKind, KvMemory, LayerOffload, Request, Room};
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
/// log-probabilities: 12 bytes each, which are reserved at the start. The RoPE table of the model, which is computed when
/// it is first used, does not count either.
fn peak(model: &Model, kv: KvKind, n: usize, max_new: usize) -> usize {
    let run = || {
        let options = EngineOptions { kv, max_batch: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(model, options).unwrap();
        engine.submit(Request::sampled(&[1, 2, 3], max_new, 1.0, 7)).unwrap();
        (0..n).for_each(|_| assert_eq!(engine.step().unwrap().events.len(), 1));
    };
    CountedHeap::measure(run).1 - 12 * max_new - rope_table(model, n)
}

/// Bytes of the cosines and sines of the first `n` positions, which are computed 256 positions at a time.
fn rope_table(model: &Model, n: usize) -> usize {
    let cfg = model.config();
    n.next_multiple_of(256).min(cfg.max_positions) * cfg.head_dim * size_of::<f32>()
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
    for n_layers in [1, 2, 4, 8] {
        let model = model([n_layers, 4, 64], 1024);
        let kv = KvKind::Sinks { sinks: 4, window: 1020 };
        // the first engine of its device: later ones use the memory of earlier tensors
        let found = peak(&model, kv, 1100, 1101) as u64;
        let want = kv.allocated_bytes(&model, Room { sequences: 1, positions: 1104, slots: None });
        println!("{kv}, {n_layers} layers: estimate {want}, peak {found} bytes");
        assert!(found.abs_diff(want) * 20 <= want, "expected {want} bytes to 5 %, found {found}");
    }
}

/// A million parameters. The keys and values of a position take 1 KiB, those of a layer 128 bytes.
fn long_model(max_positions: usize) -> Model {
    let cfg = Config {
        vocab: 512,
        dim: 128,
        ffn_dim: 288,
        n_layers: 8,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 16,
        max_positions,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        tie_embeddings: true,
        ..Config::default()
    };
    let device = Device::cpu_with(2, Simd::detect());
    Model::init(&cfg, Dtype::F32, &device, 3).unwrap().for_inference().unwrap()
}

/// A completion of a few tokens after a prompt of `n`, the bytes of the cache in memory, and the largest number of bytes
/// of the engine.
fn after(n: usize, model: &Model, memory: KvMemory) -> (Completion, usize, usize) {
    let run = || {
        let options = EngineOptions { prefill_chunk: Some(256), max_batch: 1, ..EngineOptions::default() };
        let mut engine = Engine::with_memory(model, options, memory).unwrap();
        let prompt: Vec<u32> = (0..n as u32).map(|at| at.wrapping_mul(2_654_435_761) >> 23).collect();
        engine.submit(Request::sampled(&prompt, 4, 1.0, 7)).unwrap();
        (engine.run().unwrap().remove(0), engine.cache().unwrap().bytes())
    };
    let ((completion, bytes), peak) = CountedHeap::measure(run);
    (completion, bytes, peak)
}

#[test]
fn a_context_larger_than_the_memory_of_its_cache_has_the_bits_of_one_that_fits() {
    if !alone("a_context_larger_than_the_memory_of_its_cache_has_the_bits_of_one_that_fits") {
        return;
    }
    // at full length, the cache takes 134 MB and may have 64 MB
    let (max_positions, n, may_have) = match times(0, 1) {
        0 => (4096, 4000, 2_000_000),
        _ => (131_072, 130_000, 64_000_000),
    };
    let offload = LayerOffload::in_directory(&std::env::temp_dir(), may_have, 1 << 30).unwrap();
    let models = [long_model(max_positions), long_model(max_positions)];
    let (got, in_memory, peak) = after(n, &models[0], KvMemory::offloading(offload));
    let (want, all, fitting) = after(n, &models[1], KvMemory::default());
    println!(
        "position {n} of {max_positions}: {in_memory} of {all} bytes of the cache in memory; the engines take {peak} \
         and {fitting} bytes"
    );
    assert_eq!(got.tokens, want.tokens);
    let bits = |c: &Completion| c.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&got), bits(&want));
    assert!(all > 2 * may_have && in_memory <= may_have, "{in_memory} of {all} bytes");
    // keys or values of 64 blocks of 64 slots, which are copied to be written
    let copied = 64 * 64 * size_of::<[f32; 16]>();
    let [besides, of_fitting] = [peak - in_memory, fitting - all];
    assert!(
        besides <= of_fitting + copied,
        "{besides} bytes besides the cache, {of_fitting} with one that fits"
    );
    assert!(max_positions < 131_072 || peak <= may_have, "{peak} bytes");
}

#[test]
fn a_cache_that_offloads_layers_takes_the_memory_of_its_estimate() {
    if !alone("a_cache_that_offloads_layers_takes_the_memory_of_its_estimate") {
        return;
    }
    for (kv, layers) in [(KvKind::default(), 2), (KvKind::Contiguous, 3), (KvKind::Int8 { page: 64 }, 4)] {
        let positions = 8192;
        let model = model([6, 4, 64], positions);
        let per_layer = kv.allocated_bytes(&model, Room { sequences: 1, positions, slots: None }) / 6;
        let resident = (per_layer * layers + per_layer / 2) as usize;
        let memory = KvMemory::offloading(
            LayerOffload::in_directory(&std::env::temp_dir(), resident, 1 << 30).unwrap(),
        );
        let options = EngineOptions { kv, max_batch: 1, ..EngineOptions::default() };
        let want = memory.allocated_bytes(kv, &model, options.room(model.config()));
        let run = || {
            let mut engine = Engine::with_memory(&model, options, memory).unwrap();
            engine.submit(Request::sampled(&[1, 2, 3], 200, 1.0, 7)).unwrap();
            engine.run().unwrap();
        };
        let found = (CountedHeap::measure(run).1 - rope_table(&model, 203)) as u64;
        println!("{kv}, {layers} of 6 layers in memory: estimate {want}, peak {found} bytes");
        assert!((want..=want + want / 100).contains(&found), "expected {want} bytes and 1 %, found {found}");
        assert!(want <= resident as u64, "{want} of {resident} bytes");
    }
}
