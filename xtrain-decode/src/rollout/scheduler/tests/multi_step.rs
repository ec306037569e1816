//! Several decode steps without a synchronization: how many are planned, and what the scheduler takes from them.
use xtrain_tensor::Tensor;

use super::*;
use crate::cache::KvKind;
use crate::rollout::plan::DecodedStep;
use crate::rollout::request::StopConditions;

/// The end-of-text token of the requests.
const EOS: u32 = 9;

fn request(prompt: &[u32], max_new: usize) -> Request {
    let stop = StopConditions { eos: vec![EOS], tokens: vec![] };
    Request { stop, ..Request::greedy(prompt, max_new) }
}

fn submit(scheduler: &mut Scheduler, prompt: &[u32], max_new: usize) {
    scheduler.submit(request(prompt, max_new), 1, SamplerId(0), 0);
}

/// The steps that `scheduler` plans now, of at most 8.
fn planned(scheduler: &mut Scheduler) -> Option<usize> {
    let mut plan = Plan::default();
    scheduler.plan(&mut plan, 8).unwrap();
    plan.multi_step
}

fn options(max_batched_tokens: Option<usize>, prefill_chunk: Option<usize>) -> EngineOptions {
    EngineOptions { prefill_chunk, max_batched_tokens, ..EngineOptions::default() }
}

#[test]
fn only_decode_rows_run_without_a_synchronization() {
    let (model, mut plan) = (model(), Plan::default());
    for prefill_chunk in [None, Some(1)] {
        let mut scheduler = with(&model, options(None, prefill_chunk));
        submit(&mut scheduler, &[1, 2, 3], 20);
        submit(&mut scheduler, &[4, 5, 6], 20);
        scheduler.admit().unwrap();
        for _ in 0..3usize.div_ceil(prefill_chunk.unwrap_or(3)) {
            let steps = planned(&mut scheduler);
            let sampled = scheduler.running[0].num_pending() == 1 && prefill_chunk.is_some();
            assert_eq!(steps.is_some(), sampled, "the last row of a prompt is like a decode row");
            pass(&mut scheduler, &mut plan, 7);
        }
        assert_eq!(planned(&mut scheduler), Some(8));
    }
    // one of two sequences has no room in the step
    let mut scheduler = with(&model, options(Some(1), None));
    submit(&mut scheduler, &[1], 20);
    submit(&mut scheduler, &[2], 20);
    scheduler.admit().unwrap();
    assert_eq!(planned(&mut scheduler), None);
    // without a cache
    let mut scheduler = with(&model, EngineOptions { kv: KvKind::Off, ..EngineOptions::default() });
    submit(&mut scheduler, &[1], 20);
    scheduler.admit().unwrap();
    assert_eq!(planned(&mut scheduler), None);
}

#[test]
fn a_row_whose_logits_other_sequences_need_is_synchronized() {
    let (model, mut plan) = (model(), Plan::default());
    let mut scheduler = Scheduler::new(
        &model,
        EngineOptions { max_batch: 1, ..EngineOptions::default() },
        KvMemory::default(),
    )
    .unwrap();
    scheduler.submit(request(&[1], 20), 2, SamplerId(0), 0);
    scheduler.admit().unwrap();
    assert_eq!(planned(&mut scheduler), None, "a prompt of two completions");
    pass(&mut scheduler, &mut plan, 7);
    assert_eq!(planned(&mut scheduler), Some(8));

    let mut scheduler = self::scheduler(&model);
    submit(&mut scheduler, &[1], 20);
    scheduler.admit().unwrap();
    assert_eq!(planned(&mut scheduler), Some(8), "a prompt of one completion");
}

#[test]
fn steps_end_with_the_first_sequence_and_with_the_room_of_the_cache() {
    let (model, mut plan) = (model(), Plan::default());
    for (kv_capacity, new, want) in [(None, [20, 20], 8), (None, [20, 5], 4), (Some(9), [20, 20], 2)] {
        let kv = KvKind::Paged { page: 1 };
        let options = EngineOptions { kv, kv_capacity, watermark: Some(0), ..EngineOptions::default() };
        let mut scheduler = with(&model, options);
        // rows at positions 3 and 1: after two steps, one of 9 slots is free
        submit(&mut scheduler, &[1, 2, 3], new[0]);
        submit(&mut scheduler, &[4], new[1]);
        scheduler.admit().unwrap();
        pass(&mut scheduler, &mut plan, 7);
        assert_eq!(planned(&mut scheduler), Some(want), "{kv_capacity:?} {new:?}");
        let cache = scheduler.cache.as_deref().unwrap();
        let reserved =
            |slot: u32, from: usize| (from..64).take_while(|&pos| cache.slot(slot, pos).is_some()).count();
        let rows = [scheduler.running[0].slot, scheduler.running[1].slot];
        let reserved = [reserved(rows[0], 3), reserved(rows[1], 1)];
        assert!(reserved.iter().all(|&n| n >= want) && reserved.contains(&want), "{reserved:?}");
    }
}

/// Writes zeros for `steps` steps of the plan, as the runner does, and takes `tokens` (`None`: no token).
fn decode(scheduler: &mut Scheduler, plan: &mut Plan, tokens: &[[Option<u32>; 2]]) {
    scheduler.plan(plan, tokens.len()).unwrap();
    assert_eq!(plan.multi_step, Some(tokens.len()));
    write(scheduler, plan.rows.clone(), tokens.len());
    let steps: Vec<DecodedStep> =
        tokens.iter().map(|step| step[..plan.runs.len()].iter().map(|t| t.map(choice)).collect()).collect();
    scheduler.accept_steps(plan, &steps).unwrap();
}

fn write(scheduler: &mut Scheduler, mut rows: xtrain_model::Rows, steps: usize) {
    let zeros = Tensor::zeros(&Device::cpu(), &[rows.len(), 2, 4], Dtype::F32).unwrap();
    let cache = scheduler.cache.as_mut().unwrap();
    for _ in 0..steps {
        cache.extend(0, zeros.clone(), zeros.clone(), &rows).unwrap();
        rows.pos.iter_mut().for_each(|pos| *pos += 1);
    }
}

/// Two sequences with prompts of one token that have decoded `tokens`.
fn decoded(model: &Model, tokens: &[[Option<u32>; 2]]) -> Scheduler {
    let mut scheduler = scheduler(model);
    submit(&mut scheduler, &[1], 20);
    submit(&mut scheduler, &[2], 20);
    scheduler.admit().unwrap();
    decode(&mut scheduler, &mut Plan::default(), tokens);
    scheduler
}

fn held(scheduler: &Scheduler) -> Vec<(u64, usize, usize)> {
    let cache = scheduler.cache.as_deref().unwrap();
    scheduler.running.iter().map(|s| (s.index as u64, s.num_computed, cache.seq_len(s.slot))).collect()
}

#[test]
fn tokens_after_the_end_of_a_sequence_are_dropped_and_counted() {
    let model = model();
    let scheduler =
        decoded(&model, &[[Some(5), Some(6)], [Some(EOS), Some(7)], [Some(8), Some(8)], [None, Some(4)]]);
    let events: Vec<_> = scheduler.events.iter().map(|e| (e.index, e.position, e.token)).collect();
    assert_eq!(events, [(0, 1, 5), (1, 1, 6), (0, 2, EOS), (1, 2, 7), (1, 3, 8), (1, 4, 4)]);
    let want = Counters {
        passes: 4,
        layer_rows: 6,
        prefill_rows: 2,
        head_rows: 6,
        surplus_rows: 2,
        ..Counters::default()
    };
    assert_eq!(scheduler.counters, want);
    assert_eq!(scheduler.finished.iter().map(|c| &c.tokens[..]).collect::<Vec<_>>(), [[5, EOS]]);
    assert_eq!(held(&scheduler), [(1, 4, 4)]);
    assert_eq!(scheduler.free_slots.len(), 2);
}

#[test]
fn sequences_finish_in_the_order_of_the_steps() {
    let model = model();
    let scheduler = decoded(&model, &[[Some(5), Some(EOS)], [Some(EOS), Some(1)], [Some(1), Some(1)]]);
    assert_eq!(scheduler.finished.iter().map(|c| c.index).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn from_a_row_without_a_token_on_all_steps_are_repeated_one_by_one() {
    let model = model();
    let mut scheduler =
        decoded(&model, &[[Some(5), Some(6)], [Some(4), None], [Some(3), Some(3)], [Some(3), Some(3)]]);
    assert_eq!(held(&scheduler), [(0, 1, 1), (1, 1, 1)], "the rows of the other steps are dropped");
    let want = Counters {
        passes: 4,
        layer_rows: 2,
        prefill_rows: 2,
        head_rows: 2,
        surplus_rows: 6,
        ..Counters::default()
    };
    assert_eq!(scheduler.counters, want);
    assert_eq!(planned(&mut scheduler), None, "the next step is synchronized");
    pass(&mut scheduler, &mut Plan::default(), 7);
    assert_eq!(planned(&mut scheduler), Some(8));
}
