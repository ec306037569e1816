//! RoPE scalings and families with one tiny checkpoint each: YaRN, linear scaling, Mistral's sliding window.
use xtrain::decode::{KvKind, Request, generate_greedy_cached};
use xtrain::model::{Config, Model, hf};
use xtrain::tensor::testing::assert_bits_eq;
use xtrain::tensor::{Device, Dtype, RopeScaling};

use crate::decode::{Oracle, options, windowed};
use crate::fixtures::{f32s, json, model, tensors};
use crate::golden::logits;

/// A checkpoint, a prompt, transformers' greedy continuation, and transformers' logits of both in f64, rounded to
/// f32.
struct Small {
    name: &'static str,
    model: Model,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>,
    tolerance: f64,
}

impl Small {
    fn all() -> impl Iterator<Item = Small> {
        ["llama_yarn", "llama_linear", "mistral_window"].into_iter().map(|name| {
            let dir = format!("models/{name}");
            let answer = json(&format!("{dir}/ref.json"));
            let ids = |key: &str| -> Vec<u32> {
                let list = answer["cases"][0][key].as_array().unwrap().iter();
                list.map(|id| id.as_u64().unwrap() as u32).collect()
            };
            Small {
                name,
                model: model(&dir, Dtype::F32, &Device::cpu()),
                prompt: ids("prompt"),
                greedy: ids("greedy"),
                logits: f32s(&tensors(&format!("{dir}/ref.safetensors"))[0].2),
                // fifteen times the largest error of transformers' own f32 run
                tolerance: answer["tolerance"]["logits_f32_abs"].as_f64().unwrap(),
            }
        })
    }

    fn text(&self) -> Vec<u32> {
        [&self.prompt[..], &self.greedy].concat()
    }

    /// The largest error of a logit of `model`, in tolerances.
    fn error(&self, model: &Model) -> f64 {
        let got = logits(model, &self.text());
        assert_eq!(got.len(), self.logits.len(), "{}", self.name);
        let off = got.iter().zip(&self.logits).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
        off.fold(0.0, f64::max) / self.tolerance
    }
}

#[test]
fn logits_and_greedy_tokens_match_transformers_in_f64() {
    for small in Small::all() {
        let off = small.error(&small.model);
        assert!(off <= 1.0, "{}: a logit is off by {off} tolerances", small.name);
        let got = generate_greedy_cached(&small.model, &small.prompt, small.greedy.len()).unwrap();
        assert_eq!(got.tokens, small.greedy, "{}", small.name);
    }
}

#[test]
fn without_the_scaling_or_the_window_the_logits_are_far_off() {
    for small in Small::all() {
        let mut cfg = small.model.config().clone();
        (cfg.rope_scaling, cfg.windows) = (RopeScaling::Default, Vec::new());
        let plain = Model::new(cfg, small.model.params.clone()).unwrap();
        let off = small.error(&plain);
        assert!(off > 100.0, "{}: a logit is off by {off} tolerances", small.name);
    }
}

/// Windows act in their own layers: two windowed layers differ from one, and the first from the second. Returns the
/// number of compared pairs.
pub(crate) fn windows_by_layer() -> Result<usize, String> {
    let text: Vec<u32> = (0..30).map(|i| i * 7 % 37).collect();
    let with = |windows: [Option<usize>; 2]| {
        let cfg = Config { windows: windows.to_vec(), ..windowed(32) };
        logits(&Model::init(&cfg, Dtype::F32, &Device::cpu(), 46).unwrap(), &text)
    };
    let all = [[None, None], [Some(4), None], [None, Some(4)], [Some(4), Some(4)], [Some(4), Some(9)]];
    let found = all.map(with);
    let mut pairs = 0;
    for (a, b) in (0..all.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
        if found[a] == found[b] {
            return Err(format!("gate windows, seed 46: {:?} has the logits of {:?}", all[a], all[b]));
        }
        pairs += 1;
    }
    Ok(pairs)
}

#[test]
fn each_layer_has_its_own_window() {
    assert_eq!(windows_by_layer(), Ok(10));
}

#[test]
fn every_cache_has_the_bits_of_naive_recomputation() {
    for small in Small::all() {
        let prompts = [&small.prompt[..], &small.prompt[..3]];
        let requests =
            (0..).zip(prompts).map(|(id, prompt)| Request { id, ..Request::sampled(prompt, 20, 1.0, 77) });
        let oracle = Oracle::new(&small.model, requests.collect());
        for kv in [KvKind::Growing, KvKind::Contiguous, KvKind::Paged { page: 5 }] {
            oracle
                .check(&small.model, options(kv, 3))
                .unwrap_or_else(|e| panic!("{}, {kv}: {e}", small.name));
        }
    }
}

#[test]
fn both_spellings_of_their_configs_have_the_same_bits() {
    for small in Small::all() {
        let old = hf::from_json(&json(&format!("models/{}/config_v4.json", small.name))).unwrap();
        assert_eq!(&old, small.model.config(), "{}", small.name);
        assert_eq!(hf::from_json(&hf::to_json(&old, &[]).unwrap()).unwrap(), old, "{}", small.name);
        let again = Model::new(old, small.model.params.clone()).unwrap();
        let text = small.text();
        assert_bits_eq(&logits(&again, &text), &logits(&small.model, &text), small.name);
    }
}
