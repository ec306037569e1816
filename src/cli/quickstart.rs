//! `xtrain quickstart`: trains and verifies a small model on generated data.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;

use super::cache_flags::ExactCacheFlags;
use super::common::{Common, Seed};
use super::exit::shell_word;
use super::follower::Follower;
use super::interrupt::Interrupt;
use super::job::{self, Job};
use super::loaded::{self, Loaded};
use super::memory_check::require_training;
use super::paths::make_absolute;
use super::{CliError, Exit, out, preflight, source, train, verify};
use crate::config::{self, KeyDifference, Layer, Resolved};
use crate::decode::{EngineOptions, Request, StopConditions, generate};
use crate::model::Model;
use crate::model::checkpoint::{CheckpointDir, RealFs, step_path};
use crate::model::comm::SingleProcess;
use crate::model::data::{DocumentSink as _, Role, TokenWriter};
use crate::model::store::RunState;
use crate::model::tasks::{Corpus, Mix, PromptSet, Sums, Task};
use crate::model::tokenizer::Tokenizer;
use crate::report::{printable, units};
use crate::run::{RunDir, has_checkpoint};
use crate::tensor::faults::{self, Fault};
use crate::training;

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
the training forward pass. If DIR holds a run of quickstart that is finished, no model is trained: the evaluation, the \
completions and the verification are repeated with it.

Examples:
  xtrain quickstart
  xtrain quickstart --run runs/seed-1 --seed 1 --threads 1")]
pub(super) struct QuickstartArgs {
    /// Directory of the run.
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
    cache: ExactCacheFlags,
}

pub(super) fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    let start = Instant::now();
    if let Some(loaded) = finished(args)? {
        eprintln!("{} is finished; showing its results again", args.run.display());
        let tokenizer = loaded.require_tokenizer("quickstart", "use another directory: --run DIR")?;
        let seed = loaded.config.as_ref().map_or(0, |config| config.train.seed);
        return demonstrate(
            args,
            Trained { model: &loaded.model, tokenizer, seed, path: &loaded.path },
            start,
        );
    }
    let device = args.common.open()?;
    let interrupt = Interrupt::install()?;
    let resolved = resolved(args)?;
    let text = resolved.to_toml();
    let config = resolved.config;
    config.require_validation()?;
    if !config.train.init.is_empty() {
        let message =
            format!("`train.init` = {:?}: quickstart trains from random weights", config.train.init);
        return Err(
            CliError::new(Exit::Usage, message).hint("to train from a model: xtrain train --init MODEL")
        );
    }
    let tokenizer = Tokenizer::byte();
    preflight::check(&config, &tokenizer)?;
    preflight::warn_of_steps(&config);
    require_training(&config, tokenizer.vocab_size(), &device, 1)?;
    let trainer = training::new_trainer(&config, tokenizer.vocab_size(), &device)?;
    let run = RunDir::create(&args.run, &text)?;
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
    write_corpus(&args.run.join(CORPUS), &tokenizer, config.train.seed)?;
    let source = source::open(&config)?;
    run.write_data(&source::record(&config, &source)?)?;
    let state = RunState { seed: config.train.seed, best: None };
    let loader = source::loader(&config, &source, config.train.seed)?;
    let mut job = Job::new(Follower { config, source, loader, trainer, state }, run, checkpoints, None);
    job::run_training(&mut job, interrupt, args.cache.engine())?;

    let (model, tokenizer) = (&job.trainer.model, &job.source.tokenizer);
    let seed = job.config.train.seed;
    demonstrate(args, Trained { model, tokenizer, seed, path: job.run.path() }, start)
}

/// A trained model.
#[derive(Debug, Clone, Copy)]
struct Trained<'a> {
    model: &'a Model,
    tokenizer: &'a Tokenizer,
    seed: u64,
    /// Its run.
    path: &'a Path,
}

/// The model of `--run` if it is a run that has all of its steps. `None`: there is no run.
///
/// # Errors
/// The run is another one, it is not finished, its last checkpoint is damaged, or it has other settings than the flags.
fn finished(args: &QuickstartArgs) -> Result<Option<Loaded>, CliError> {
    let file = args.run.join("config.toml");
    if !has_checkpoint(&args.run) || !file.is_file() {
        return Ok(None);
    }
    let stored = Resolved::load(&[Layer::File(file)])?;
    let has_corpus = |name: &String| Path::new(name).file_name().is_some_and(|name| name == CORPUS);
    let is_other = !stored.config.data.files.iter().any(has_corpus);
    if is_other && !faults::on(Fault::OtherRunShownByQuickstart) {
        let message =
            format!("{}: expected a run of xtrain quickstart, found another run", args.run.display());
        return Err(CliError::new(Exit::Usage, message).hint("to use another directory: --run DIR"));
    }
    let wanted = stored.changed(&flags(args))?;
    let record = config::record(&stored.config);
    if let Some(KeyDifference { key, recorded, found }) =
        config::differences("config.toml", &record, &wanted.config)?.first()
    {
        let path = args.run.display();
        let message = format!("{path}: expected a run with `{key}` = {found}, found {recorded}");
        return Err(CliError::new(Exit::Usage, message).hint("to use another directory: --run DIR"));
    }
    if !step_path(&args.run, stored.config.train.steps as u64).is_dir() {
        let message = format!("{}: the run is not finished", args.run.display());
        let word = shell_word(&args.run);
        return Err(CliError::new(Exit::Usage, message).hint(format!(
            "to finish it: xtrain train --resume {word}; then this command shows its results; to use another \
             directory: --run DIR"
        )));
    }
    let loaded = loaded::open_with_master_weights(&args.run, &args.common)?;
    let resume = format!("to repeat the steps after it: xtrain train --resume {}", shell_word(&args.run));
    loaded::require_newest(&loaded.refused, &loaded.checkpoint, "shown")
        .map_err(|error| error.hint(resume))?;
    Ok(Some(loaded))
}

/// Evaluates the model on held-out sums, generates completions, and verifies them.
fn demonstrate(args: &QuickstartArgs, trained: Trained<'_>, start: Instant) -> Result<(), CliError> {
    let Trained { model, tokenizer, seed, path } = trained;
    out::print(evaluate_sums(model, tokenizer, args.cache.engine())?)?;
    let (requests, text) = generate_group(model, tokenizer, seed, args.cache.engine())?;
    out::print(text)?;
    let verdicts =
        verify::check(model, &requests, &verify::requested(&args.common, &args.cache), &SingleProcess)?;
    let rows = verify::rows(&verdicts);
    let path = shell_word(path);
    let text = format!(
        "\n{}Finished in {}. Next steps:\n  \
         xtrain generate {path} --prompt 12+34= --temperature 0\n  \
         xtrain plot {path}\n  \
         xtrain verify {path}\n",
        verify::table(&rows),
        units::duration(start.elapsed()),
    );
    out::print_verdict(text, verify::conclude(&rows, &SingleProcess))
}

fn resolved(args: &QuickstartArgs) -> Result<Resolved, CliError> {
    let corpus = args.run.join(CORPUS);
    let mut layers = vec![
        Layer::BuiltIn { name: "quickstart", text: CONFIG },
        Layer::string("--run", "data.files", corpus.to_string_lossy()),
    ];
    layers.extend(flags(args));
    let mut resolved = Resolved::load(&layers)?;
    source::require_validation_files(&resolved.config)?;
    make_absolute(&mut resolved.config)?;
    Ok(resolved)
}

/// The flags that set keys.
fn flags(args: &QuickstartArgs) -> Vec<Layer> {
    let set = args.set.iter().cloned().map(Layer::Set);
    set.chain(train::flag_layers(args.seed.seed, args.common.dtype)).collect()
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
    let texts: Vec<String> = completions.iter().map(|completion| completion.text(tokenizer)).collect();
    Ok(accuracy_of_sums(&sums, &prompts, &texts))
}

/// The accuracy of `texts`, the completions of `prompts`, and examples of them.
fn accuracy_of_sums(sums: &Sums, prompts: &[String], texts: &[String]) -> String {
    let (mut correct, mut examples) = (0, String::new());
    for (i, (prompt, text)) in prompts.iter().zip(texts).enumerate() {
        let is_correct = sums.check(prompt, text);
        correct += usize::from(is_correct);
        if i % (prompts.len() / 6).max(1) == 0 {
            let verdict = if is_correct { "correct" } else { "wrong" };
            examples += &format!("  {prompt}{}  {verdict}\n", printable(text));
        }
    }
    let accuracy = 100.0 * correct as f64 / prompts.len().max(1) as f64;
    format!("\nHeld-out sums: {correct} of {} correct ({accuracy:.1} %)\n{examples}", prompts.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correct_sums_are_counted() {
        let prompts: Vec<String> = (10..22).map(|n| format!("{n}+11=")).collect();
        let mut texts: Vec<String> = (10..22).map(|n| format!("{:03}", n + 11)).collect();
        texts[0] = "999".into();
        texts[3].clear();
        let shown = accuracy_of_sums(&Sums::default(), &prompts, &texts);
        let lines: Vec<&str> = shown.lines().skip(1).collect();
        assert_eq!(
            lines[..3],
            ["Held-out sums: 10 of 12 correct (83.3 %)", "  10+11=999  wrong", "  12+11=023  correct"]
        );
        assert_eq!(lines.len(), 7);
    }
}
