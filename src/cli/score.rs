//! `xtrain score`: log-probabilities of given texts.
use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};

use super::atomic_file::AtomicFile;
use super::common::{Common, Force};
use super::input_file::require_end;
use super::interrupt::Interrupt;
use super::loaded::{self, Loaded};
use super::model_arg::ModelArg;
use super::{CliError, Exit, out, output_path};
use crate::evaluate::{MAX_ROWS, window_log_probs};
use crate::model::data::{LineTokens, Overflow, Pieces, TokenWindow, line_tokens};
use crate::report::{Progress, units};
use crate::tensor::Dtype;
use crate::tensor::math::exp_f64;

/// The key that a line gets.
const KEY: &str = "score";

const HINT: &str = "each line is one of {\"text\": ...}, {\"prompt\": ..., \"completion\": ...}, {\"messages\": [...]} and \
                    {\"prompt_ids\": [...], \"completion_ids\": [...]}; xtrain eval --data measures text and token files";

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Computes the log-probabilities of the tokens of given texts. They have the bits of the training forward pass. They are \
the values before temperature, filters and constraints, as `logprobs` of `xtrain rollout`.

A line of training data is {\"text\": ...}, {\"prompt\": ..., \"completion\": ...} or {\"messages\": [...]}. Its targets are \
the tokens that training computes the loss on, with the token that ends the text or the turn. The first token of a text \
is no target. As in training, a text that is longer than the context is split into windows, and a conversation or \
completion is truncated.

A line with {\"prompt_ids\": [...], \"completion_ids\": [...]}, such as those of `xtrain rollout` and RUN/rollouts/, is \
not tokenized again: these are its tokens. The targets are completion_ids, except where `mask` is 0.

The output has the fields of each line, sorted by name, and a field `score`: `sum_logprob` is the sum of the \
log-probabilities of the targets, `mean_logprob` their mean (the negative of the loss), `tokens` their number, \
`target_ids` and `logprobs` each target and its log-probability, and `truncated` is true if targets were left out. All \
lines are read before the first one is scored.

Examples:
  xtrain score runs/conversations --data chat.jsonl --out scores.jsonl
  xtrain score Qwen3-0.6B --data completions.jsonl --totals-only --out scores.jsonl
  echo '{\"prompt\": \"12+34=\", \"completion\": \"46\"}' | xtrain score runs/quickstart")]
pub(super) struct ScoreArgs {
    #[command(flatten)]
    model: ModelArg,
    /// JSONL files; - is standard input.
    #[arg(long, value_name = "FILE", num_args = 1.., default_value = "-")]
    data: Vec<PathBuf>,
    /// JSONL file for the scores; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Leave out target_ids and logprobs.
    #[arg(long)]
    totals_only: bool,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    common: Common,
}

/// The score of a line.
#[derive(Serialize)]
struct Score {
    sum_logprob: f64,
    /// `None`: there are no targets.
    mean_logprob: Option<f64>,
    tokens: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<f32>>,
}

/// A line with its score.
#[derive(Serialize)]
struct ScoredLine<'a> {
    #[serde(flatten)]
    fields: &'a Map<String, Value>,
    score: Score,
}

/// A line and its documents as one window, in which they do not attend to each other.
struct Line {
    /// Its file and number, for messages.
    place: String,
    fields: Map<String, Value>,
    window: TokenWindow,
    /// Whether a text was split.
    split: bool,
    /// Whether a conversation or a completion was truncated.
    truncated: bool,
}

/// The totals of the scored lines.
#[derive(Default)]
struct Totals {
    lines: usize,
    tokens: usize,
    sum: f64,
}

/// Scores the lines.
///
/// # Errors
/// See [`Exit`].
pub(super) fn run(args: &ScoreArgs) -> Result<(), CliError> {
    let path = (args.out != Path::new("-")).then_some(&args.out);
    if let Some(path) = path {
        output_path::check_absent(path, args.force)?;
        let model = args.model.path().to_path_buf();
        output_path::check_is_no_input(path, args.data.iter().chain([&model]))?;
    }
    let loaded = loaded::open(args.model.path(), &args.common)?;
    let mut lines = Vec::new();
    for data in &args.data {
        lines.extend(read(data, &loaded)?);
    }
    warn_of_other_logprobs(&lines, loaded.model.compute());
    let mut file = path.map(|path| AtomicFile::create(path)).transpose()?;
    let interrupt = Interrupt::install()?;
    let new_progress = if path.is_some() { Progress::new } else { Progress::beside_results };
    let mut progress = new_progress("score", "line", lines.len() as u64, 0);
    let (mut totals, mut rest) = (Totals::default(), &lines[..]);
    while !rest.is_empty() {
        if let Some(exit) = interrupt.requested() {
            return Err(stopped(exit, file, totals.lines, lines.len()));
        }
        let (pass, others) = rest.split_at(within_rows(rest));
        rest = others;
        let scored = window_log_probs(&loaded.model, pass.iter().map(|line| line.window.clone()))?;
        for (line, logprobs) in pass.iter().zip(scored) {
            let score = score(line, logprobs, args.totals_only);
            totals.sum += score.sum_logprob;
            totals.tokens += score.tokens;
            totals.lines += 1;
            let line = ScoredLine { fields: &line.fields, score };
            let mut text = serde_json::to_string(&line).expect("log-probabilities are finite");
            text.push('\n');
            match &mut file {
                Some(file) => file.write(text.as_bytes())?,
                None => out::print(text)?,
            }
        }
        progress.at(totals.lines as u64, "");
    }
    progress.finish();
    file.map_or(Ok(()), AtomicFile::finish)?;
    eprintln!("{}", totals.text(&lines));
    Ok(())
}

impl Totals {
    /// What a command prints at its end.
    fn text(&self, lines: &[Line]) -> String {
        let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count() as u64;
        let mut text = String::new();
        for (count, what) in [
            (count(|line| line.split), "longer than the context: split into windows"),
            (count(|line| line.truncated), "longer than the context: truncated"),
        ] {
            if count > 0 {
                text += &format!("note: {} {what}\n", units::many(count, "line"));
            }
        }
        let lines = units::many(self.lines as u64, "line");
        if self.tokens == 0 {
            return text + &format!("{lines}, no target token");
        }
        let (loss, targets) =
            (-self.sum / self.tokens as f64, units::many(self.tokens as u64, "target token"));
        text + &format!(
            "{lines}, {targets}, loss {loss:.4}, perplexity {}",
            units::perplexity(exp_f64(loss), 3)
        )
    }
}

/// The error of a command that a signal stopped. The scored lines are kept.
fn stopped(exit: Exit, file: Option<AtomicFile>, done: usize, all: usize) -> CliError {
    let error = CliError::new(exit, format_args!("stopped by a signal after {done} of {all} lines"));
    match file.filter(|_| done > 0).map(AtomicFile::keep_partial) {
        Some(Ok(path)) => error.hint(format_args!("their scores are in {}", path.display())),
        Some(Err(error)) => error,
        None => error,
    }
}

/// Warns of completions whose log-probabilities the model computes in another way than the rollout did.
fn warn_of_other_logprobs(lines: &[Line], dtype: Dtype) {
    let other = |key: &str, own: &str| {
        let text = |line: &Line| Some(line.fields.get(key)?.as_str()?.to_string());
        let found = lines.iter().find_map(|line| Some((line, text(line).filter(|text| text != own)?)))?;
        Some((found.0.place.clone(), found.1))
    };
    if let Some((place, found)) = other("dtype", &dtype.to_string()) {
        eprintln!(
            "warning: {place}: the completion was generated in {found}, and is scored in {dtype}; --dtype {found} gives the \
             log-probabilities of the rollout"
        );
    }
    if let Some((place, found)) = other("kv", "") {
        eprintln!(
            "warning: {place}: the completion was generated with the lossy cache {found}; the log-probabilities of the \
             rollout differ from those of the model"
        );
    }
}

/// The lines of the file `path`; `-` is standard input.
fn read(path: &Path, loaded: &Loaded) -> Result<Vec<Line>, CliError> {
    let (tokenizer, config) = (loaded.tokenizer.as_ref(), loaded.model.config());
    let stdin = path == Path::new("-");
    let name = if stdin { Path::new("standard input") } else { path };
    let lines = if stdin {
        if io::stdin().is_terminal() {
            eprintln!(
                "reading lines from standard input, such as {{\"text\": \"Hi\"}}; Ctrl-D ends the input; --data FILE \
                 reads a file"
            );
        }
        line_tokens(io::stdin().lock(), name, tokenizer, config.vocab)
    } else {
        require_end(path)?;
        let file = File::open(path).map_err(|error| CliError::io(path, &error))?;
        line_tokens(BufReader::new(file), name, tokenizer, config.vocab)
    };
    let lines = lines.map_err(|error| {
        let error = CliError::from(error);
        if error.exit() == Exit::Data { error.or_hint(HINT) } else { error }
    })?;
    lines.into_iter().map(|line| Line::new(line, name, config.max_positions)).collect()
}

impl Line {
    /// The documents of a line of the file `name`, for a model with this context.
    fn new(line: LineTokens, name: &Path, context: usize) -> Result<Line, CliError> {
        let place = format!("{}:{}", name.display(), line.line);
        if line.fields.contains_key(KEY) {
            let message = format_args!("{place}: field {KEY:?}: expected another name");
            return Err(CliError::new(Exit::Data, message)
                .hint(format_args!("the output has this field; jq -c 'del(.{KEY})' removes it")));
        }
        let (tokens, len) = (&line.tokens, line.tokens.len());
        let Some(overflow) = line.overflow else {
            if len > context as u64 + 1 {
                let want =
                    format_args!("at most {} tokens, the context of the model and a target", context + 1);
                let message = format_args!("{place}: expected {want}, found {len}");
                return Err(CliError::new(Exit::Data, message));
            }
            let window = tokens.window(0..len)?;
            return Ok(Line { place, fields: line.fields, window, split: false, truncated: false });
        };
        let pieces = Pieces::cut(tokens, &(0..len), context as u64, overflow)?;
        let mut window = TokenWindow::default();
        for range in pieces.ranges {
            window.append(tokens.window(range)?);
        }
        let is_long = pieces.packing_stats.long > 0;
        let truncated = is_long && overflow == Overflow::Truncate;
        Ok(Line { place, fields: line.fields, window, split: is_long && !truncated, truncated })
    }
}

/// Number of lines from the start that have at most [`MAX_ROWS`] rows in total; at least one.
fn within_rows(lines: &[Line]) -> usize {
    let mut rows = 0;
    let beyond = lines.iter().position(|line| {
        rows += line.window.inputs.len() as u64;
        rows > MAX_ROWS
    });
    beyond.unwrap_or(lines.len()).max(1)
}

/// The score of a line. The sum is in f64 and in token order.
fn score(line: &Line, logprobs: Vec<f32>, totals_only: bool) -> Score {
    let tokens = logprobs.len();
    let sum_logprob = logprobs.iter().fold(0.0, |sum, &logprob| sum + f64::from(logprob));
    Score {
        sum_logprob,
        mean_logprob: (tokens > 0).then(|| sum_logprob / tokens as f64),
        tokens,
        truncated: line.truncated,
        target_ids: (!totals_only).then(|| line.window.targets.iter().flatten().copied().collect()),
        logprobs: (!totals_only).then_some(logprobs),
    }
}
