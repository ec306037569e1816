//! The model families against transformers' modelling code run in f64. The answers under tests/data are rounded to
//! f32; the rounding is a hundredth of any tolerance here.
use std::collections::HashMap;

use xtrain::decode::KvKind;
use xtrain::model::{
    Biases, Config, Eager, Functional, Grads, HeadNorm, KvView, Linear, LogitsProcessing, Model, NoCache,
    Param, Result, Rows, hf, objective,
};
use xtrain::tensor::ops::RopeArgs;
use xtrain::tensor::testing::assert_bits_eq;
use xtrain::tensor::{Device, Dtype, Tensor};

use crate::decode::{Oracle, options};
use crate::fixtures::{f32s, json, model, tensors};
use crate::golden::{cache, logits, prompts};

/// Every checkpoint under tests/data/models that has the full set of answers.
pub(crate) const FAMILIES: [&str; 7] = [
    "qwen3_tied",
    "qwen3_untied_hd",
    "qwen3_bf16",
    "qwen2_bias",
    "llama_odd",
    "llama_sharded",
    "llama3_rope",
];

/// A checkpoint, its answers and their tolerance.
struct Reference {
    name: &'static str,
    model: Model,
    json: serde_json::Value,
    tensors: HashMap<String, Vec<f32>>,
    tolerance: f64,
}

impl Reference {
    fn new(name: &'static str) -> Reference {
        let dir = format!("models/{name}");
        let json = json(&format!("{dir}/ref.json"));
        let own = tensors(&format!("{dir}/ref.safetensors")).into_iter();
        Reference {
            name,
            model: model(&dir, Dtype::F32, &Device::cpu()),
            // fifteen times the largest error of transformers' own f32 run, from ref.json
            tolerance: json["tolerance"]["logits_f32_abs"].as_f64().unwrap(),
            json,
            tensors: own.map(|(name, _, bytes)| (name, f32s(&bytes))).collect(),
        }
    }

    /// The prompt with this name. The long prompt includes its greedy tokens.
    fn prompt(&self, name: &str) -> Vec<u32> {
        let dir = format!("models/{}", self.name);
        prompts(&dir).into_iter().find(|p| p.0 == name).unwrap().1
    }

    /// Compares with the answer of this name. Returns the number of compared values.
    fn near(&self, answer: &str, got: &[f32], tolerance: f64) -> usize {
        let want = &self.tensors[answer];
        assert_eq!(got.len(), want.len(), "{}: {answer}", self.name);
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            let off = (f64::from(*got) - f64::from(*want)).abs();
            assert!(off <= tolerance, "{}: {answer}, value {at}: got {got}, want {want}", self.name);
        }
        got.len()
    }
}

#[test]
fn logits_match_transformers_in_f64_within_the_tolerance_of_its_own_f32_run() {
    let mut compared = 0;
    for name in FAMILIES {
        let r = Reference::new(name);
        let vocab = r.model.config().vocab;
        let row = |all: &[f32], at: usize| all[at * vocab..][..vocab].to_vec();
        for i in 0..5 {
            let prompt = r.prompt(&i.to_string());
            compared += r.near(&format!("p{i}.logits"), &logits(&r.model, &prompt), r.tolerance);
        }
        let prompt = r.prompt("2");
        let greedy: Vec<u32> = ids(&r.json["cases"][2]["greedy"]);
        let all = logits(&r.model, &[&prompt[..], &greedy].concat());
        let steps = (0..greedy.len()).step_by(4);
        let continued: Vec<f32> = steps.flat_map(|step| row(&all, prompt.len() - 1 + step)).collect();
        compared += r.near("p2.cont_logits", &continued, r.tolerance);
        let all = logits(&r.model, &r.prompt("long"));
        let rows = ids(&r.json["long"]["rows_of_long_logits"]);
        let long: Vec<f32> = rows.iter().flat_map(|&at| row(&all, at as usize)).collect();
        compared += r.near("long.logits", &long, r.tolerance);
    }
    println!("families: {compared} logits within the tolerances");
    assert!(compared > 200_000, "{compared} logits compared");
}

fn ids(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

#[test]
fn log_probabilities_and_entropies_match_transformers_in_f64() {
    for name in FAMILIES {
        let r = Reference::new(name);
        let vocab = r.model.config().vocab;
        for case in r.json["cases"].as_array().unwrap() {
            let text = [ids(&case["prompt"]), ids(&case["greedy"])].concat();
            let all = logits(&r.model, &text);
            for (t, row) in all.chunks_exact(vocab).enumerate() {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f64> = row.iter().map(|&x| f64::from(x - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let logprob = |i: usize| f64::from(row[i] - max) - sum.ln();
                if let Some(&next) = text.get(t + 1) {
                    let want = case["token_logprobs_f64"][t].as_f64().unwrap();
                    let off = (logprob(next as usize) - want).abs();
                    assert!(
                        off <= 2.0 * r.tolerance,
                        "{name}: log-probability of token {} is off by {off}",
                        t + 1
                    );
                }
                if let Some(want) = case["entropy_f64"][t].as_f64() {
                    let entropy: f64 = (0..vocab).map(|i| -weights[i] / sum * logprob(i)).sum();
                    let off = (entropy - want).abs();
                    assert!(off <= 20.0 * r.tolerance, "{name}: entropy of row {t} is off by {off}");
                }
            }
        }
    }
}

/// Records the residual stream after the embedding and after each projection into it.
struct Watched(Vec<Tensor>);

impl Functional for Watched {
    type X = Tensor;

    fn embedding(&mut self, table: &Param, id: &[u32]) -> Result<Tensor> {
        let h = Eager.embedding(table, id)?;
        self.0.push(h.clone());
        Ok(h)
    }

    fn rms_norm(&mut self, x: &Tensor, gain: &Param, eps: f32) -> Result<Tensor> {
        Eager.rms_norm(x, gain, eps)
    }

    fn linears<const G: usize>(&mut self, x: &Tensor, ws: [&Linear; G]) -> Result<[Tensor; G]> {
        Eager.linears(x, ws)
    }

    fn swiglu(&mut self, x: &Tensor, gate: &Linear, up: &Linear) -> Result<Tensor> {
        Eager.swiglu(x, gate, up)
    }

    fn linear_add(&mut self, h: &Tensor, x: &Tensor, w: &Linear) -> Result<Tensor> {
        let h = Eager.linear_add(h, x, w)?;
        self.0.push(h.clone());
        Ok(h)
    }

    fn norm_rope(&mut self, x: &Tensor, norm: Option<HeadNorm<'_>>, rope: RopeArgs<'_>) -> Result<Tensor> {
        Eager.norm_rope(x, norm, rope)
    }

    fn attention(
        &mut self,
        q: &Tensor,
        kv: KvView<'_, Tensor>,
        rows: &Rows,
        window: Option<usize>,
    ) -> Result<Tensor> {
        Eager.attention(q, kv, rows, window)
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Eager.reshape(x, shape)
    }
}

#[test]
fn hidden_states_and_cached_keys_match_transformers_in_f64() {
    let mut compared = 0;
    for name in FAMILIES {
        let r = Reference::new(name);
        let layers = r.model.config().n_layers;
        let rows = Rows::whole(&[r.prompt("2")]);
        let mut watched = Watched(Vec::new());
        let last = r.model.forward(&mut watched, &mut NoCache::new(&rows).unwrap(), &rows).unwrap();
        // two projections per layer; the second one ends the layer
        let mut hidden: Vec<&Tensor> = watched.0.iter().step_by(2).collect();
        assert_eq!(hidden.len(), layers + 1);
        hidden[layers] = &last;
        for (layer, x) in hidden.into_iter().enumerate() {
            compared += r.near(&format!("p2.hidden.{layer}"), x.data().unwrap(), r.tolerance);
        }
        let cached = cache(&r.model, &r.prompt("2"));
        for (i, values) in cached.chunks_exact(cached.len() / (2 * layers)).enumerate() {
            let what = format!("p2.{}.{}", ["k", "v"][i % 2], i / 2);
            compared += r.near(&what, values, r.tolerance);
        }
    }
    println!("families: {compared} hidden and cached values within the tolerances");
}

/// Compares every cache with naive recomputation. The completions have different lengths, so that sequences also run
/// alone. Returns the number of compared rows.
pub(crate) fn caches() -> std::result::Result<usize, String> {
    let mut rows = 0;
    for name in FAMILIES {
        let r = Reference::new(name);
        let requests = (0..5).map(|i| xtrain::decode::Request {
            id: i,
            ..xtrain::decode::Request::sampled(&r.prompt(&i.to_string()), 4 + 3 * i as usize, 1.0, 77)
        });
        let oracle = Oracle::new(&r.model, requests.collect());
        for kv in [KvKind::Growing, KvKind::Contiguous, KvKind::Paged { page: 5 }, KvKind::Paged { page: 16 }]
        {
            let checked = oracle.check(&r.model, options(kv, 3));
            rows += checked.map_err(|e| format!("gate families, seed 77: {name}, {kv}: {e}"))?;
        }
    }
    Ok(rows)
}

#[test]
fn every_cache_has_the_bits_of_naive_recomputation_in_every_family() {
    let rows = caches().unwrap_or_else(|e| panic!("{e}"));
    println!("families: {rows} rows of logits, 0 differ");
    assert!(rows > 1000, "{rows}");
}

#[test]
fn both_spellings_of_a_config_have_the_same_bits() {
    for name in FAMILIES {
        let r = Reference::new(name);
        let old = hf::from_json(&json(&format!("models/{name}/config_v4.json"))).unwrap();
        assert_eq!(&old, r.model.config(), "{name}");
        let ours = hf::from_json(&hf::to_json(&old, &[]).unwrap()).unwrap();
        assert_eq!(ours, old, "{name}, written and read again");
        let again = Model::new(old, r.model.params.clone()).unwrap();
        let prompt = r.prompt("4");
        assert_bits_eq(&logits(&again, &prompt), &logits(&r.model, &prompt), name);
    }
}

/// A small model with a bias at every projection, none of them zero.
fn biased(compute: Dtype) -> Model {
    let cfg = Config {
        vocab: 40,
        dim: 24,
        ffn_dim: 36,
        n_layers: 2,
        n_heads: 3,
        n_kv_heads: 1,
        head_dim: 8,
        max_positions: 64,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        biases: Biases { qkv: true, o: true, mlp: true },
        windows: vec![None, Some(5)],
        ..Config::default()
    };
    let mut model = Model::init(&cfg, compute, &Device::cpu(), 3).unwrap();
    for p in model.params.iter_mut().filter(|p| p.name().ends_with(".bias")) {
        let (seed, data) = (p.index() as u64, p.value_mut().unwrap().data_mut::<f32>().unwrap());
        data.copy_from_slice(&xtrain::tensor::testing::arbitrary(data.len(), seed));
    }
    model
}

/// The loss of two examples and its gradients, in the order of the parameters.
fn gradients(model: &Model, micro: usize) -> (f32, Vec<Tensor>) {
    let tokens = |n: u32| -> Vec<u32> { (0..20).map(|i| (i * n + n) % 40).collect() };
    let samples = [7, 11].map(|n| xtrain::model::TrainingExample::window(&tokens(n), 1.0 / 38.0));
    let (mut loss, mut grads) = (0f32, Grads::zeros(&model.params).unwrap());
    for part in samples.chunks(micro) {
        objective::backward(model, part, LogitsProcessing::default(), &mut loss, &mut grads).unwrap();
    }
    (loss, grads.finish().unwrap())
}

#[test]
fn gradients_of_biases_are_the_slope_of_the_loss_and_independent_of_micro_batches() {
    let model = biased(Dtype::F32);
    let (_, grads) = gradients(&model, 2);
    let of_biases = |p: &&Param| p.name().ends_with(".bias");
    assert_eq!(model.params.iter().filter(of_biases).count(), 2 * 7);
    for p in model.params.iter().filter(of_biases) {
        let g = grads[p.index()].data::<f32>().unwrap();
        let square: f64 = g.iter().map(|&g| f64::from(g).powi(2)).sum();
        let step = 0.02 / square.sqrt();
        let moved = |sign: f64| {
            let mut model = model.clone();
            let own = model.params.iter_mut().find(|own| own.index() == p.index()).unwrap();
            let data = own.value_mut().unwrap().data_mut::<f32>().unwrap();
            data.iter_mut().zip(g).for_each(|(x, &g)| *x += (sign * step * f64::from(g)) as f32);
            f64::from(gradients(&model, 2).0)
        };
        let (risen, want) = (moved(1.0) - moved(-1.0), 2.0 * step * square);
        // the second term is the rounding of two losses of about 4
        assert!((risen - want).abs() < 0.02 * want + 3e-6, "{}: got {risen}, want {want}", p.name());
    }
    for compute in [Dtype::F32, Dtype::BF16] {
        let model = biased(compute);
        for (p, (one, two)) in
            model.params.iter().zip(gradients(&model, 2).1.iter().zip(&gradients(&model, 1).1))
        {
            assert_bits_eq(one.data().unwrap(), two.data().unwrap(), p.name());
        }
    }
}
