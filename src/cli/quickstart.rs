//! `xtrain quickstart`: the whole job, on a corpus of its own.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use toml::Value;

use super::common::{CacheFlags, Common, Seed};
use super::interrupt::Interrupt;
use super::job::{self, Job};
use super::{CliError, out, source, train, verify};
use crate::config::{Layer, RunConfig};
use crate::decode::{EngineOptions, Request, StopConditions, generate};
use crate::model::Model;
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::data::{Role, TokenWriter};
use crate::model::store::RunState;
use crate::model::tasks::{Corpus, Mix, PromptSet, Sums, Task};
use crate::model::tokenizer::Tokenizer;
use crate::report::{printable, units};
use crate::run::RunDir;
use crate::training::{self, Reading};

/// What is trained, unless `--set` says otherwise.
const CONFIG: &str = include_str!("../../configs/quickstart.toml");

/// Four lines of five are sums.
const MIX: Mix = Mix { sums: 4, sentences: 1 };

/// Tokens of the corpus: more than training reads.
const TOKENS: u64 = 2_000_000;

/// Where the corpus lies in the run.
const CORPUS: &str = "corpus.tok";

/// Flags of `xtrain quickstart`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Makes a corpus of sums and small sentences, trains on it, answers sums it has not seen, rolls out eight \
completions in one batch, and compares every number with the training forward's.

Examples:
  xtrain quickstart
  xtrain quickstart --seed 1 --threads 1")]
pub struct QuickstartArgs {
    /// Directory of the run.
    #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
    pub run: PathBuf,
    /// Sets one key of the configuration, as train.steps=500.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// Trains, samples, rolls out, verifies.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    let began = Instant::now();
    let device = args.common.open()?;
    let interrupt = Interrupt::install()?;
    let config = config(args)?;
    let tokenizer = Tokenizer::byte();
    let trainer = training::begin(&config, tokenizer.vocab_size(), &device)?;
    let run = RunDir::create(&args.run, &config)?;
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
    write_corpus(&args.run.join(CORPUS), &tokenizer, config.train.seed)?;
    let source = source::open(&config)?;
    run.write_data(&source::record(&config, &source)?)?;
    let standing = RunState { seed: config.train.seed, best: None };
    let reading = Reading::new(&config, &source, config.train.seed)?;
    let mut job = Job { config, source, reading, checkpoints, run, trainer, standing, last_saved: None };
    job::go(&mut job, interrupt, args.cache.engine())?;

    let (model, tokenizer) = (&job.trainer.model, &job.source.tokenizer);
    out::print(answers(model, tokenizer, args.cache.engine())?)?;
    let group = group(model, tokenizer, (job.config.train.seed, args.cache.engine()))?;
    out::print(group.text)?;
    let verdicts = verify::check(model, &group.requests, &verify::asked(&args.common, &args.cache))?;
    out::print(format!("\n{}", verify::table(&verdicts)))?;
    let path = job.run.path().display();
    out::print(format!(
        "Done in {}. Next: xtrain generate {path} --prompt 12+34= ; xtrain plot {path} ; xtrain verify {path}\n",
        units::duration(began.elapsed()),
    ))?;
    verify::conclude(&verdicts)
}

fn config(args: &QuickstartArgs) -> Result<RunConfig, CliError> {
    let mut layers = vec![Layer::BuiltIn { name: "quickstart", text: CONFIG }];
    let file = Value::String(args.run.join(CORPUS).to_string_lossy().into_owned());
    layers.push(Layer::Flag { flag: "--run", key: "data.files", value: Value::Array(vec![file]) });
    layers.extend(args.set.iter().cloned().map(Layer::Set));
    layers.extend(train::flag_layers(args.seed.seed, args.common.dtype));
    Ok(RunConfig::load(&layers)?)
}

/// Packs the corpus into the run's directory, so that the run can be resumed like any other.
fn write_corpus(path: &Path, tokenizer: &Tokenizer, seed: u64) -> Result<(), CliError> {
    let mut writer = TokenWriter::create(path, tokenizer)?;
    for document in Corpus::new(seed, MIX)?.documents() {
        if writer.count() >= TOKENS {
            break;
        }
        writer.push(&tokenizer.encode(&document)?, Role::Target)?;
        writer.end_document()?;
    }
    Ok(writer.finish()?)
}

/// How many of the held-out sums the model answers, and a few of its answers.
fn answers(model: &Model, tokenizer: &Tokenizer, engine: EngineOptions) -> Result<String, CliError> {
    let sums = Sums::default();
    let prompts: Vec<String> = sums.prompts(PromptSet::HeldOut);
    let mut requests = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
        let ids = tokenizer.encode(prompt)?;
        requests.push(Request { stop, ..Request::greedy(&ids, Sums::ANSWER_LEN + 1) });
    }
    let mut completions = generate(model, requests, EngineOptions { max_batch: 64, ..engine })?;
    completions.sort_by_key(|c| c.index);
    let (mut right, mut shown) = (0, String::new());
    for (i, (prompt, completion)) in prompts.iter().zip(&completions).enumerate() {
        let text = completion.text(tokenizer);
        let good = sums.check(prompt, &text);
        right += usize::from(good);
        if i % (prompts.len() / 6).max(1) == 0 {
            shown += &format!("  {prompt}{}  {}\n", printable(&text), if good { "right" } else { "wrong" });
        }
    }
    let share = 100.0 * right as f64 / prompts.len().max(1) as f64;
    Ok(format!(
        "\nSums that were never trained on: {right} of {} right ({share:.1} %)\n{shown}",
        prompts.len()
    ))
}

/// Eight completions of one prompt.
struct Group {
    requests: Vec<Request>,
    text: String,
}

/// Rolls eight completions of one prompt out in one batch.
fn group(
    model: &Model,
    tokenizer: &Tokenizer,
    (seed, engine): (u64, EngineOptions),
) -> Result<Group, CliError> {
    let prompt = "The ";
    let ids = tokenizer.encode(prompt)?;
    let request = |id| {
        let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
        Request { id, stop, ..Request::sampled(&ids, 48, 0.8, seed) }
    };
    let requests: Vec<Request> = (0..8).map(request).collect();
    let mut completions = generate(model, requests.clone(), engine)?;
    completions.sort_by_key(|c| c.index);
    let mut text = format!("\nEight completions of {prompt:?}, one batch:\n");
    for completion in completions {
        text += &format!("  {prompt}{}\n", printable(&completion.text(tokenizer)));
    }
    Ok(Group { requests, text })
}
