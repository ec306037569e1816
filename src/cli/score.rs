//! `xtrain score`: log-probabilities of given texts.
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};

mod line;
mod totals;

use super::atomic_file::AtomicFile;
use super::common::{Common, Force};
use super::interrupt::Interrupt;
use super::loaded;
use super::model_arg::ModelArg;
use super::{CliError, out, output_path};
use crate::evaluate::{MAX_ROWS, window_log_probs};
use crate::model::Model;
use crate::model::data::TokenWindow;
use crate::report::Progress;
use line::{Line, read, warn_of_other_logprobs};
use totals::{Score, Totals};

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
/// See [`super::Exit`].
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
        let score = Score::new(line, logprobs, args.totals_only);
        totals.add(&score);
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
