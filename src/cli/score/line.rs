//! The lines of `xtrain score`: reading them and cutting their windows.
use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::path::Path;

use serde_json::{Map, Value};

use crate::cli::exit::{CliError, Exit};
use crate::cli::input_file::require_end;
use crate::cli::loaded::Loaded;
use crate::model::data::{LineTokens, Overflow, Pieces, TokenWindow, line_tokens};
use crate::tensor::Dtype;
use crate::tensor::faults::{self, Fault};

/// The key that a line gets.
const KEY: &str = "score";

const HINT: &str = "each line is one of {\"text\": ...}, {\"prompt\": ..., \"completion\": ...}, {\"messages\": [...]} and \
                    {\"prompt_ids\": [...], \"completion_ids\": [...]}; xtrain eval --data measures text and token files";

/// A line and its windows, which do not attend to each other: one for each document that fits the context.
pub(super) struct Line {
    /// Its file and number, for messages.
    pub(super) place: String,
    pub(super) fields: Map<String, Value>,
    pub(super) windows: Vec<TokenWindow>,
    /// Whether its tokens were given.
    pub(super) is_tokens: bool,
    /// Whether a text was split.
    pub(super) split: bool,
    /// Whether targets were left out.
    pub(super) truncated: bool,
}

/// The lines of the file `path`; `-` is standard input.
pub(super) fn read(path: &Path, loaded: &Loaded) -> Result<Vec<Line>, CliError> {
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

/// Warns of completions whose log-probabilities the model computes in another way than the rollout did.
pub(super) fn warn_of_other_logprobs(lines: &[Line], dtype: Dtype) {
    let other = |key: &str, own: &str| {
        let found = |line: &'_ Line| {
            let text = line.fields.get(key)?.as_str().filter(|text| *text != own)?;
            Some((line.place.clone(), text.to_string()))
        };
        lines.iter().filter(|line| line.is_tokens).find_map(found)
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
