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
use crate::model::Model;
use crate::model::data::{LineTokens, Overflow, Pieces, TokenWindow, line_tokens};
use crate::report::{Progress, units};
use crate::tensor::Dtype;
use crate::tensor::faults::{self, Fault};
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
the tokens that training computes the loss on, with the token that ends the text or the turn. The first token of a \
document is no target. As in training, a text that is longer than the context is split into windows, and a conversation or \
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
  echo '{\"prompt\": \"12+34=\", \"completion\": \"046\"}' | xtrain score runs/quickstart")]
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

/// A line and its windows, which do not attend to each other: one for each document that fits the context.
struct Line {
    /// Its file and number, for messages.
    place: String,
    fields: Map<String, Value>,
    windows: Vec<TokenWindow>,
    /// Whether its tokens were given.
    is_tokens: bool,
    /// Whether a text was split.
    split: bool,
    /// Whether targets were left out.
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
    let mut totals = Totals::default();
    let scored = score_all(&loaded.model, &lines, &interrupt, |line, logprobs| {
        let score = score(line, logprobs, args.totals_only);
        totals.sum += score.sum_logprob;
        totals.tokens += score.tokens;
        totals.lines += 1;
        progress.at(totals.lines as u64, "");
        let line = ScoredLine { fields: &line.fields, score };
        let text = serde_json::to_string(&line).expect("log-probabilities are finite") + "\n";
        match &mut file {
            Some(file) => file.write(text.as_bytes()),
            None => out::print(text),
        }
    });
    progress.finish();
    match (scored, file) {
        (Ok(()), file) => file.map_or(Ok(()), AtomicFile::finish_lines)?,
        (Err(error), Some(file)) => return Err(file.keep_lines(error)),
        (Err(error), None) => return Err(error),
    }
    eprintln!("{}", totals.text(&lines));
    Ok(())
}

/// Passes the log-probabilities of each line to `emit`, in the order of the lines. No bit depends on the division of the
/// windows into forward passes.
fn score_all(
    model: &Model,
    lines: &[Line],
    interrupt: &Interrupt,
    mut emit: impl FnMut(&Line, Vec<f32>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let windows = |(at, line): (usize, &'_ Line)| -> Vec<(usize, TokenWindow)> {
        line.windows.iter().map(|window| (at, window.clone())).collect()
    };
    let mut all = lines.iter().enumerate().flat_map(windows).peekable();
    let (mut done, mut collected) = (0, Vec::new());
    while all.peek().is_some() {
        if let Some(exit) = interrupt.requested() {
            let message = format_args!("stopped by a signal after {done} of {} lines", lines.len());
            return Err(CliError::new(exit, message));
        }
        let (mut pass, mut rows) = (Vec::new(), 0);
        while let Some(next) =
            all.next_if(|(_, window)| pass.is_empty() || rows + window.inputs.len() as u64 <= MAX_ROWS)
        {
            rows += next.1.inputs.len() as u64;
            pass.push(next);
        }
        let (of, windows): (Vec<usize>, Vec<TokenWindow>) = pass.into_iter().unzip();
        let scored = window_log_probs(model, windows).map_err(|error| {
            let (first, last) = (&lines[of[0]].place, &lines[of[of.len() - 1]].place);
            let error = CliError::from(error);
            CliError::new(error.exit(), format_args!("{first} to {last}: {error}"))
        })?;
        for (at, logprobs) in of.into_iter().zip(scored) {
            while done < at {
                emit(&lines[done], std::mem::take(&mut collected))?;
                done += 1;
            }
            collected.extend(logprobs);
        }
    }
    lines[done..].iter().try_for_each(|line| emit(line, std::mem::take(&mut collected)))
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

/// Warns of completions whose log-probabilities the model computes in another way than the rollout did.
fn warn_of_other_logprobs(lines: &[Line], dtype: Dtype) {
    let other = |key: &str, own: &str| {
        let text = |line: &Line| Some(line.fields.get(key)?.as_str()?.to_string());
        let given = lines.iter().filter(|line| line.is_tokens);
        let found =
            given.map(|line| Some((line, text(line).filter(|text| text != own)?))).find_map(|found| found)?;
        Some((found.0.place.clone(), found.1))
    };
    if faults::on(Fault::ScoresOfOtherDtypeUnnoted) {
        return;
    }
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
            let windows = vec![tokens.window(0..len)?];
            return Ok(Line {
                place,
                fields: line.fields,
                windows,
                is_tokens: true,
                split: false,
                truncated: false,
            });
        };
        let pieces = Pieces::cut(tokens, &(0..len), context as u64, overflow)?;
        let is_long = pieces.packing_stats.long > 0;
        let truncates = overflow == Overflow::Truncate;
        let end = pieces.ranges.last().map_or(0, |range| range.end);
        let cut = is_long && truncates && !faults::on(Fault::TruncatedScoresUnmarked);
        let truncated = cut && tokens.target_mask(end..len)?.contains(&true);
        let windows = pieces.ranges.into_iter().map(|range| tokens.window(range));
        let windows = windows.collect::<Result<_, _>>()?;
        let split = is_long && !truncates;
        Ok(Line { place, fields: line.fields, windows, is_tokens: false, split, truncated })
    }
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
        target_ids: (!totals_only).then(|| target_ids(line)),
        logprobs: (!totals_only).then_some(logprobs),
    }
}

/// The targets of a line, in the order of its tokens.
fn target_ids(line: &Line) -> Vec<u32> {
    line.windows.iter().flat_map(|window| window.targets.iter().flatten().copied()).collect()
}
