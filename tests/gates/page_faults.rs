//! Page faults of training steps with a large vocabulary. The test has the allocator of the system, as users of the
//! libraries do: memory that the free lists do not keep is faulted in again.
use std::process::Command;

use xtrain::model::{Config, Model, OptimConfig, Schedule, Trainer, TrainingExample};
use xtrain::tensor::testing::page_faults;
use xtrain::tensor::{Device, Dtype, Simd};

/// A matrix of the head takes 40 MiB in f32. The C library keeps freed blocks of up to 32 MiB for itself.
const VOCAB: usize = 40_960;
const WIDTH: usize = 256;
const CONTEXT: usize = 64;
/// Steps that may request memory, and counted steps.
const WARM_UP: u64 = 2;
const COUNTED: u64 = 3;

/// The page faults of each step.
fn steps(dtype: Dtype) -> Vec<u64> {
    let cfg = Config {
        vocab: VOCAB,
        dim: WIDTH,
        ffn_dim: 64,
        n_layers: 1,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        max_positions: CONTEXT,
        tie_embeddings: true,
        ..Config::tiny()
    };
    // one thread, whose faults are counted
    let model = Model::init(&cfg, dtype, &Device::cpu_with(1, Simd::detect()), 5).unwrap();
    let mut trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
    let window = |n: u64| {
        let token = |at: u64| ((n * 7919 + at * 104_729) % VOCAB as u64) as u32;
        TrainingExample::window(&(0..=CONTEXT as u64).map(token).collect::<Vec<_>>(), 1.0)
    };
    let step = |n: u64| {
        let before = page_faults();
        trainer.step(vec![window(2 * n), window(2 * n + 1)], 2).unwrap();
        page_faults() - before
    };
    (0..WARM_UP + COUNTED).map(step).collect()
}

/// Set in the process that counts. When another test forks its process, copy-on-write adds page faults.
const ALONE: &str = "XTRAIN_TEST_PAGE_FAULTS";

#[test]
fn a_step_with_a_large_vocabulary_faults_in_no_memory_after_the_second() {
    if std::env::var_os(ALONE).is_none() {
        let name = "page_faults::a_step_with_a_large_vocabulary_faults_in_no_memory_after_the_second";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    for dtype in [Dtype::F32, Dtype::BF16] {
        let all = steps(dtype);
        let (first, later) = (all[0], &all[WARM_UP as usize..]);
        // a matrix of the head in f32 is 10,240 pages of 4 KiB, or 20 pages of 2 MiB; the first step requests several
        assert!(first >= 100, "{dtype:?}: the counter works: {all:?} faults");
        // small allocations: 4 at most were seen, and a matrix that is requested again causes at least 20
        assert!(later.iter().all(|&faults| faults <= 16), "{dtype:?}: faults of each step: {all:?}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn packed_weights_that_are_freed_are_faulted_in_again() {
    use xtrain::tensor::faults::{self, Fault};
    let all = faults::with(Fault::PackedWeightFreed, || steps(Dtype::F32));
    let later = &all[WARM_UP as usize..];
    // two matrices of the head, on pages of any size
    assert!(later.iter().all(|&faults| faults >= 38), "PackedWeightFreed: faults of each step: {all:?}");
}
