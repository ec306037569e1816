//! 10,000 requests that arrive in bursts, faster than they can run: no request waits longer than the stated bound.
use xtrain::decode::{Engine, EngineOptions, KvKind, Request};
use xtrain::model::{Config, Model};
use xtrain::tensor::{Device, Dtype};

use crate::rng::CaseRng;

const SEED: u64 = 103;
const REQUESTS: usize = 10_000;
/// Requests of a burst.
const BURST: usize = 64;
/// Sequences that run at the same time.
const SLOTS: usize = 32;
/// New tokens of a request, and steps in which it runs: the first one of them has its prompt.
const STEPS: usize = 8;
/// Steps for each level of priority by which a request is preferred.
const AGEING: usize = 100;

/// A request of the trace.
#[derive(Debug, Clone, Copy)]
struct Served {
    step: usize,
    /// Its place among the waiting ones: the step of submission minus the steps of its priority. Then its index counts.
    rank: i64,
    /// The step of its first token.
    first: usize,
}

/// Runs the trace: a burst every few steps, half of it with priority 1 or 2.
fn serve() -> Vec<Served> {
    let sizes = Config { vocab: 5, dim: 4, ffn_dim: 4, n_layers: 1, n_heads: 1, ..Config::default() };
    let rest = Config { n_kv_heads: 1, head_dim: 4, rope_theta: 1e4, norm_eps: 1e-6, ..sizes };
    let model = Model::init(&Config { max_positions: 64, ..rest }, Dtype::F32, &Device::cpu(), 1).unwrap();
    let kv = KvKind::Contiguous;
    let sizes = EngineOptions { kv, max_batch: SLOTS, max_seq_len: Some(20), ..EngineOptions::default() };
    let options = EngineOptions { ageing: AGEING, ..sizes };
    let mut engine = Engine::new(&model, options).unwrap();
    let (mut all, mut rng): (Vec<Served>, _) = (Vec::new(), CaseRng::new(SEED, 0));
    let (mut step, mut next) = (0, 0);
    while all.len() < REQUESTS || !engine.is_idle() {
        while step == next && all.len() < REQUESTS {
            for _ in 0..BURST.min(REQUESTS - all.len()) {
                let priority = if rng.one_in(2) { rng.between(1, 2) } else { 0 };
                let prompt: Vec<u32> = (0..rng.between(1, 9)).map(|_| rng.below(5) as u32).collect();
                let request = Request::sampled(&prompt, STEPS, 1.0, 3);
                let request = Request { id: all.len() as u64, ..request };
                engine.submit_prioritized(request, 1, priority as i32).unwrap();
                let rank = step as i64 - (AGEING * priority) as i64;
                all.push(Served { step, rank, first: usize::MAX });
            }
            next += rng.between(3, 11);
        }
        for event in engine.step().unwrap().events {
            let first = &mut all[event.index].first;
            *first = step.min(*first);
        }
        engine.take_finished();
        step += 1;
    }
    all
}

/// Checks the bound: a request that is preceded by `ahead` waiting requests waits at most `(ahead / SLOTS + 1) * (STEPS + 1)`
/// steps. The additional step is the one in which a finished sequence is replaced. Returns the number of requests.
fn bound() -> Result<usize, String> {
    let all = serve();
    let (mut longest, mut most) = (0, 0);
    for (index, one) in all.iter().enumerate() {
        // those that were served while it waited and come before it
        let precedes = |(other, served): &(usize, &Served)| {
            (served.rank, *other) < (one.rank, index) && served.first >= one.step && served.step <= one.first
        };
        let ahead = all.iter().enumerate().filter(precedes).count();
        let (wait, allowed) = (one.first.saturating_sub(one.step), (ahead / SLOTS + 1) * (STEPS + 1));
        if wait > allowed {
            return Err(format!(
                "gate bursts, seed {SEED}, request {index}: {one:?} waited {wait} steps, {ahead} precede it: expected \
                 at most {allowed}"
            ));
        }
        (longest, most) = (longest.max(wait), most.max(allowed));
    }
    println!("bursts: {} requests, longest wait {longest} steps, bounds up to {most}", all.len());
    // requests arrive faster than they run: otherwise none would wait much longer than one of them runs
    if all.len() == REQUESTS && longest > 10 * (STEPS + 1) {
        Ok(all.len())
    } else {
        Err(format!("longest wait {longest}"))
    }
}

#[test]
fn no_request_of_a_bursty_trace_waits_longer_than_its_bound() {
    bound().unwrap_or_else(|e| panic!("{e}"));
    #[cfg(feature = "faults")]
    {
        use xtrain::tensor::faults::{self, Fault};
        let error = faults::with(Fault::PriorityNeverAges, bound).unwrap_err();
        assert!(error.contains("precede it"), "{error}");
    }
}
