//! Heap allocations of a decode step on the CPU, counted by the global allocator of this test program.
//!
//! The values of tensors come from the device's free lists, and the key-value cache is reserved. What a step allocates
//! are the handles of tensors (a shape and a reference count) and short lists of rows. Their number is the same in
//! every step, for greedy and for sampled tokens, and depends on the layers and sequences only.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod counting;

use xtrain::decode::{Engine, EngineOptions, KvKind, Request};
use xtrain::model::{Config, Model};
use xtrain::tensor::{Device, Dtype, Simd};

use counting::{Counted, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// The maximum number of blocks of a step: for each layer, by dtype; for each sequence; and the rest.
const PER_LAYER: [(Dtype, usize); 2] = [(Dtype::F32, 42), (Dtype::BF16, 54)];
const PER_SEQUENCE: usize = 4;
const FIXED: usize = 8;

/// Every block of a step is smaller. The logits of one row have 8,000 bytes.
const LARGEST: usize = 4096;

fn config(n_layers: usize) -> Config {
    Config {
        vocab: 2000,
        dim: 256,
        ffn_dim: 512,
        n_layers,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        max_positions: 256,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        ..Config::default()
    }
}

/// The allocations of each decode step after a warm-up.
fn steps(n_layers: usize, dtype: Dtype, threads: usize, batch: usize, temperature: f32) -> Vec<Counted> {
    let device = Device::cpu_with(threads, Simd::detect());
    let model = Model::init(&config(n_layers), dtype, &device, 3).unwrap().for_inference().unwrap();
    let options =
        EngineOptions { max_batch: batch, kv: KvKind::Paged { page: 64 }, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, options).unwrap();
    for id in 0..batch as u64 {
        engine.submit(Request { id, ..Request::sampled(&[1, 2, 3], 60, temperature, 7) }).unwrap();
    }
    engine.reserve(usize::MAX).unwrap();
    for _ in 0..20 {
        engine.step().unwrap();
    }
    (0..30)
        .map(|_| {
            ALLOCATOR.start();
            engine.step().unwrap();
            ALLOCATOR.stop()
        })
        .collect()
}

/// Checks the steps of one engine with this number of layers. Returns the number of blocks of a step.
fn check(what: &str, all: &[Counted]) -> usize {
    let blocks = all[0].blocks;
    for (n, step) in all.iter().enumerate() {
        assert_eq!(step.blocks, blocks, "{what}: blocks of step {n}: {step:?}");
        assert!(step.largest < LARGEST, "{what}: step {n}: {step:?}");
    }
    blocks
}

#[test]
fn a_decode_step_allocates_handles_but_no_values() {
    for (dtype, per_layer) in PER_LAYER {
        for (threads, batch) in [(1, 1), (1, 8), (2, 1), (2, 8)] {
            for layers in [1, 3] {
                let what = format!("{dtype}, {threads} threads, {batch} sequences, {layers} layers");
                let [greedy, sampled] = [0.0, 1.0]
                    .map(|temperature| check(&what, &steps(layers, dtype, threads, batch, temperature)));
                println!("{what}: {greedy} blocks");
                assert_eq!(greedy, sampled, "{what}: blocks of greedy and of sampled steps");
                let max = FIXED + PER_SEQUENCE * batch + per_layer * layers;
                assert!(greedy <= max, "{what}: {greedy} blocks, expected at most {max}");
            }
        }
    }
}
