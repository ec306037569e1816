//! The scripts of requests, and the options of the engines that run them.
use xtrain::decode::{Continuation, EngineOptions, KvKind, Preemption, PrefixCaching, Speculation};

/// What happens before a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// `g` completions of a prompt of `len` tokens, of which the first `common` are those of every such prompt.
    Submit {
        len: u32,
        common: u32,
        new: usize,
        g: usize,
        priority: i32,
    },
    /// `g` greedy completions of a repeated text.
    Repeat {
        len: u32,
        new: usize,
        g: usize,
    },
    Stop(usize),
    Extend(usize, &'static [u32], usize),
    Snapshot(usize),
    ReleaseSnapshot,
    ReleaseFinished,
}

use Action::{Extend, ReleaseFinished, ReleaseSnapshot, Repeat, Snapshot, Stop};

const fn submit(len: u32, new: usize) -> Action {
    Action::Submit { len, common: 0, new, g: 1, priority: 0 }
}

const fn sharing(len: u32, common: u32, new: usize) -> Action {
    Action::Submit { len, common, new, g: 1, priority: 0 }
}

const fn group(len: u32, new: usize, g: usize) -> Action {
    Action::Submit { len, common: 0, new, g, priority: 0 }
}

const fn urgent(len: u32, new: usize, priority: i32) -> Action {
    Action::Submit { len, common: 0, new, g: 1, priority }
}

pub(super) type Script = &'static [(usize, Action)];

const PLAIN: Script =
    &[(0, submit(6, 5)), (0, submit(3, 9)), (0, submit(11, 4)), (1, submit(1, 6)), (4, submit(7, 3))];
const GROUPS: Script = &[(0, group(5, 4, 3)), (0, submit(2, 3)), (1, group(6, 5, 4)), (3, group(3, 1, 2))];
const PRIORITIES: Script = &[
    (0, submit(4, 6)),
    (0, submit(3, 3)),
    (0, urgent(2, 3, -1)),
    (2, urgent(3, 3, 1)),
    (3, urgent(2, 2, 2)),
    (9, submit(2, 2)),
];
const PREFIXES: Script = &[
    (0, sharing(9, 8, 2)),
    (3, sharing(12, 8, 2)),
    (3, sharing(9, 5, 2)),
    (7, submit(10, 3)),
    (11, sharing(10, 8, 2)),
    (14, submit(11, 2)),
    (17, sharing(13, 12, 3)),
];
const TURNS: Script = &[
    (0, submit(5, 3)),
    (0, submit(4, 2)),
    (5, Extend(0, &[1, 2, 3], 3)),
    (5, Extend(7, &[1], 3)),
    (9, Extend(1, &[4], 6)),
    (9, Extend(1, &[4], 2)),
    (12, ReleaseFinished),
    (12, Extend(2, &[1], 1)),
    (12, submit(6, 2)),
];
const SNAPSHOTS: Script = &[
    (0, sharing(9, 9, 4)),
    (2, Snapshot(0)),
    (2, Snapshot(5)),
    (6, sharing(9, 7, 3)),
    (6, sharing(12, 9, 2)),
    (10, ReleaseSnapshot),
    (10, ReleaseSnapshot),
    (10, sharing(10, 9, 2)),
];
const STOPS: Script =
    &[(0, submit(4, 8)), (0, group(5, 8, 3)), (2, Stop(1)), (3, Stop(3)), (3, Stop(9)), (4, Stop(0))];
const REPEATS: Script =
    &[(0, Repeat { len: 12, new: 14, g: 1 }), (0, Repeat { len: 5, new: 20, g: 1 }), (2, submit(6, 4))];
const EQUAL: Script =
    &[(0, Repeat { len: 5, new: 8, g: 3 }), (2, Stop(0)), (4, Stop(2)), (5, group(4, 3, 2))];
const OFFLOADED: Script = &[
    (0, submit(6, 5)),
    (0, submit(3, 9)),
    (0, submit(11, 4)),
    (1, submit(1, 6)),
    (3, Stop(2)),
    (9, submit(4, 4)),
];
const HELD: Script = &[
    (0, submit(6, 2)),
    (0, submit(5, 3)),
    (5, submit(9, 4)),
    (12, Extend(0, &[3], 2)),
    (12, Extend(1, &[3], 2)),
    (16, ReleaseFinished),
];
const LONG: Script = &[(0, submit(5, 20)), (0, submit(9, 3)), (2, submit(2, 14))];

/// Name, options and script of each trace.
pub(super) fn scenarios() -> Vec<(&'static str, EngineOptions, Script)> {
    let (kv, watermark) = (KvKind::Paged { page: 4 }, Some(0));
    let base = EngineOptions { kv, max_batch: 3, watermark, ..EngineOptions::default() };
    let small = EngineOptions { kv_capacity: Some(24), ..base };
    let kept = EngineOptions { prefix_caching: PrefixCaching::On, kv_capacity: Some(32), ..base };
    let turns = EngineOptions { continuation: Continuation::On, ..base };
    let drafts = EngineOptions { speculation: Speculation::PromptLookup, ..base };
    vec![
        ("pages of 4", base, PLAIN),
        (
            "chunks of 3, at most 5 rows",
            EngineOptions { prefill_chunk: Some(3), max_batched_tokens: Some(5), ..base },
            PLAIN,
        ),
        ("24 slots: preemption", small, PLAIN),
        ("24 slots, a watermark of 5", EngineOptions { watermark: Some(5), ..small }, PLAIN),
        ("24 slots, the default watermark", EngineOptions { watermark: None, ..small }, PLAIN),
        ("groups, 24 slots, the default watermark", EngineOptions { watermark: None, ..small }, GROUPS),
        (
            "24 slots, rows move to the store",
            EngineOptions { preemption: Preemption::Offload, ..small },
            PLAIN,
        ),
        ("24 slots, rows move if it pays", EngineOptions { preemption: Preemption::Auto, ..small }, PLAIN),
        ("groups", base, GROUPS),
        ("groups, 24 slots", small, GROUPS),
        ("groups, continuation", turns, GROUPS),
        ("priorities, ageing 4", EngineOptions { ageing: 4, max_batch: 1, ..base }, PRIORITIES),
        ("priorities, ageing 0", EngineOptions { ageing: 0, max_batch: 1, ..base }, PRIORITIES),
        ("prefixes", kept, PREFIXES),
        ("prefixes, one at a time", EngineOptions { max_batch: 1, kv_capacity: Some(16), ..kept }, PREFIXES),
        ("turns", turns, TURNS),
        ("turns, 16 slots", EngineOptions { kv_capacity: Some(16), ..turns }, TURNS),
        ("snapshots", base, SNAPSHOTS),
        ("snapshots, growing", EngineOptions { kv: KvKind::Growing, ..base }, SNAPSHOTS),
        ("stops", base, STOPS),
        ("equal completions, of which the first is stopped", base, EQUAL),
        (
            "24 slots, a preempted sequence is stopped",
            EngineOptions { preemption: Preemption::Offload, ..small },
            OFFLOADED,
        ),
        (
            "prefixes, 24 slots, rows move to the store",
            EngineOptions { preemption: Preemption::Offload, kv_capacity: Some(24), ..kept },
            PLAIN,
        ),
        ("held sequences, 24 slots", EngineOptions { kv_capacity: Some(24), ..turns }, HELD),
        ("prompt lookup", drafts, REPEATS),
        (
            "contiguous, 60 slots",
            EngineOptions { kv: KvKind::Contiguous, max_seq_len: Some(20), kv_capacity: Some(60), ..base },
            PLAIN,
        ),
        ("growing", EngineOptions { kv: KvKind::Growing, ..base }, PLAIN),
        ("int8", EngineOptions { kv: KvKind::Int8 { page: 4 }, ..small }, PLAIN),
        ("no cache", EngineOptions { kv: KvKind::Off, max_batched_tokens: Some(12), ..base }, PLAIN),
        ("sinks", EngineOptions { kv: KvKind::Sinks { sinks: 2, window: 6 }, ..base }, LONG),
    ]
}
