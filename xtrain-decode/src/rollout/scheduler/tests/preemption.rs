//! Preemption of sequences that share rows.
use super::*;
use crate::cache::KvKind;

/// Sequences with one or two prompts. Of each prompt, one sequence computes its rows and `followers` others use them.
fn families(model: &Model, kv_capacity: usize, followers: &[usize]) -> Scheduler {
    let (kv, max_batch) = (KvKind::Paged { page: 1 }, 8);
    let options = EngineOptions {
        kv,
        max_batch,
        kv_capacity: Some(kv_capacity),
        watermark: Some(0),
        ..EngineOptions::default()
    };
    let mut scheduler = Scheduler::new(model, options, KvMemory::default()).unwrap();
    for (&followers, prompt) in followers.iter().zip([[1, 2], [3, 4]]) {
        let first = scheduler.submit(Request::greedy(&prompt, 9), 1 + followers, SamplerId(0), 0);
        scheduler.admit().unwrap();
        let places = scheduler.running.iter_mut().filter(|s| s.index > first);
        places.for_each(|s| (s.leader, s.waits_for_prompt) = (Some(first), false));
        scheduler.running.iter_mut().filter(|s| s.index == first).for_each(|s| s.followers = followers);
    }
    scheduler
}

fn indices<'s>(sequences: impl IntoIterator<Item = &'s Sequence>) -> Vec<usize> {
    sequences.into_iter().map(|s| s.index).collect()
}

#[test]
fn the_youngest_leader_is_preempted_with_its_followers() {
    let model = model();
    let mut scheduler = families(&model, 3, &[2, 2]);
    // a follower of the older leader that is behind the younger one
    let moved = scheduler.running.remove(1);
    scheduler.running.push(moved);
    scheduler.plan(&mut Plan::default(), 0).unwrap();
    assert_eq!(indices(&scheduler.running), [0, 2, 1]);
    assert_eq!(indices(scheduler.waiting.iter()), [3, 4, 5]);
    assert!(scheduler.waiting.iter().all(|s| s.leader.is_none()));
    assert_eq!((scheduler.counters.preemptions, scheduler.running[0].followers), (3, 2));
}

#[test]
fn a_single_leader_loses_its_followers_one_by_one() {
    let model = model();
    let mut scheduler = families(&model, 1, &[2]);
    let refused = scheduler.plan(&mut Plan::default(), 0).unwrap_err();
    assert!(refused.to_string().contains("cache"), "no room for one sequence: {refused}");
    assert_eq!((indices(&scheduler.running), indices(scheduler.waiting.iter())), (vec![0], vec![1, 2]));
    assert_eq!(scheduler.running[0].followers, 0);
}
