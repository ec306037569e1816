//! Runs whose completions match a regular expression or a schema: the update keeps the tokens that the sampler kept.
use xtrain::config::{GrpoSection, Layer, RunConfig};
use xtrain::decode::{EngineOptions, KvKind};
use xtrain::grammar::{Grammars, Language};
use xtrain::grpo::constraint::RolloutConstraint;
use xtrain::model::tokenizer::Tokenizer;
use xtrain::tensor::{Device, Simd};

use super::{Scratch, Setup, assert_equal, config, files, run};

/// The constraint of a section.
pub(super) fn of(section: &GrpoSection, tokenizer: &Tokenizer, vocab: usize) -> Option<RolloutConstraint> {
    let language = match (&*section.regex, &*section.json_schema) {
        ("", "") => return None,
        (regex, "") => Language::Regex(regex.to_string()),
        (_, schema) => Language::json_schema(schema).unwrap(),
    };
    let shared = Grammars::new(tokenizer, vocab).unwrap().constraint(&language).unwrap();
    Some(RolloutConstraint { language, shared })
}

/// The texts of the completions of a run.
fn texts(dir: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(dir.0.join("rollouts")).unwrap();
    let lines = entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let lines: Vec<String> =
        lines.flat_map(|text| text.lines().map(String::from).collect::<Vec<_>>()).collect();
    let text = |line: &String| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let cut = line["truncated"] == true;
        (!cut).then(|| line["completion"].as_str().unwrap().to_string())
    };
    lines.iter().filter_map(text).collect()
}

const REGEX: &str = "grpo.regex=[0-9]{1,3}( [a-f]*)?";

/// Three steps under a constraint. Returns the number of compared tokens.
fn three_steps(name: &str, keys: &[&str], setup: &Setup) -> Result<(usize, Vec<String>), String> {
    let dir = Scratch::new(name);
    let keys = [&["grpo.steps=4", "grpo.eval_every=2", "grpo.temperature=1.3"], keys].concat();
    let compared = run(&config(&keys), setup, &dir.0);
    let compared = compared.map_err(|error| format!("gate grpo, seed 0, {keys:?}: {error}"))?;
    Ok((compared.tokens as usize, texts(&dir)))
}

/// The comparison of steps under a constraint.
pub(crate) fn steps() -> Result<usize, String> {
    let engine = EngineOptions { kv: KvKind::Paged { page: 4 }, ..EngineOptions::default() };
    let setup = Setup { engine, ..Setup::threads(2) };
    let mut tokens = 0;
    let passes: [&[&str]; 5] = [
        &[],
        &["grpo.num_iterations=2"],
        &["grpo.beta=0.05", "grpo.prompt_sharing=1"],
        &["grpo.num_iterations=2", "grpo.importance_sampling_level=sequence", "train.dtype=bf16"],
        &["grpo.verify_every=1", "grpo.entropy_coef=0.01"],
    ];
    for keys in passes {
        let (compared, texts) = three_steps("constraint", &[&[REGEX], keys].concat(), &setup)?;
        tokens += compared;
        let matches = |text: &String| {
            let (digits, rest) = text.split_once(' ').map_or((&**text, ""), |(digits, rest)| (digits, rest));
            (1..=3).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && rest.bytes().all(|byte| (b'a'..=b'f').contains(&byte))
        };
        match texts.iter().find(|text| !matches(text)) {
            Some(text) => return Err(format!("gate grpo, seed 0, {keys:?}: completion {text:?}")),
            None if texts.is_empty() => return Err("gate grpo, seed 0: no completion has ended".to_string()),
            None => {}
        }
    }
    let schema = "grpo.json_schema={\"enum\": [1, 22, \"a\", null, [true]]}";
    let (compared, texts) = three_steps("schema", &[schema], &setup)?;
    let valid = ["1", "22", "\"a\"", "null"];
    match texts.iter().find(|text| !valid.contains(&&***text) && !text.starts_with('[')) {
        Some(text) => Err(format!("gate grpo, seed 0, {schema}: completion {text:?}")),
        None => Ok(tokens + compared),
    }
}

#[test]
fn the_update_keeps_the_tokens_that_the_constraint_allows() {
    let tokens = steps().unwrap_or_else(|e| panic!("{e}"));
    assert!(tokens > 500, "{tokens} tokens were compared");
}

#[test]
fn a_run_with_a_constraint_does_not_depend_on_threads_and_interruptions() {
    let outcome = |name: &str, setup: &Setup, keys: &[&str]| {
        let dir = Scratch::new(name);
        run(&config(&[&[REGEX], keys].concat()), setup, &dir.0).unwrap();
        files(&dir.0)
    };
    let want = outcome("whole", &Setup::threads(2), &[]);
    let stopped = Setup { stops: vec![2], ..Setup::threads(1) };
    assert_equal("one thread, stopped after step 2", &want, &outcome("stopped", &stopped, &[]));
    let engine = EngineOptions { kv: KvKind::Off, max_batch: 3, ..EngineOptions::default() };
    let other = Setup { engine, ..Setup::on(Device::cpu_with(2, Simd::detect())) };
    assert_equal("no cache", &want, &outcome("no-cache", &other, &["grpo.micro_batch=3"]));
}

#[test]
fn a_constraint_cannot_be_combined_with_filters() {
    let error = |keys: &[&str]| {
        let base = ["grpo.task=sums", "grpo.regex=[0-9]+"];
        let layers: Vec<Layer> = base.iter().chain(keys).map(|key| Layer::Set(key.to_string())).collect();
        RunConfig::load(&layers).unwrap_err().to_string()
    };
    let found = error(&["grpo.top_p=0.9"]);
    assert!(found.contains("`grpo.top_p` = 0.9: expected 1 with grpo.regex"), "{found}");
    let found = error(&["grpo.json_schema={}"]);
    assert!(found.contains("grpo.json_schema") && found.contains("no schema with grpo.regex"), "{found}");
}
