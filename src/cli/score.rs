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
use super::loaded::{self, Loaded};
use super::model_arg::ModelArg;
use super::{CliError, Exit, out, output_path};
use crate::evaluate::{MAX_ROWS, window_log_probs};
use crate::model::data::{LineTokens, TokenWindow, line_tokens};
use crate::report::{Progress, units};
use crate::tensor::math::exp_f64;

/// The key that a line gets.
const KEY: &str = "score";

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Computes how probable the model finds texts that are given. The values have the bits of the training forward pass, and \
those of `logprobs` in a file of `xtrain rollout` of the same model.

Input: one JSON object per line, either a line of training data ({\"text\": ...}, {\"prompt\": ..., \"completion\": ...} \
or {\"messages\": [...]}), whose targets are those of training, with the token that ends the text or the turn; or \
{\"prompt_ids\": [...], \"completion_ids\": [...]}, whose tokens are used as they are, such as the lines of `xtrain \
rollout` and RUN/rollouts/.

Output: the same lines with a field `score`: `sum_logprob` is the sum of the log-probabilities of the targets, before \
temperature and filters, `mean_logprob` their mean (-mean_logprob is the loss), `tokens` their number, `target_ids` and \
`logprobs` the targets and the value of each.

Examples:
  xtrain score runs/conversations --data chat.jsonl --out scores.jsonl
  xtrain score Qwen3-0.6B --data completions.jsonl --totals-only --out scores.jsonl
  echo '{\"prompt\": \"12+34=\", \"completion\": \"46\"}' | xtrain score runs/quickstart")]
pub(super) struct ScoreArgs {
    #[command(flatten)]
    model: ModelArg,
    /// JSONL file with one text per line; - is standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    data: PathBuf,
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

/// Scores the lines.
///
/// # Errors
/// See [`Exit`].
pub(super) fn run(args: &ScoreArgs) -> Result<(), CliError> {
    let path = (args.out != Path::new("-")).then_some(&args.out);
    if let Some(path) = path {
        output_path::check_absent(path, args.force)?;
        output_path::check_is_no_input(path, [&args.model.path().to_path_buf(), &args.data])?;
    }
    let loaded = loaded::open(args.model.path(), &args.common)?;
    let name = if args.data == Path::new("-") { Path::new("standard input") } else { &args.data };
    let lines = read(&args.data, name, &loaded)?;
    let windows = windows(&lines, name, loaded.model.config().max_positions)?;
    let mut file = path.map(|path| AtomicFile::create(path)).transpose()?;
    let mut progress = Progress::new("score", "line", lines.len() as u64, 0);
    let (mut at, mut sum, mut tokens) = (0, 0.0, 0);
    let mut rest = &windows[..];
    while !rest.is_empty() {
        let (pass, others) = rest.split_at(within_rows(rest));
        rest = others;
        let scored = window_log_probs(&loaded.model, pass.iter().cloned())?;
        for ((line, window), logprobs) in lines[at..].iter().zip(pass).zip(scored) {
            let score = score(window, logprobs, args.totals_only);
            sum += score.sum_logprob;
            tokens += score.tokens;
            let line = ScoredLine { fields: &line.fields, score };
            let mut text = serde_json::to_string(&line).expect("log-probabilities are finite");
            text.push('\n');
            match &mut file {
                Some(file) => file.write(text.as_bytes())?,
                None => out::print(text)?,
            }
        }
        at += pass.len();
        progress.at(at as u64, "");
    }
    progress.finish();
    file.map_or(Ok(()), AtomicFile::finish)?;
    let mean = if tokens > 0 { -sum / tokens as f64 } else { f64::NAN };
    eprintln!(
        "{}, {} target tokens, loss {mean:.4}, perplexity {:.2}",
        units::many(lines.len() as u64, "line"),
        units::count(tokens as u64),
        exp_f64(mean),
    );
    Ok(())
}

/// The lines of the file `path`; `-` is standard input.
fn read(path: &Path, name: &Path, loaded: &Loaded) -> Result<Vec<LineTokens>, CliError> {
    let (tokenizer, vocab) = (loaded.tokenizer.as_ref(), loaded.model.config().vocab);
    let lines = if path == Path::new("-") {
        if io::stdin().is_terminal() {
            eprintln!(
                "reading lines from standard input, such as {{\"text\": \"Hi\"}}; Ctrl-D ends the input; --data FILE \
                 reads a file"
            );
        }
        line_tokens(io::stdin().lock(), name, tokenizer, vocab)
    } else {
        require_end(path)?;
        let file = File::open(path).map_err(|error| CliError::io(path, &error))?;
        line_tokens(BufReader::new(file), name, tokenizer, vocab)
    };
    let lines = lines?;
    if let Some(line) = lines.iter().find(|line| line.fields.contains_key(KEY)) {
        let message = format_args!("{}:{}: field {KEY:?}: expected another name", name.display(), line.line);
        return Err(CliError::new(Exit::Data, message)
            .hint(format_args!("the output has this field; jq -c 'del(.{KEY})' removes it")));
    }
    Ok(lines)
}

/// The documents of each line as one window, in which they do not attend to each other.
fn windows(lines: &[LineTokens], name: &Path, context: usize) -> Result<Vec<TokenWindow>, CliError> {
    let window = |line: &LineTokens| -> Result<TokenWindow, CliError> {
        let (mut all, mut start) = (TokenWindow::default(), 0);
        for end in line.tokens.ends()? {
            let document = line.tokens.window(start..end)?;
            if document.inputs.len() > context {
                let (place, found) = (format_args!("{}:{}", name.display(), line.line), end - start);
                let message = format!(
                    "{place}: expected at most {} tokens, the context of the model and a target, found {found}",
                    context + 1
                );
                return Err(CliError::new(Exit::Data, message));
            }
            all.append(document);
            start = end;
        }
        Ok(all)
    };
    lines.iter().map(window).collect()
}

/// Number of windows from the start that have at most [`MAX_ROWS`] rows in total; at least one.
fn within_rows(windows: &[TokenWindow]) -> usize {
    let mut rows = 0;
    let beyond = windows.iter().position(|window| {
        rows += window.inputs.len() as u64;
        rows > MAX_ROWS
    });
    beyond.unwrap_or(windows.len()).max(1)
}

/// The score of a window. The sum is in f64 and in token order.
fn score(window: &TokenWindow, logprobs: Vec<f32>, totals_only: bool) -> Score {
    let (tokens, sum_logprob) = (logprobs.len(), logprobs.iter().map(|&logprob| f64::from(logprob)).sum());
    Score {
        sum_logprob,
        mean_logprob: (tokens > 0).then(|| sum_logprob / tokens as f64),
        tokens,
        target_ids: (!totals_only).then(|| window.targets.iter().flatten().copied().collect()),
        logprobs: (!totals_only).then_some(logprobs),
    }
}
