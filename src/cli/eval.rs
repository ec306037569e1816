//! `xtrain eval`: what a model makes of a file.
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::common::{CacheFlags, Common};
use super::loaded::{self, Loaded};
use super::{CliError, Exit, out, source};
use crate::config::{Packing, Task as Learnt};
use crate::decode::{self, EngineOptions, Request, StopConditions};
use crate::evaluate::evaluate;
use crate::model::data::Content;
use crate::model::tasks::{FileTask, PromptSet, Task};
use crate::report::{Column, Table};
use crate::training::{Cut, split};

/// New tokens that an answer may take beyond those of the longest right one.
const SPARE: usize = 8;

/// Completions under way at a time.
const BATCH: usize = 64;

/// Flags of `xtrain eval`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["data", "task"]))]
#[command(after_help = "\
Examples:
  xtrain eval runs/shakespeare --data examples/data/tinyshakespeare.txt --val-fraction 0.1
  xtrain eval runs/quickstart --task sums.jsonl --json")]
pub struct EvalArgs {
    /// A run (its newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file.
    pub model: PathBuf,
    /// Text, JSONL or packed tokens: loss, perplexity, bits per byte.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Reads this share at the end of the tokens alone, as training held it out [default: all].
    #[arg(long, value_name = "SHARE", requires = "data")]
    pub val_fraction: Option<f64>,
    /// JSONL with `prompt` and `answer`: the share of prompts that greedy decoding answers exactly.
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// How --data fills windows [default: as it was trained, else stream].
    #[arg(long, value_name = "PACKING", requires = "data")]
    pub packing: Option<Packing>,
    /// Tokens of a window of --data [default: the context it was trained with, or the model's positions].
    #[arg(long, value_name = "TOKENS", requires = "data")]
    pub context: Option<usize>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Loss>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Accuracy>,
}

#[derive(Serialize)]
struct Loss {
    file: String,
    loss: f64,
    perplexity: f64,
    bits_per_byte: f64,
    tokens: u64,
    bytes: u64,
    context: usize,
    seconds: f64,
}

#[derive(Serialize)]
struct Accuracy {
    name: String,
    accuracy: f64,
    right: usize,
    prompts: usize,
    seconds: f64,
    wrong: Vec<Wrong>,
}

#[derive(Serialize)]
struct Wrong {
    prompt: String,
    answer: String,
    completion: String,
}

/// Measures the model.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &EvalArgs) -> Result<(), CliError> {
    let loaded = loaded::open(&args.model, &args.common)?;
    let report = Report {
        data: args.data.as_deref().map(|file| loss(args, &loaded, file)).transpose()?,
        task: args.task.as_deref().map(|file| accuracy(args, &loaded, file)).transpose()?,
    };
    if args.json { out::print_json(&report) } else { out::print(report.text()) }
}

fn loss(args: &EvalArgs, loaded: &Loaded, file: &Path) -> Result<Loss, CliError> {
    let tokenizer = loaded.tokenizer_for("--data", "put the model's tokenizer.json beside its weights")?;
    let most = loaded.model.config().max_positions;
    let trained = loaded.config.as_ref().map_or(most, |config| config.train.context);
    let context = args.context.unwrap_or(trained);
    if !(1..=most).contains(&context) {
        let message = format!("--context: want 1 to {most}, the model's positions, got {context}");
        return Err(CliError::new(Exit::Usage, message));
    }
    let run = loaded.config.as_ref();
    let cut = Cut {
        context,
        packing: args.packing.or(run.map(|config| config.data.packing)).unwrap_or(Packing::Stream),
        task: run.map_or(Learnt::Lm, |config| config.train.task),
    };
    let tokens = source::tokens(&[file.to_path_buf()], tokenizer, Content::Any)?;
    let part = match args.val_fraction {
        Some(share) if share > 0.0 && share <= 1.0 => split(&tokens, cut.task, share)?.validation,
        Some(_) => {
            return Err(CliError::new(Exit::Usage, "--val-fraction: want a number above 0, at most 1"));
        }
        None => 0..tokens.len(),
    };
    let clock = Instant::now();
    let windows = cut.evaluation(&tokens, part, 0)?;
    let found = evaluate(&loaded.model, &tokens, &windows, tokenizer)?;
    Ok(Loss {
        file: file.display().to_string(),
        loss: found.loss,
        perplexity: found.perplexity(),
        bits_per_byte: found.bits_per_byte(),
        tokens: found.tokens,
        bytes: found.bytes,
        context,
        seconds: clock.elapsed().as_secs_f64(),
    })
}

fn accuracy(args: &EvalArgs, loaded: &Loaded, file: &Path) -> Result<Accuracy, CliError> {
    let tokenizer = loaded.tokenizer_for("--task", "put the model's tokenizer.json beside its weights")?;
    let task = FileTask::open(file)?;
    let prompts = task.prompts(PromptSet::HeldOut);
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for (at, prompt) in prompts.iter().enumerate() {
        let answer = task.answer(prompt).expect("a file's task answers its own prompts");
        let max_new = tokenizer.encode(&answer)?.len() + SPARE;
        let stop = StopConditions { eos: loaded.eos.clone(), tokens: Vec::new() };
        let ids = tokenizer.encode(prompt)?;
        let request = Request { id: at as u64, stop, ..Request::greedy(&ids, max_new) };
        let named = format!("{}: {prompt:?}", file.display());
        let checked = request.check(loaded.model.config());
        checked.map_err(|e| CliError::of_request(Exit::Data, &named, &e))?;
        requests.push(request);
        answers.push(answer);
    }
    let clock = Instant::now();
    let options = EngineOptions { max_batch: BATCH, ..args.cache.engine() };
    let done = decode::generate(&loaded.model, requests, options)?;
    let seconds = clock.elapsed().as_secs_f64();
    let mut wrong = Vec::new();
    for ((prompt, answer), done) in prompts.iter().zip(answers).zip(&done) {
        let completion = done.text(tokenizer);
        if !task.check(prompt, &completion) {
            wrong.push(Wrong { prompt: prompt.clone(), answer, completion });
        }
    }
    let right = prompts.len() - wrong.len();
    let accuracy = right as f64 / prompts.len() as f64;
    Ok(Accuracy { name: task.name().to_string(), accuracy, right, prompts: prompts.len(), seconds, wrong })
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(found) = &self.data {
            let heads = ["loss", "perplexity", "bits per byte", "tokens", "bytes", "context"];
            let columns = [Column::words("data")].into_iter().chain(heads.map(Column::numbers));
            let mut table = Table::new(columns);
            table.row([
                found.file.clone(),
                format!("{:.4}", found.loss),
                format!("{:.3}", found.perplexity),
                format!("{:.4}", found.bits_per_byte),
                found.tokens.to_string(),
                found.bytes.to_string(),
                found.context.to_string(),
            ]);
            text.push_str(&table.render());
        }
        if let Some(found) = &self.task {
            let heads = ["accuracy", "right", "of"];
            let mut table = Table::new([Column::words("task")].into_iter().chain(heads.map(Column::numbers)));
            let share = format!("{:.1} %", 100.0 * found.accuracy);
            table.row([found.name.clone(), share, found.right.to_string(), found.prompts.to_string()]);
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(&table.render());
            for wrong in found.wrong.iter().take(5) {
                let Wrong { prompt, answer, completion } = wrong;
                text.push_str(&format!("wrong: {prompt:?} gave {completion:?}, want {answer:?}\n"));
            }
            let more = found.wrong.len().saturating_sub(5);
            if more > 0 {
                text.push_str(&format!("and {more} more (--json has all)\n"));
            }
        }
        text
    }
}
