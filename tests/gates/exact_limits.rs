//! Limits that are met exactly: what has exactly the size of a limit is inside it.
use xtrain::config::{Packing, TaskKind};
use xtrain::decode::{EngineOptions, FinishReason, KvKind, Request, SampleOptions, generate, generate_naive};
use xtrain::model::data::{Role, Tokens};
use xtrain::model::export::{self, ExportSource};
use xtrain::model::gguf::Quant;
use xtrain::model::{Config, Model, hf};
use xtrain::tensor::{Device, Dtype, RopeScaling};
use xtrain::training::WindowSpec;

use crate::cli::Scratch;

/// `train.eval_tokens`: the windows of an evaluation have at most this number of predictions, but at least one document
/// is evaluated.
pub(crate) fn evaluation() -> Result<usize, String> {
    let lengths = [5u64, 4, 7, 2, 6];
    let document = |&length: &u64| (0..length as u32).map(|id| (id, Role::Target));
    let tokens = Tokens::from_documents(lengths.iter().map(document), 16).unwrap();
    let spec = WindowSpec { context: 8, packing: Packing::Documents, task: TaskKind::Lm };
    let all: usize = lengths.iter().map(|&length| length as usize - 1).sum();
    for limit in 1..=all {
        let mut predictions = 0;
        let within = |&&length: &&u64| {
            predictions += length as usize - 1;
            predictions <= limit
        };
        let want = lengths.iter().take_while(within).count().max(1);
        let found = spec.evaluation(&tokens, 0..tokens.len(), limit).unwrap().len();
        if found != want {
            return Err(format!(
                "gate exact limits, seed 0: documents of {lengths:?} tokens, {limit} predictions: expected {want} \
                 windows, found {found}"
            ));
        }
    }
    Ok(all)
}

fn config() -> Config {
    Config { max_positions: 24, ..Config::tiny() }
}

/// A file of weights that has exactly the maximum size is not split.
pub(crate) fn shards() -> Result<usize, String> {
    let model = Model::init(&config(), Dtype::F32, &Device::cpu(), 3).unwrap();
    let sizes: Vec<u64> =
        model.params.iter().map(|p| 4 * p.shape().iter().product::<usize>() as u64).collect();
    let source = ExportSource { model: &model, tokenizer: None, eos: &[] };
    let scratch = Scratch::new("exact-shards");
    let whole: u64 = sizes.iter().sum();
    // the first tensors and no byte more, and all tensors
    let first: u64 = sizes.iter().take(4).sum();
    for (n, (max, want)) in [(first, 4), (first - 1, 3), (whole, sizes.len()), (whole - 1, sizes.len() - 1)]
        .into_iter()
        .enumerate()
    {
        let out = scratch.0.join(format!("model{n}"));
        export::huggingface(&out, &source, Quant::F32, max).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(&out).unwrap().map(|file| file.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|e| e == "safetensors"));
        files.sort();
        let bytes = std::fs::read(&files[0]).unwrap();
        let found = safetensors::SafeTensors::deserialize(&bytes).unwrap().len();
        if found != want {
            return Err(format!(
                "gate exact limits, seed 3: at most {max} bytes in a file: expected the first {want} of {} tensors in \
                 {}, found {found}",
                sizes.len(),
                files[0].file_name().unwrap().display()
            ));
        }
    }
    Ok(sizes.len())
}

/// A completion whose last token has the maximum number of new tokens and fills the context ends by its length.
pub(crate) fn lengths() -> Result<usize, String> {
    let (cfg, mut checked) = (config(), 0);
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 5).unwrap();
    for prompt in [1, 9, 22] {
        let room = cfg.max_positions - prompt;
        for (max_new, want) in [(room, FinishReason::Length), (room + 1, FinishReason::Context)] {
            let options = SampleOptions::default();
            let request = Request { options, ..Request::sampled(&vec![7; prompt], max_new, 1.0, 5) };
            let naive = generate_naive(&model, &request).unwrap();
            let mut all = vec![("naive".to_string(), naive)];
            for kv in [KvKind::Off, KvKind::Growing, KvKind::Contiguous, KvKind::Paged { page: 4 }] {
                let options = EngineOptions { kv, ..EngineOptions::default() };
                let found = generate(&model, vec![request.clone()], options).unwrap().remove(0);
                all.push((kv.to_string(), found));
            }
            for (what, found) in all {
                if (found.tokens.len(), found.finish_reason) != (room, want) {
                    return Err(format!(
                        "gate exact limits, seed 5: {what}, a prompt of {prompt} tokens of {}, at most {max_new} new \
                         ones: expected {room} tokens and {want}, found {} and {}",
                        cfg.max_positions,
                        found.tokens.len(),
                        found.finish_reason
                    ));
                }
                checked += 1;
            }
        }
    }
    Ok(checked)
}

/// A table of RoPE divisors has at most one for each pair of the largest head, which has 256 values.
pub(crate) fn divisors() -> Result<usize, String> {
    for (pairs, want) in [(1, true), (127, true), (128, true), (129, false)] {
        let table: Vec<f32> = (0..pairs).map(|i| 1.0 + i as f32 / 3.0).collect();
        let rope_scaling = RopeScaling::Divisors(table.clone());
        let cfg = Config { head_dim: 2 * pairs, rope_scaling: rope_scaling.clone(), ..config() };
        let found = hf::to_json(&cfg, &[]).and_then(|json| hf::from_json(&json));
        let same = found.as_ref().is_ok_and(|found| found.rope_scaling == rope_scaling);
        if same != want || found.is_ok() != want {
            let found = found.map_or_else(|error| error.to_string(), |_| "a config".into());
            return Err(format!(
                "gate exact limits, seed 0: {pairs} divisors: expected {}, found {found}",
                if want { "the same ones" } else { "an error" },
            ));
        }
    }
    Ok(4)
}

#[test]
fn a_table_of_divisors_for_the_largest_head_is_read_again() {
    divisors().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn an_evaluation_has_the_windows_that_fit_its_limit_exactly() {
    evaluation().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_file_of_exactly_the_maximum_size_is_not_split() {
    shards().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_completion_of_the_maximum_length_that_fills_the_context_ends_by_its_length() {
    lengths().unwrap_or_else(|e| panic!("{e}"));
}
