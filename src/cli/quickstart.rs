//! `xtrain quickstart`: trains and verifies a small model on generated data.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;

use super::common::{CacheFlags, Common, Seed};
use super::interrupt::Interrupt;
use super::job::{self, Job};
use super::memory_check::require_training;
use super::paths::make_absolute;
use super::{CliError, out, preflight, source, train, verify};
use crate::config::{Layer, Resolved};
use crate::decode::{EngineOptions, Request, StopConditions, generate};
use crate::model::Model;
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::data::{DocumentSink as _, Role, TokenWriter};
use crate::model::store::RunState;
use crate::model::tasks::{Corpus, Mix, PromptSet, Sums, Task};
use crate::model::tokenizer::Tokenizer;
use crate::report::{printable, units};
use crate::run::{DataRecord, RunDir};
use crate::training::{self, DataLoader};

/// The configuration, unless `--set` changes it.
const CONFIG: &str = include_str!("../../configs/quickstart.toml");

/// Four of five lines are sums.
const MIX: Mix = Mix { sums: 4, sentences: 1 };

/// Size of the corpus in tokens, more than training reads.
const TOKENS: u64 = 2_000_000;

/// File name of the corpus in the run directory.
const CORPUS: &str = "corpus.tok";

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Generates a corpus of sums and short sentences, trains on it, evaluates the model on held-out sums, generates eight \
completions in one batch, and verifies that all logits, tokens and log-probabilities are bitwise equal to those of \
the training forward pass.

Examples:
  xtrain quickstart
  xtrain quickstart --seed 1 --threads 1")]
pub(super) struct QuickstartArgs {
    /// Directory of the new run.
    #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
    run: PathBuf,
    /// Override one configuration key, for example train.steps=500; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    cache: CacheFlags,
}

pub(super) fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    let start = Instant::now();
    let device = args.common.open()?;
    let interrupt = Interrupt::install()?;
    let resolved = resolved(args)?;
    let text = resolved.to_toml();
    let config = resolved.config;
    config.require_validation()?;
    let tokenizer = Tokenizer::byte();
    preflight::check(&config, &tokenizer)?;
    require_training(&config, tokenizer.vocab_size(), &device)?;
    let trainer = training::new_trainer(&config, tokenizer.vocab_size(), &device)?;
    let run = RunDir::create(&args.run, &text)?;
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
    write_corpus(&args.run.join(CORPUS), &tokenizer, config.train.seed)?;
    let source = source::open(&config)?;
    run.write_data(&DataRecord::of(&config, &source.tokens, &source.tokenizer)?)?;
    let state = RunState { seed: config.train.seed, best: None };
    let loader = DataLoader::new(&config, &source, config.train.seed)?;
    let mut job = Job { config, source, loader, checkpoints, run, trainer, state, last_saved: None };
    job::run_training(&mut job, interrupt, args.cache.engine())?;

    let (model, tokenizer) = (&job.trainer.model, &job.source.tokenizer);
    out::print(evaluate_sums(model, tokenizer, args.cache.engine())?)?;
    let (requests, text) = generate_group(model, tokenizer, job.config.train.seed, args.cache.engine())?;
    out::print(text)?;
    let verdicts = verify::check(model, &requests, &verify::requested(&args.common, &args.cache))?;
    out::print(format!("\n{}", verify::table(&verdicts)))?;
    let path = job.run.path().display();
    out::print(format!(
        "Finished in {}. Next steps:\n  \
         xtrain generate {path} --prompt 12+34= --temperature 0\n  \
         xtrain plot {path}\n  \
         xtrain verify {path}\n",
        units::duration(start.elapsed()),
    ))?;
    verify::conclude(&verdicts)
}

fn resolved(args: &QuickstartArgs) -> Result<Resolved, CliError> {
    let corpus = args.run.join(CORPUS);
    let mut layers = vec![
        Layer::BuiltIn { name: "quickstart", text: CONFIG },
        Layer::string("--run", "data.files", corpus.to_string_lossy()),
    ];
    layers.extend(args.set.iter().cloned().map(Layer::Set));
    layers.extend(train::flag_layers(args.seed.seed, args.common.dtype));
    let mut resolved = Resolved::load(&layers)?;
    make_absolute(&mut resolved.config)?;
    Ok(resolved)
}

/// Writes the corpus to the run directory, so that the run can be resumed like any other.
fn write_corpus(path: &Path, tokenizer: &Tokenizer, seed: u64) -> Result<(), CliError> {
    let mut writer = TokenWriter::create(path, tokenizer)?;
    for document in Corpus::new(seed, MIX)?.documents() {
        if writer.count() >= TOKENS {
            break;
        }
        writer.push(&tokenizer.encode_with_bos(&document)?, Role::Target)?;
        writer.end_document()?;
    }
    Ok(writer.finish()?)
}

/// The accuracy on held-out sums and a few of the answers, as text.
fn evaluate_sums(model: &Model, tokenizer: &Tokenizer, engine: EngineOptions) -> Result<String, CliError> {
    let sums = Sums::default();
    let prompts: Vec<String> = sums.prompts(PromptSet::HeldOut);
    let mut requests = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
        let ids = tokenizer.encode_with_bos(prompt)?;
        requests.push(Request { stop, ..Request::greedy(&ids, Sums::ANSWER_LEN + 1) });
    }
    let completions = generate(model, requests, EngineOptions { max_batch: 64, ..engine })?;
    let (mut correct, mut examples) = (0, String::new());
    for (i, (prompt, completion)) in prompts.iter().zip(&completions).enumerate() {
        let text = completion.text(tokenizer);
        let is_correct = sums.check(prompt, &text);
        correct += usize::from(is_correct);
        if i % (prompts.len() / 6).max(1) == 0 {
            let verdict = if is_correct { "correct" } else { "wrong" };
            examples += &format!("  {prompt}{}  {verdict}\n", printable(&text));
        }
    }
    let accuracy = 100.0 * correct as f64 / prompts.len().max(1) as f64;
    Ok(format!("\nHeld-out sums: {correct} of {} correct ({accuracy:.1} %)\n{examples}", prompts.len()))
}

/// Generates eight completions of one prompt in one batch. Returns their requests and their text.
fn generate_group(
    model: &Model,
    tokenizer: &Tokenizer,
    seed: u64,
    engine: EngineOptions,
) -> Result<(Vec<Request>, String), CliError> {
    let prompt = "The ";
    let ids = tokenizer.encode_with_bos(prompt)?;
    let request = |id| {
        let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
        Request { id, stop, ..Request::sampled(&ids, 48, 0.8, seed) }
    };
    let requests: Vec<Request> = (0..8).map(request).collect();
    let mut text = format!("\nEight completions of {prompt:?} in one batch:\n");
    for completion in generate(model, requests.clone(), engine)? {
        text += &format!("  {prompt}{}\n", printable(&completion.text(tokenizer)));
    }
    Ok((requests, text))
}
