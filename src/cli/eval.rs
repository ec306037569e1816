//! `xtrain eval`: loss and accuracy of a model on a file.
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Arg, ArgGroup, Args};
use serde::Serialize;

use super::cache_flags::ExactCacheFlags;
use super::common::{Common, at_least_one};
use super::identity::Identity;
use super::input_file::require_rereadable;
use super::launch::require_single;
use super::loaded::{self, Loaded};
use super::memory_check::require_cache_of;
use super::model_arg::ModelArg;
use super::multiple_choice::{self, ChoiceAccuracy, Questions};
use super::{CliError, Exit, out, source};
use crate::config::{self, Packing, nearest};
use crate::decode::{self, EngineOptions, FinishReason, Request, StopConditions};
use crate::evaluate::{MAX_ROWS, evaluate};
use crate::model::comm::Communicator;
use crate::model::data::Content;
use crate::model::tasks::{self, FileTask, PromptSet, Task};
use crate::report::{Table, units};
use crate::tensor::faults::{self, Fault};
use crate::training::{WindowSpec, split};

/// New tokens that a completion may have beyond the length of the expected answer.
const SPARE: usize = 8;

/// Maximum number of concurrent sequences.
const BATCH: usize = 64;

const TOKENIZER_HINT: &str = "copy the tokenizer.json of the model to its directory";

#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["data", "task", "choices"]))]
#[command(mut_args(of_task))]
#[command(after_help = "\
Examples:
  xtrain eval runs/shakespeare --data examples/data/tinyshakespeare.txt --val-fraction 0.1
  xtrain eval runs/quickstart --task sums
  xtrain eval runs/quickstart --task sums.jsonl --json
  xtrain eval runs/quickstart --choices questions.jsonl")]
pub(super) struct EvalArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Compute loss, perplexity and bits per byte on a text, JSONL or packed token file.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Evaluate only this fraction at the end of --data, as training holds it out [default: all of it].
    #[arg(long, value_name = "FRACTION", requires = "data")]
    val_fraction: Option<f64>,
    /// Compute the accuracy of greedy completions on the held-out prompts of a built-in task (sums, sorting, reversing,
    /// counting, countdown), or on a JSONL file with `prompt` and `answer`.
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Maximum number of new tokens of a completion of --task [default: the tokens of the expected answer, and 8 more].
    #[arg(long, value_name = "N", requires = "task", value_parser = at_least_one)]
    max_new: Option<usize>,
    /// Compute the accuracy on multiple-choice questions, a JSONL file with `prompt`, `choices` (a list of texts) and
    /// `answer` (the index of the right one, from 0, or its text). The chosen text is the one with the highest
    /// log-probability after the prompt, and, for the second figure, per byte.
    #[arg(long, value_name = "FILE")]
    choices: Option<PathBuf>,
    /// Packing of --data into windows [default: as in training, otherwise stream].
    #[arg(long, value_name = "PACKING", requires = "data")]
    packing: Option<Packing>,
    /// Window length of --data [default: the training context, otherwise the context of the model].
    #[arg(long, value_name = "TOKENS", requires = "data")]
    context: Option<usize>,
    /// Fail if the newest checkpoint of a run is damaged. Without it, the newest valid one is evaluated. A checkpoint
    /// that is named itself is never replaced by another one.
    #[arg(long)]
    strict: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    cache: ExactCacheFlags,
}

/// The flags of the cache need `--task`: a loss has no cache.
fn of_task(flag: Arg) -> Arg {
    match flag.get_id().as_str() {
        "kv" | "page_size" | "prefill_chunk" => flag.requires("task"),
        _ => flag,
    }
}

#[derive(Serialize)]
struct Report {
    /// The file or directory with the weights.
    checkpoint: String,
    /// Newer checkpoints of the run that are damaged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Loss>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Accuracy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    choices: Option<ChoiceAccuracy>,
}

#[derive(Serialize)]
struct Loss {
    file: String,
    loss: f64,
    perplexity: f64,
    bits_per_byte: Option<f64>,
    tokens: u64,
    bytes: u64,
    context: usize,
    seconds: f64,
}

#[derive(Serialize)]
struct Accuracy {
    name: String,
    accuracy: f64,
    correct: usize,
    prompts: usize,
    /// Wrong completions that ended at the maximum number of new tokens, or at the context.
    truncated: usize,
    seconds: f64,
    wrong: Vec<Wrong>,
}

#[derive(Serialize)]
struct Wrong {
    prompt: String,
    answer: String,
    completion: String,
}

pub(super) fn run(args: &EvalArgs, comm: &dyn Communicator) -> Result<(), CliError> {
    if args.task.is_some() || args.choices.is_some() {
        require_single(comm)?;
    }
    args.data.iter().chain(&args.choices).try_for_each(|file| require_rereadable(file))?;
    let task = args.task.as_deref().map(task).transpose()?;
    let loaded = loaded::open(args.model.path(), &args.common)?;
    if args.strict {
        loaded::require_newest(&loaded.refused, &loaded.checkpoint, "evaluated")?;
    }
    let questions = args
        .choices
        .as_deref()
        .map(|file| Questions::open(file, &loaded, loaded.require_tokenizer("--choices", TOKENIZER_HINT)?));
    let questions = questions.transpose()?;
    let report = Report {
        checkpoint: loaded.checkpoint.display().to_string(),
        refused: loaded.refused.iter().map(|path| path.display().to_string()).collect(),
        data: args.data.as_deref().map(|file| loss(args, &loaded, file, comm)).transpose()?,
        task: task.map(|task| accuracy(args, &loaded, &*task)).transpose()?,
        choices: questions.map(|all| multiple_choice::accuracy(&all, &loaded)).transpose()?,
    };
    if args.json { out::print_json(&report) } else { out::print(report.text()) }
}

fn loss(args: &EvalArgs, loaded: &Loaded, file: &Path, comm: &dyn Communicator) -> Result<Loss, CliError> {
    let tokenizer = loaded.require_tokenizer("--data", TOKENIZER_HINT)?;
    let (max_context, run) = (loaded.model.config().max_positions, loaded.config.as_ref());
    let context = args.context.or(run.map(|config| config.train.context)).unwrap_or(max_context);
    if !(1..=max_context).contains(&context) {
        let want = format_args!("1 to {max_context} (the context of the model)");
        let message = format!("--context: expected {want}, found {context}");
        return Err(CliError::new(Exit::Usage, message));
    }
    let tokens = source::tokens(&[file.to_path_buf()], tokenizer, Content::Any)?;
    let spec = WindowSpec {
        context,
        packing: args.packing.or(run.map(|config| config.data.packing)).unwrap_or(Packing::Stream),
        // text is split; only conversations are truncated
        task: run
            .filter(|_| tokens.is_masked() || faults::on(Fault::EvaluatedTextTruncated))
            .map_or(config::TaskKind::Lm, |config| config.train.task),
    };
    let part = match args.val_fraction {
        Some(fraction) if fraction > 0.0 && fraction < 1.0 => split(&tokens, spec.task, fraction)?.validation,
        Some(fraction) => {
            let message = format!("--val-fraction: expected a number above 0 and below 1, found {fraction}");
            return Err(CliError::new(Exit::Usage, message).hint("without it, all of --data is evaluated"));
        }
        None => 0..tokens.len(),
    };
    let identity = Identity::of_command().and("the model", loaded.checkpoint.display());
    identity.and("the number of tokens", tokens.len()).require_equal(comm)?;
    let clock = Instant::now();
    let windows = spec.evaluation(&tokens, part, 0)?;
    let result = evaluate(&loaded.model, &tokens, &windows, tokenizer, MAX_ROWS, comm)?;
    Ok(Loss {
        file: file.display().to_string(),
        loss: result.loss,
        perplexity: result.perplexity(),
        bits_per_byte: result.bits_per_byte(),
        tokens: result.tokens,
        bytes: result.bytes,
        context,
        seconds: clock.elapsed().as_secs_f64(),
    })
}

/// A built-in task by its name, or the task of a file.
fn task(name: &str) -> Result<Box<dyn Task>, CliError> {
    if let Some(task) = tasks::by_name(name) {
        return Ok(task);
    }
    let file = Path::new(name);
    require_rereadable(file)?;
    FileTask::open(file).map(|task| Box::new(task) as Box<dyn Task>).map_err(|error| {
        let error = CliError::from(error);
        let near = nearest(name, tasks::NAMES).map(|near| format!("; did you mean {near}?"));
        let (names, near) = (tasks::NAMES.join(", "), near.unwrap_or_default());
        let hint = format!("expected a JSONL file, or one of {names}{near}");
        if error.exit() == Exit::Missing { error.hint(hint) } else { error }
    })
}

fn accuracy(args: &EvalArgs, loaded: &Loaded, task: &dyn Task) -> Result<Accuracy, CliError> {
    let tokenizer = loaded.require_tokenizer("--task", TOKENIZER_HINT)?;
    let prompts = task.prompts(PromptSet::HeldOut);
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for (at, prompt) in prompts.iter().enumerate() {
        let answer = task.answer(prompt).expect("the task has an answer for each of its prompts");
        let max_new = match args.max_new {
            Some(max_new) => max_new,
            None => tokenizer.encode(&answer)?.len() + SPARE,
        };
        let stop = StopConditions { eos: loaded.eos.clone(), tokens: Vec::new() };
        let ids = tokenizer.encode_with_bos(prompt)?;
        let request = Request { id: at as u64, stop, ..Request::greedy(&ids, max_new) };
        let place = format!("{}: {prompt:?}", args.task.as_deref().unwrap_or_default());
        let checked = request.check(loaded.model.config());
        checked.map_err(|e| CliError::of_request(Exit::Data, &place, &e))?;
        requests.push(request);
        answers.push(answer);
    }
    let clock = Instant::now();
    let options = EngineOptions { max_batch: BATCH, ..args.cache.engine() };
    require_cache_of(&loaded.model, &requests, options)?;
    let done = decode::generate(&loaded.model, requests, options)?;
    let seconds = clock.elapsed().as_secs_f64();
    let (mut wrong, mut truncated) = (Vec::new(), 0);
    for ((prompt, answer), done) in prompts.iter().zip(answers).zip(&done) {
        let completion = done.text(tokenizer);
        if !task.check(prompt, &completion) {
            let truncated_by = [FinishReason::Length, FinishReason::Context];
            truncated += usize::from(truncated_by.contains(&done.finish_reason));
            wrong.push(Wrong { prompt: prompt.clone(), answer, completion });
        }
    }
    let correct = prompts.len() - wrong.len();
    let accuracy = correct as f64 / prompts.len() as f64;
    let (name, prompts) = (task.name().to_string(), prompts.len());
    Ok(Accuracy { name, accuracy, correct, prompts, truncated, seconds, wrong })
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(loss) = &self.data {
            let numbers = ["loss", "perplexity", "bits per byte", "tokens", "bytes", "context"];
            let mut table = Table::new(&["data"], &numbers);
            table.row([
                loss.file.clone(),
                format!("{:.4}", loss.loss),
                units::perplexity(loss.perplexity, 3),
                loss.bits_per_byte.map_or("-".into(), |bits| format!("{bits:.4}")),
                loss.tokens.to_string(),
                loss.bytes.to_string(),
                loss.context.to_string(),
            ]);
            text.push_str(&table.render());
        }
        if let Some(result) = &self.task {
            let mut table = Table::new(&["task"], &["accuracy", "correct", "prompts"]);
            let accuracy = format!("{:.1} %", 100.0 * result.accuracy);
            table.row([&result.name, &accuracy, &result.correct.to_string(), &result.prompts.to_string()]);
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(&table.render());
            for wrong in result.wrong.iter().take(5) {
                let Wrong { prompt, answer, completion } = wrong;
                text.push_str(&format!("wrong: {prompt:?}: expected {answer:?}, found {completion:?}\n"));
            }
            let more = result.wrong.len().saturating_sub(5);
            if more > 0 {
                text.push_str(&format!("and {more} more (use --json to list all)\n"));
            }
            if result.truncated > 0 {
                let (truncated, all) = (result.truncated, result.wrong.len());
                text.push_str(&format!(
                    "{truncated} of {all} wrong completions ended at the maximum length (--max-new) or the context\n"
                ));
            }
        }
        if let Some(result) = &self.choices {
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(&result.text());
        }
        text
    }
}
