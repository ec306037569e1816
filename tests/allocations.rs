//! A decode step on the CPU allocates nothing after its warm-up: tensors, their handles, the lists of rows and the
//! results of sampling use the memory of earlier steps. The allocations of all threads are counted.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
use xtrain::decode::{Engine, EngineOptions, KvKind, Request};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::CountedHeap;
use xtrain::tensor::{Device, Dtype, Simd};

#[global_allocator]
static ALLOCATOR: CountedHeap = CountedHeap;

/// Steps before the first counted one, and counted steps. Sequences enter new pages in both.
const WARM_UP: usize = 40;
const COUNTED: usize = 60;

#[derive(Debug, Clone, Copy)]
struct Setting {
    dtype: Dtype,
    threads: usize,
    batch: usize,
    temperature: f32,
}

fn model(setting: Setting) -> Model {
    let cfg = Config {
        vocab: 2000,
        dim: 256,
        ffn_dim: 512,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        max_positions: 256,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        ..Config::default()
    };
    let device = Device::cpu_with(setting.threads, Simd::detect());
    Model::init(&cfg, setting.dtype, &device, 3).unwrap().for_inference().unwrap()
}

/// The number of allocations of each decode step after the warm-up.
fn steps(setting: Setting) -> Vec<usize> {
    let model = model(setting);
    let options = EngineOptions {
        max_batch: setting.batch,
        kv: KvKind::Paged { page: 16 },
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&model, options).unwrap();
    for id in 0..setting.batch as u64 {
        let request = Request::sampled(&[1, 2, 3], WARM_UP + COUNTED + 10, setting.temperature, 7);
        engine.submit(Request { id, ..request }).unwrap();
    }
    engine.reserve(usize::MAX).unwrap();
    for _ in 0..WARM_UP {
        engine.step().unwrap();
    }
    (0..COUNTED).map(|_| CountedHeap::allocations(|| engine.step().unwrap().passes).1).collect()
}

/// Settings with other numbers of threads and sequences, other values and other sampling.
fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for dtype in [Dtype::F32, Dtype::BF16] {
        for (threads, batch) in [(1, 1), (1, 8), (2, 1), (2, 8)] {
            all.extend([0.0, 1.0].map(|temperature| Setting { dtype, threads, batch, temperature }));
        }
    }
    all
}

#[test]
fn a_decode_step_allocates_nothing() {
    for setting in settings() {
        let all = steps(setting);
        // a worker allocates its working memory with its first work item of an operation, in any step
        let max = 8 * (setting.threads - 1);
        assert!(
            all.iter().sum::<usize>() <= max,
            "{setting:?}: expected at most {max} allocations, found {all:?}"
        );
    }
    // with this fault a tensor that is dropped frees its reference count, and the next tensor allocates one
    #[cfg(feature = "faults")]
    {
        use xtrain::tensor::faults::{self, Fault};
        let setting = settings()[0];
        let with_fault = faults::with(Fault::TensorHandleFreed, || steps(setting));
        assert!(
            with_fault.iter().all(|&n| n > 10),
            "TensorHandleFreed: allocations of each step: {with_fault:?}"
        );
    }
}
