//! The log-probabilities of a run are the sampler's, and its files depend on its configuration only.
use std::collections::BTreeSet;

use xtrain::decode::{EngineOptions, KvKind, PrefixCaching};
use xtrain::tensor::testing::times;

use super::{REUSED_BATCH, Scratch, Setup, assert_equal, config, difference, outcome, run};

/// The test command combines each temperature with each filter, and alternates data types and engines. The longer suite
/// runs every combination, with larger batches.
#[test]
fn every_log_probability_of_every_step_has_the_bits_of_the_sampler() {
    let chunked = EngineOptions { prefill_chunk: Some(3), ..EngineOptions::default() };
    let preempted = EngineOptions {
        kv_capacity: Some(64),
        kv: KvKind::Paged { page: 4 },
        watermark: Some(0),
        ..EngineOptions::default()
    };
    let cached =
        EngineOptions { prefix_caching: PrefixCaching::On, kv: KvKind::Paged { page: 4 }, ..chunked };
    let engines = [EngineOptions::default(), chunked, preempted, cached];
    let filters = ["grpo.top_k=0", "grpo.top_k=5", "grpo.top_p=0.8", "grpo.min_p=0.1"];
    let (combinations, prompts, generations) = (times(1, 8) as usize, times(4, 16), times(4, 16));
    let steps = times(4, 7);
    let sizes = [
        ("steps", steps),
        ("prompts_per_step", prompts),
        ("num_generations", generations),
        ("eval_every", 0),
    ];
    let sizes = sizes.map(|(key, size)| format!("grpo.{key}={size}"));
    let (mut runs, mut tokens) = (0, 0.0);
    for (i, temperature) in ["0.7", "1", "1.3"].iter().enumerate() {
        for (j, filter) in filters.iter().enumerate() {
            for n in 0..combinations {
                let dtype = ["f32", "bf16"][(i + j + n) % 2];
                let keys =
                    [&format!("grpo.temperature={temperature}"), *filter, &format!("train.dtype={dtype}")];
                let engine = engines[(j + n / 2) % 4];
                let setup = Setup { engine, ..Setup::threads(2) };
                let config = config(&[&sizes.each_ref().map(String::as_str), &keys[..]].concat());
                let (_, compared) = outcome(&format!("bits-{i}-{j}"), &config, &setup);
                assert_eq!((compared.steps, compared.difference), (steps, 0.0), "{keys:?}, {engine:?}");
                tokens += compared.tokens;
                runs += 1;
            }
        }
    }
    println!("grpo: {tokens} log-probabilities of {runs} runs compared, 0 differ");
    assert!(tokens > times(4000, 1_000_000) as f64, "{tokens}");
}

#[test]
fn the_files_of_a_run_do_not_depend_on_threads_micro_batches_engines_or_interruptions() {
    let keys = REUSED_BATCH;
    let (want, compared) = outcome("base", &config(&keys), &Setup::threads(1));
    assert!(compared.tokens > 0.0);
    for threads in [2, 3] {
        let (got, _) = outcome("threads", &config(&keys), &Setup::threads(threads));
        assert_equal(&format!("{threads} threads"), &want, &got);
    }
    for micro_batch in [1, 3, 100] {
        let key = format!("grpo.micro_batch={micro_batch}");
        let (got, _) = outcome("micro", &config(&[&keys[..], &[key.as_str()]].concat()), &Setup::threads(2));
        assert_equal(&format!("micro-batches of {micro_batch}"), &want, &got);
    }
    let checkpointed = config(&[&keys[..], &["train.gradient_checkpointing=true"]].concat());
    let (got, _) = outcome("checkpointed", &checkpointed, &Setup::threads(2));
    assert_equal("gradient checkpointing", &want, &got);
    let kv = KvKind::Paged { page: 4 };
    let engine = EngineOptions {
        prefill_chunk: Some(2),
        kv,
        kv_capacity: Some(48),
        watermark: Some(0),
        ..EngineOptions::default()
    };
    let setup = Setup { engine, stops: vec![4], ..Setup::threads(2) };
    assert_equal("interrupted", &want, &outcome("stops", &config(&keys), &setup).0);
}

#[track_caller]
fn check_stop(stop: u64, preallocate: bool) {
    let key = format!("grpo.preallocate={preallocate}");
    let config = config(&["grpo.num_iterations=2", &key]);
    let (want, _) = outcome(&format!("evaluation-{stop}-{preallocate}"), &config, &Setup::threads(2));
    let setup = Setup { stops: vec![stop], ..Setup::threads(2) };
    let (got, _) = outcome(&format!("stop-{stop}-{preallocate}"), &config, &setup);
    assert_equal("interrupted", &want, &got);
}

/// The first passes are interrupted, before the evaluation of step 0.
#[test]
fn a_run_that_is_stopped_while_it_allocates_memory_starts_again() {
    check_stop(0, true);
}

#[test]
fn an_interrupted_first_evaluation_is_repeated() {
    check_stop(0, false);
}

/// The weights of its step are already updated.
#[test]
fn a_later_evaluation_is_finished() {
    check_stop(1, true);
}

/// A batch of three steps ends after a step of `grpo.save_every`, seldom at it. Returns the number of checkpoints.
pub(crate) fn passed() -> Result<usize, String> {
    let keys = ["num_iterations=3", "steps=12", "save_every=4", "keep=9", "eval_every=0"];
    let keys = keys.map(|key| format!("grpo.{key}"));
    let dir = Scratch::new("passed");
    run(&config(&keys.each_ref().map(String::as_str)), &Setup::threads(1), &dir.0).unwrap();
    let saved = std::fs::read_dir(dir.0.join("checkpoints")).unwrap().flatten();
    let saved: BTreeSet<String> = saved.map(|step| step.file_name().into_string().unwrap()).collect();
    let want = [0, 6, 9, 12].map(|step| format!("step_{step:06}"));
    if saved != want.into() {
        return Err(format!("gate batches that pass a step, seed 0: {saved:?} of batches at 3, 6, 9 and 12"));
    }
    Ok(saved.len())
}

#[test]
fn the_batch_that_passes_a_step_of_save_every_is_saved() {
    passed().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_step_without_spread_changes_nothing() {
    // all completions of a group are the greedy one
    let keys = ["grpo.top_k=1"];
    let dir = Scratch::new("flat");
    run(&config(&keys), &Setup::threads(1), &dir.0).unwrap();
    let weights =
        |step| std::fs::read(dir.0.join(format!("checkpoints/step_{step:06}/model.safetensors"))).unwrap();
    assert_eq!(difference::first(&weights(4), &weights(3)), None, "the weights of step 4 and of step 3");
}
