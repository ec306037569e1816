//! Tests of the scheduler without a runner.
use crate::cache::KvMemory;
use xtrain_tensor::{Device, Dtype};

use super::*;
use crate::rollout::plan::{Outcome, Plan};

mod multi_step;
mod preemption;
use crate::sampler::{Choice, SampleOptions};

fn model() -> Model {
    let cfg = Config {
        vocab: 37,
        dim: 8,
        ffn_dim: 8,
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 2,
        head_dim: 4,
        max_positions: 64,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    };
    Model::init(&cfg, Dtype::F32, &Device::cpu(), 7).unwrap()
}

/// A scheduler of 3 slots.
fn scheduler(model: &Model) -> Scheduler {
    with(model, EngineOptions::default())
}

/// A scheduler of 3 slots with other options.
fn with(model: &Model, options: EngineOptions) -> Scheduler {
    let options = EngineOptions { max_batch: 3, ..options };
    Scheduler::new(model, options, KvMemory::default()).unwrap()
}

fn choice(token: u32) -> Choice {
    Choice { token, logprob: 0.0, processed_logprob: 0.0 }
}

/// Plans one forward pass and takes `token` for each run that a token is sampled from, with logits if the plan asks for
/// them.
fn pass(scheduler: &mut Scheduler, plan: &mut Plan, token: u32) {
    scheduler.plan(plan, 0).unwrap();
    scheduler.mark_computed(plan);
    let outcomes = plan.runs.iter().filter_map(|run| {
        let logits = run.spec.as_ref()?.shares_logits.then(|| std::sync::Arc::from([0.0; 37]));
        Some(Outcome { running: run.running, choice: Ok(choice(token)), top: Vec::new(), logits })
    });
    scheduler.accept(outcomes).unwrap();
}

#[test]
fn a_waiting_completion_owns_no_token_memory() {
    let model = model();
    let mut scheduler = scheduler(&model);
    scheduler.submit(Request::greedy(&[1, 2, 3], 9), 1 << 16, SamplerId(0), 0);
    scheduler.admit().unwrap();
    let first = &scheduler.running[0];
    assert_eq!((scheduler.running.len(), scheduler.waiting.len()), (3, (1 << 16) - 3));
    assert!(scheduler.running.iter().all(|s| s.memory(first) == (12, true)));
    assert!(scheduler.waiting.iter().all(|s| s.memory(first) == (0, true)));
    // a sequence that is stopped before it had a slot has no token
    assert!(scheduler.stop(60_000));
    assert!(scheduler.finished[0].tokens.is_empty());
}

#[test]
fn a_repetition_penalty_reads_the_tokens_of_a_sequence_in_place() {
    fn owns_no_memory<T: Copy>(_: &T) {}
    let model = model();
    let mut scheduler = scheduler(&model);
    for repetition_penalty in [Some(1.3), None] {
        let options = SampleOptions { repetition_penalty, ..SampleOptions::default() };
        scheduler.submit(Request { options, ..Request::greedy(&[1, 2, 3], 9) }, 1, SamplerId(0), 0);
    }
    scheduler.admit().unwrap();
    let address = scheduler.running[0].tokens().as_ptr();
    let mut plan = Plan::default();
    for step in 0..9 {
        scheduler.plan(&mut plan, 0).unwrap();
        owns_no_memory(plan.runs[0].spec.as_ref().unwrap());
        let [penalized, free] = &scheduler.running[..] else { panic!("two sequences run") };
        assert_eq!(
            (penalized.penalized_tokens().as_ptr(), penalized.penalized_tokens().len()),
            (address, 3 + step)
        );
        assert!(free.penalized_tokens().is_empty());
        scheduler.mark_computed(&plan);
        let outcomes =
            (0..2).map(|running| Outcome { running, choice: Ok(choice(5)), top: Vec::new(), logits: None });
        scheduler.accept(outcomes).unwrap();
    }
    scheduler.retire();
    assert_eq!(scheduler.finished.len(), 2);
}

#[test]
fn a_row_that_does_not_fit_has_no_run() {
    let model = model();
    let mut scheduler =
        with(&model, EngineOptions { max_batched_tokens: Some(1), ..EngineOptions::default() });
    (0..2).for_each(|_| _ = scheduler.submit(Request::greedy(&[1], 9), 1, SamplerId(0), 0));
    scheduler.admit().unwrap();
    let mut plan = Plan::default();
    pass(&mut scheduler, &mut plan, 5);
    assert_eq!(plan.runs.iter().map(|run| run.running).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_leader_without_followers_shares_no_logits() {
    let model = model();
    let mut scheduler = scheduler(&model);
    scheduler.submit(Request::greedy(&[1, 2], 9), 1, SamplerId(0), 0);
    scheduler.admit().unwrap();
    // its last follower has left
    scheduler.running[0].followers = 1;
    scheduler.separate().unwrap();
    assert_eq!(scheduler.running[0].followers, 0);
}
