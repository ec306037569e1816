//! The order in which waiting sequences are admitted: priorities, their bound on starvation, groups, the watermark.
use xtrain::decode::{Engine, EngineOptions, KvKind, PrefixCaching, Request};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::times;
use xtrain::tensor::{Device, Dtype};

use crate::rng::CaseRng;

const SEED: u64 = 101;

fn model() -> Model {
    let cfg = Config {
        vocab: 5,
        dim: 4,
        ffn_dim: 4,
        n_layers: 1,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 4,
        max_positions: 64,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    };
    Model::init(&cfg, Dtype::F32, &Device::cpu(), 1).unwrap()
}

/// A sequence of a schedule.
#[derive(Debug, Clone, Copy)]
struct Submitted {
    step: usize,
    priority: i32,
    /// The step of its first token.
    first: Option<usize>,
}

/// Runs a schedule in which more arrives than can run, most of it with a high priority. Returns the sequences.
fn schedule(model: &Model, options: EngineOptions, rng: &mut CaseRng) -> Vec<Submitted> {
    let mut engine = Engine::new(model, options).unwrap();
    let (mut all, mut step) = (Vec::new(), 0);
    while step < 150 || !engine.is_idle() {
        for _ in 0..if step < 150 { rng.below(3) } else { 0 } {
            let g = if rng.one_in(8) { rng.between(2, 6) } else { 1 };
            let priority = rng.choose(&[0, 2, 2, 2, 5]) - if rng.one_in(10) { 3 } else { 0 };
            let prompt: Vec<u32> = (0..rng.between(1, 9)).map(|_| rng.below(5) as u32).collect();
            let id = all.len() as u64;
            let request = Request { id, ..Request::sampled(&prompt, rng.between(1, 8), 1.0, 3) };
            engine.submit_prioritized(request, g, priority).unwrap();
            all.extend((0..g).map(|_| Submitted { step, priority, first: None }));
        }
        for event in engine.step().unwrap().events {
            all[event.index].first.get_or_insert(step);
        }
        step += 1;
    }
    all
}

/// Checks the bound for every pair of sequences in random schedules. Returns the number of pairs.
pub(crate) fn bound() -> Result<usize, String> {
    let model = model();
    let (mut pairs, mut overtaken) = (0, 0);
    for case in 0..times(30, 600) {
        let mut rng = CaseRng::new(SEED, case);
        let options = EngineOptions {
            kv: KvKind::Contiguous,
            max_batch: rng.between(1, 3),
            max_seq_len: Some(20),
            ageing: rng.choose(&[0, 1, 4, 10]),
            ..EngineOptions::default()
        };
        let all = schedule(&model, options, &mut rng);
        for (a, one) in all.iter().enumerate() {
            for other in &all[a + 1..] {
                let ahead = options.ageing as i64 * i64::from(other.priority - one.priority);
                let failed = |what: &str| {
                    Err(format!(
                        "gate priorities, seed {SEED}, case {case}, {options:?}: {what}: {one:?}, {other:?}"
                    ))
                };
                // both waited at the same time, and the rank of one is lower
                if (other.step as i64) < one.step as i64 + ahead {
                    let both_wait = other.step < one.first.unwrap_or(0);
                    overtaken += usize::from(other.first < one.first);
                    if both_wait && other.first > one.first {
                        return failed("a higher priority waits for a lower one");
                    }
                } else {
                    pairs += 1;
                    if other.first < one.first {
                        return failed("a sequence waits longer than its priority allows");
                    }
                }
            }
        }
    }
    match pairs > 10_000 && overtaken > 100 {
        true => Ok(pairs),
        false => Err(format!("gate priorities, seed {SEED}: {pairs} pairs, {overtaken} overtook")),
    }
}

#[test]
fn no_sequence_waits_longer_than_its_priority_allows() {
    println!("priorities: {} pairs in order", bound().unwrap_or_else(|e| panic!("{e}")));
}

/// With a watermark of the tokens that the running sequences may still get, or with the automatic one, none is
/// preempted. Returns the number of preemptions without a watermark.
pub(crate) fn watermark() -> Result<usize, String> {
    let model = model();
    let preemptions = |watermark: Option<usize>| {
        let options = EngineOptions {
            kv: KvKind::Paged { page: 4 },
            max_batch: 8,
            kv_capacity: Some(96),
            prefix_caching: PrefixCaching::On,
            watermark,
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(&model, options).unwrap();
        for id in 0..12 {
            let prompt: Vec<u32> = (0..10).map(|t| (t * (id + 2) / 3 % 5) as u32).collect();
            engine.submit(Request { id, ..Request::sampled(&prompt, 14, 1.0, 1) }).unwrap();
        }
        let done = engine.run().unwrap();
        assert_eq!(done.len(), 12);
        engine.counters().preemptions as usize
    };
    match [Some(0), Some(48), None].map(preemptions) {
        [without, 0, 0] if without > 0 => Ok(without),
        found => {
            let what = "preemptions without a watermark, with one of 48 tokens, and with the automatic one";
            Err(format!("gate watermark, seed 1: {what}: {found:?}"))
        }
    }
}

#[test]
fn a_watermark_prevents_preemption() {
    watermark().unwrap_or_else(|e| panic!("{e}"));
}

/// Short sequences in a cache of few pages of 64: when one is admitted besides others, at least a page stays free.
/// Returns the number of steps.
pub(crate) fn watermark_in_pages() -> Result<usize, String> {
    let cfg = Config { max_positions: 256, ..model().config().clone() };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 1).unwrap();
    let options = EngineOptions {
        kv: KvKind::Paged { page: 64 },
        max_batch: 8,
        kv_capacity: Some(4 * 64),
        watermark: Some(48),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&model, options).unwrap();
    for id in 0..12 {
        let prompt: Vec<u32> = (0..10).map(|t| (t * (id + 2) / 3 % 5) as u32).collect();
        engine.submit(Request { id, ..Request::sampled(&prompt, 20, 1.0, 1) }).unwrap();
    }
    let (mut steps, mut most) = (0, 0);
    while !engine.is_idle() {
        engine.step().map_err(|e| e.to_string())?;
        most = most.max(engine.live());
        steps += 1;
    }
    match most {
        3 => Ok(steps),
        _ => Err(format!("gate watermark in pages, seed 1: {most} sequences ran, expected 3 of 4 pages")),
    }
}

#[test]
fn a_watermark_counts_whole_pages() {
    watermark_in_pages().unwrap_or_else(|e| panic!("{e}"));
}
