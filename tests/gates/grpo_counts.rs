//! The work of a step of reinforcement learning, counted: prompts and equal beginnings of a group run once, their pages
//! are shared, and there is no padding.
use std::collections::BTreeSet;

use serde_json::Value;
use xtrain::decode::{Completion, Engine, EngineOptions, KvKind, Request};
use xtrain::model::{Config, Model};
use xtrain::tensor::{Device, Dtype};

use crate::cli::Scratch;
use crate::grpo::{Setup, config, run};

const G: usize = 32;
const NEW_TOKENS: usize = 40;

fn model_config() -> Config {
    Config {
        vocab: 64,
        dim: 16,
        ffn_dim: 24,
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 8,
        max_positions: 640,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    }
}

/// Number of different beginnings of completions, without the completions themselves: the rows of their tokens, if
/// equal beginnings run once. The last token of a completion has no row.
fn beginnings<'a>(completions: impl Iterator<Item = &'a [u32]>) -> usize {
    let of = |tokens: &'a [u32]| (1..tokens.len()).map(move |n| &tokens[..n]);
    completions.flat_map(of).collect::<BTreeSet<_>>().len()
}

/// `G` completions of a prompt of `len` tokens: the rows that run, and the slots of the cache at its peak.
/// Returns the number of rows that ran.
fn group(len: usize, page: usize) -> Result<usize, String> {
    let model = Model::init(&model_config(), Dtype::F32, &Device::cpu(), 0).unwrap();
    let prompt: Vec<u32> = (0..len as u32).map(|i| i * 7 % 64).collect();
    let options = EngineOptions { max_batch: G, kv: KvKind::Paged { page }, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, options).unwrap();
    engine.submit_group(Request::sampled(&prompt, NEW_TOKENS, 1.0, 0), G).unwrap();
    engine.reserve(usize::MAX).unwrap();
    let (reserved, mut peak) = (engine.cache().unwrap().usage().slots, 0);
    let mut finished = Vec::new();
    while !engine.is_idle() {
        engine.step().unwrap();
        finished.extend(engine.take_finished());
        peak = peak.max(engine.cache().unwrap().usage().in_use);
    }
    let (counters, usage) = (engine.counters(), engine.cache().unwrap().usage());
    let differ = |what: String| Err(format!("gate counts, seed 0: {len} tokens, page {page}: {what}"));
    if counters.prefill_rows != len as u64 {
        return differ(format!("expected {len} prompt rows, found {}", counters.prefill_rows));
    }
    let rows = beginnings(finished.iter().map(|completion| &completion.tokens[..]));
    let found = (counters.layer_rows - counters.prefill_rows) as usize;
    if found != rows {
        return differ(format!("expected {rows} rows of new tokens, found {found}"));
    }
    // A page is shared by all completions with the same tokens up to its end. The last token of a completion has no row.
    let end = len + NEW_TOKENS - 1;
    let shared = |page_end: usize| {
        let tokens = |c: &Completion| c.tokens[..page_end.min(end).saturating_sub(len)].to_vec();
        finished.iter().map(tokens).collect::<BTreeSet<_>>().len()
    };
    let want: usize = (1..=end.div_ceil(page)).map(|n| shared(n * page) * page).sum();
    if peak != want {
        return differ(format!("expected {want} slots, found {peak}"));
    }
    let needed = len + G * (NEW_TOKENS - 1);
    if len.is_multiple_of(page) && peak > needed + G * page {
        return differ(format!("expected {needed} slots and at most a page per sequence, found {peak}"));
    }
    let pages = |positions: usize| positions.div_ceil(page) - len / page;
    if usage.slots != reserved || reserved != (len / page + G * pages(len + NEW_TOKENS)) * page {
        return differ(format!("{reserved} slots reserved, {peak} used, {} at the end", usage.slots));
    }
    Ok(counters.layer_rows as usize)
}

/// The prompt of a group runs once, and its pages are shared.
pub(crate) fn groups() -> Result<usize, String> {
    [(512, 64), (500, 64), (512, 16), (33, 5)].into_iter().map(|(len, page)| group(len, page)).sum()
}

/// The backward pass has a row for each token of a prompt and for each different beginning of its completions. Groups
/// without weights have none. Returns the number of rows.
pub(crate) fn rows() -> Result<usize, String> {
    let short = ["grpo.num_generations=2", "grpo.max_completion_length=2", "grpo.top_k=2"];
    Ok(rows_of("rows", &[])? + rows_of("short", &short)?)
}

fn rows_of(name: &str, keys: &[&str]) -> Result<usize, String> {
    let dir = Scratch::new(name);
    let config = config(&[&["grpo.eval_every=0"], keys].concat());
    run(&config, &Setup::threads(1), &dir.0).map_err(|e| e.to_string())?;
    let lines = |path: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(dir.0.join(path)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut total = 0;
    for step in lines("metrics.jsonl").iter().filter(|step| step["step"] != 0) {
        let number = step["step"].as_u64().unwrap();
        let completions = lines(&format!("rollouts/step_{number:06}.jsonl"));
        let ids = |line: &Value| -> Vec<u32> {
            let ids = line["completion_ids"].as_array().unwrap();
            ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let mut want = 0;
        for group in completions.chunk_by(|a, b| a["group"] == b["group"]) {
            if group.iter().any(|line| line["advantage"].as_f64().unwrap() != 0.0) {
                let completions: Vec<Vec<u32>> = group.iter().map(ids).collect();
                let prompt = group[0]["prompt_ids"].as_array().unwrap().len();
                want += prompt + beginnings(completions.iter().map(Vec::as_slice));
            }
        }
        let found = step["trained_rows"].as_f64().unwrap() as usize;
        if found != want {
            return Err(format!("gate counts, seed 0: step {number}: expected {want} rows, found {found}"));
        }
        total += found;
    }
    Ok(total)
}

#[test]
fn the_prompt_and_equal_beginnings_of_a_group_run_once_and_pages_are_shared() {
    assert!(groups().unwrap() > 4 * 500);
}

#[test]
fn the_update_processes_no_padding() {
    assert!(rows().unwrap() > 300);
}

#[cfg(feature = "faults")]
#[test]
fn the_counts_find_rows_that_are_not_shared_and_rows_without_weight() {
    use xtrain::tensor::faults::{self, Fault};

    let shared = faults::with(Fault::GroupPromptNotShared, groups).unwrap_err();
    assert!(shared.contains("expected 512 prompt rows, found 16384"), "{shared}");
    let apart = faults::with(Fault::EqualSequencesComputedApart, groups).unwrap_err();
    assert!(apart.contains("rows of new tokens, found 1248"), "{apart}");
    let zeros = faults::with(Fault::ZeroWeightsTrained, rows).unwrap_err();
    assert!(zeros.contains("rows, found "), "{zeros}");
}

#[test]
fn a_finished_row_leaves_the_batch() {
    let model = Model::init(&model_config(), Dtype::F32, &Device::cpu(), 0).unwrap();
    // 80 % of the lengths are in the first fifth of the range up to 256
    let lengths: Vec<usize> = (0..64).map(|i| if i % 5 == 4 { 256 - i } else { 1 + 13 * i % 51 }).collect();
    let rows = |lengths: &[usize]| {
        let options = EngineOptions { max_batch: lengths.len(), ..EngineOptions::default() };
        let mut engine = Engine::new(&model, options).unwrap();
        for (id, &max_new) in lengths.iter().enumerate() {
            let request = Request { id: id as u64, ..Request::sampled(&[1, 2, 3, 4], max_new, 1.0, 0) };
            engine.submit(request).unwrap();
        }
        engine.run().unwrap();
        assert_eq!(engine.counters().surplus_rows, 0);
        engine.counters().layer_rows as usize
    };
    let (retired, full) = (rows(&lengths), rows(&[256; 64]));
    assert_eq!(retired, lengths.iter().map(|n| 4 + n - 1).sum::<usize>());
    println!("rows: {retired} if finished rows leave, {full} otherwise");
    assert!(full >= 2 * retired);
}
