//! The oracle and the comparison that the decoding gates share.
use std::ops::Range;

use xtrain::decode::{
    Completion, Engine, EngineOptions, KvKind, LogitsRows, Request, Result, generate_naive,
    generate_naive_int8, generate_naive_sinks, int8_kv, sinks_kv,
};
use xtrain::model::{Config, Eager, Model, NoCache, Rows};
use xtrain::tensor::{Device, Dtype, Tensor};

use crate::fixtures::{json, model};

/// Every exact kind of cache, and no cache.
pub(crate) const KINDS: [KvKind; 8] = [
    KvKind::Off,
    KvKind::Growing,
    KvKind::Contiguous,
    KvKind::Paged { page: 1 },
    KvKind::Paged { page: 5 },
    KvKind::Paged { page: 8 },
    KvKind::Paged { page: 16 },
    KvKind::Paged { page: 64 },
];

/// The model of the fixtures.
pub(crate) fn qwen3(compute: Dtype) -> Model {
    model("models/qwen3_tied", compute, &Device::cpu())
}

/// A model of two layers, one of which has a sliding window.
pub(crate) fn windowed(max_positions: usize) -> Config {
    Config {
        vocab: 37,
        dim: 8,
        ffn_dim: 12,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 8,
        max_positions,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        windows: vec![None, Some(9)],
        ..Config::default()
    }
}

/// The reference answers of the fixture.
pub(crate) fn answers() -> serde_json::Value {
    json("models/qwen3_tied/ref.json")
}

/// A list of token ids.
pub(crate) fn ids(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

/// The fixtures' prompts.
pub(crate) fn prompts() -> Vec<Vec<u32>> {
    answers()["prompts"].as_array().unwrap().iter().map(ids).collect()
}

/// Logits `[T, V]` of every position of `tokens`, alone in one pass without a cache.
pub(crate) fn logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    logits_over(KvKind::Off, model, tokens)
}

/// [`logits`] by the naive definition of a kind of cache.
pub(crate) fn logits_over(kv: KvKind, model: &Model, tokens: &[u32]) -> Vec<f32> {
    let hidden = hidden_over(kv, model, &Rows::whole(&[tokens])).unwrap();
    model.logits(&hidden).unwrap().data().unwrap().to_vec()
}

/// The final hidden states of whole sequences by the naive definition of a kind of cache.
pub(crate) fn hidden_over(kv: KvKind, model: &Model, rows: &Rows) -> xtrain::model::Result<Tensor> {
    match kv {
        KvKind::Int8 { .. } => model.forward(&mut Eager, &mut int8_kv(rows)?, rows),
        KvKind::Sinks { sinks, window } => {
            model.forward(&mut Eager, &mut sinks_kv(rows, [sinks, window])?, rows)
        }
        _ => model.forward(&mut Eager, &mut NoCache::new(rows)?, rows),
    }
}

/// The completion of a request by the naive definition of a kind of cache.
pub(crate) fn naive_over(kv: KvKind, model: &Model, request: &Request) -> Result<Completion> {
    match kv {
        KvKind::Int8 { .. } => generate_naive_int8(model, request),
        KvKind::Sinks { sinks, window } => generate_naive_sinks(model, request, [sinks, window]),
        _ => generate_naive(model, request),
    }
}

/// The oracle: completions by naive recomputation of every token, and all their logits.
pub(crate) struct Oracle {
    pub(crate) requests: Vec<Request>,
    pub(crate) completions: Vec<Completion>,
    logits: Vec<Vec<f32>>,
    vocab: usize,
}

impl Oracle {
    pub(crate) fn new(model: &Model, requests: Vec<Request>) -> Oracle {
        Oracle::of(KvKind::Off, model, requests)
    }

    /// The oracle of a kind of cache: for a lossy one, its own naive definition.
    pub(crate) fn of(kv: KvKind, model: &Model, requests: Vec<Request>) -> Oracle {
        let completions: Vec<_> = requests.iter().map(|r| naive_over(kv, model, r).unwrap()).collect();
        let all =
            |(r, c): (&Request, &Completion)| logits_over(kv, model, &[&r.prompt[..], &c.tokens].concat());
        let logits = requests.iter().zip(&completions).map(all).collect();
        Oracle { requests, completions, logits, vocab: model.config().vocab }
    }

    /// Runs the requests through an engine and compares every row of logits and every completion with the oracle.
    /// Returns the number of compared rows, or the first difference.
    pub(crate) fn check(&self, model: &Model, options: EngineOptions) -> Result<usize, String> {
        let mut engine = Engine::new(model, options).map_err(|e| e.to_string())?;
        for request in &self.requests {
            engine.submit(request.clone()).map_err(|e| e.to_string())?;
        }
        self.finish(&mut engine)
    }

    /// Runs an engine to which all of the oracle's requests were submitted in order.
    pub(crate) fn finish(&self, engine: &mut Engine<'_>) -> Result<usize, String> {
        self.finish_part(engine, 0..self.requests.len())
    }

    /// Runs one step of an engine to which the oracle's first requests were submitted in order, and compares its rows
    /// of logits. Returns the number of compared rows.
    pub(crate) fn step(&self, engine: &mut Engine<'_>) -> Result<usize, String> {
        let (mut rows, mut first) = (0, None);
        let step = engine.step_watched(&mut |row| {
            let start = row.position * self.vocab;
            let what = || format!("sequence {}, row {}", row.id, row.position);
            rows += 1;
            let Some(want) = self.logits[row.index].get(start..start + self.vocab) else {
                first.get_or_insert_with(|| format!("{}: past the end of the sequence", what()));
                return;
            };
            let differs = want.iter().zip(row.logits).position(|(a, b)| a.to_bits() != b.to_bits());
            if let (Some(at), None) = (differs, &first) {
                first = Some(format!("{}, logit {at}: {}", what(), got_and_want(row.logits[at], want[at])));
            }
        });
        step.map_err(|e| first.clone().unwrap_or_else(|| e.to_string()))?;
        first.map_or(Ok(rows), Err)
    }

    /// Runs an engine to which the requests `part` were submitted, after all earlier ones.
    pub(crate) fn finish_part(&self, engine: &mut Engine<'_>, part: Range<usize>) -> Result<usize, String> {
        let mut rows = 0;
        while !engine.is_idle() {
            rows += self.step(engine)?;
        }
        let mut got = engine.take_finished();
        got.sort_by_key(|c| c.index);
        for (got, want) in got.iter().zip(&self.completions[part.clone()]) {
            same(got, want)?;
        }
        match got.len() == part.len() {
            true => Ok(rows),
            false => Err(format!("got {} completions, want {}", got.len(), part.len())),
        }
    }
}

/// Two values with their bits.
fn got_and_want(got: f32, want: f32) -> String {
    format!("got {got:e} ({:08x}), want {want:e} ({:08x})", got.to_bits(), want.to_bits())
}

/// Compares two completions bit for bit, except for the order of submission.
pub(crate) fn same(got: &Completion, want: &Completion) -> Result<(), String> {
    let at = |n: usize| format!("sequence {}, row {}", want.id, want.prompt_len + n - 1);
    for (n, (a, b)) in got.tokens.iter().zip(&want.tokens).enumerate() {
        if a != b {
            return Err(format!("{}: token: got {a}, want {b}", at(n)));
        }
    }
    let pairs = [
        (&got.logprobs, &want.logprobs, "log-probability"),
        (&got.processed_logprobs, &want.processed_logprobs, "processed log-probability"),
    ];
    for (a, b, what) in pairs {
        if let Some(n) = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(format!("{}: {what}: {}", at(n), got_and_want(a[n], b[n])));
        }
    }
    let pairs = |c: &Completion, n: usize| {
        let top = c.top_logprobs.get(n)?.iter();
        Some(top.map(|top| (top.token, top.logprob.to_bits())).collect::<Vec<_>>())
    };
    let top = got.top_logprobs.len().max(want.top_logprobs.len());
    if let Some(n) = (0..top).find(|&n| pairs(got, n) != pairs(want, n)) {
        let [got, want] = [got, want].map(|c| c.top_logprobs.get(n));
        return Err(format!("{}: most probable tokens: got {got:?}, want {want:?}", at(n)));
    }
    let rest = |c: &Completion| (c.id, c.prompt_len, c.tokens.len(), c.logprobs.len(), c.finish_reason);
    if rest(got) == rest(want) { Ok(()) } else { Err(format!("got {:?}, want {:?}", rest(got), rest(want))) }
}

/// Options of an engine that returns all logits and runs `max_batch` sequences at a time.
pub(crate) fn options(kv: KvKind, max_batch: usize) -> EngineOptions {
    EngineOptions {
        kv,
        max_batch,
        logits_rows: LogitsRows::All,
        watermark: Some(0),
        ..EngineOptions::default()
    }
}
