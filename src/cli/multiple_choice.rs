//! `xtrain eval --choices`: accuracy on multiple-choice questions.
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::exit::{CliError, Exit};
use super::loaded::Loaded;
use crate::choices::{Question, largest, log_probs};
use crate::evaluate::MAX_ROWS;
use crate::model::tasks::{PromptFile, PromptRecord};
use crate::model::tokenizer::Tokenizer;
use crate::report::{Progress, Table};

const WANT: &str = "{\"prompt\": ..., \"choices\": [\"...\", \"...\"], \"answer\": INDEX}";

/// The result of `--choices`.
#[derive(Serialize)]
pub(super) struct ChoiceAccuracy {
    name: String,
    questions: usize,
    /// Questions whose right answer has the highest log-probability.
    correct: usize,
    accuracy: f64,
    /// Questions whose right answer has the highest log-probability per byte of text.
    correct_per_byte: usize,
    accuracy_per_byte: f64,
    seconds: f64,
    answers: Vec<Answer>,
}

/// The answer to a question.
#[derive(Serialize)]
struct Answer {
    line: u64,
    answer: usize,
    chosen: usize,
    chosen_per_byte: usize,
    logprobs: Vec<f64>,
}

/// The questions of a file.
pub(super) struct Questions {
    name: String,
    lines: Vec<Line>,
}

/// A question and its line.
struct Line {
    number: u64,
    question: Question,
    /// The bytes of text of each choice.
    bytes: Vec<usize>,
    answer: usize,
}

impl Questions {
    /// Reads the file `path`, for the model `loaded`.
    pub(super) fn open(path: &Path, loaded: &Loaded, tokenizer: &Tokenizer) -> Result<Questions, CliError> {
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Questions { name, lines: read(path, loaded, tokenizer)? })
    }
}

/// Answers the questions.
pub(super) fn accuracy(
    Questions { name, lines }: &Questions,
    loaded: &Loaded,
) -> Result<ChoiceAccuracy, CliError> {
    let clock = Instant::now();
    let mut progress = Progress::new("choices", "question", lines.len() as u64, 0);
    let (mut answers, mut rest) = (Vec::with_capacity(lines.len()), &lines[..]);
    while !rest.is_empty() {
        let (pass, others) = rest.split_at(within_rows(rest));
        rest = others;
        let questions: Vec<Question> = pass.iter().map(|line| line.question.clone()).collect();
        for (line, logprobs) in pass.iter().zip(log_probs(&loaded.model, &questions)?) {
            let per_byte = logprobs.iter().zip(&line.bytes).map(|(sum, &bytes)| sum / bytes as f64);
            let per_byte: Vec<f64> = per_byte.collect();
            answers.push(Answer {
                line: line.number,
                answer: line.answer,
                chosen: largest(&logprobs),
                chosen_per_byte: largest(&per_byte),
                logprobs,
            });
        }
        progress.at(answers.len() as u64, "");
    }
    progress.finish();
    let questions = answers.len();
    let count =
        |of: fn(&Answer) -> usize| answers.iter().filter(|answer| of(answer) == answer.answer).count();
    let (correct, correct_per_byte) = (count(|answer| answer.chosen), count(|answer| answer.chosen_per_byte));
    let [accuracy, accuracy_per_byte] = [correct, correct_per_byte].map(|n| n as f64 / questions as f64);
    let (name, seconds) = (name.clone(), clock.elapsed().as_secs_f64());
    Ok(ChoiceAccuracy {
        name,
        questions,
        correct,
        accuracy,
        correct_per_byte,
        accuracy_per_byte,
        seconds,
        answers,
    })
}

impl ChoiceAccuracy {
    /// The result as a table.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&["choices"], &["accuracy", "per byte", "correct", "questions"]);
        let [accuracy, per_byte] =
            [self.accuracy, self.accuracy_per_byte].map(|share| format!("{:.1} %", 100.0 * share));
        table.row([&self.name, &accuracy, &per_byte, &self.correct.to_string(), &self.questions.to_string()]);
        table.render()
    }
}

/// The questions of the file.
fn read(path: &Path, loaded: &Loaded, tokenizer: &Tokenizer) -> Result<Vec<Line>, CliError> {
    let prompts = PromptFile::open(path)?;
    let encoded = prompts.encode(Some(tokenizer))?;
    let (context, vocab) = (loaded.model.config().max_positions, loaded.model.config().vocab);
    let line = |(record, prompt): (&PromptRecord, _)| {
        let line = question(record, prompt, tokenizer, vocab).map_err(|found| {
            let message = format_args!("{}:{}: expected {WANT}, found {found}", path.display(), record.line);
            CliError::new(Exit::Data, message)
        })?;
        // the last token of a choice is no input
        let len = line.question.longest() - 1;
        if len > context {
            let place = format_args!("{}:{}", path.display(), record.line);
            let message = format_args!(
                "{place}: expected at most {} tokens with the longest choice, the context of the model and a target, \
                 found {}",
                context + 1,
                len + 1
            );
            return Err(CliError::new(Exit::Data, message));
        }
        Ok(line)
    };
    prompts.records().iter().zip(encoded.into_iter().map(|prompt| prompt.ids)).map(line).collect()
}

/// The question of a line. The error is what was found.
fn question(
    record: &PromptRecord,
    prompt: Vec<u32>,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<Line, String> {
    let field = |key: &str| record.columns.get(key).ok_or_else(|| format!("no {key:?}"));
    let Value::Array(choices) = field("choices")? else { return Err("\"choices\" that is no list".into()) };
    let text = |(at, choice): (usize, &Value)| match choice.as_str() {
        None => Err(format!("\"choices\" with {choice} at index {at}")),
        Some("") => Err(format!("\"choices\" with an empty string at index {at}")),
        Some(text) => Ok(text.to_string()),
    };
    let texts: Vec<String> = choices.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    if texts.len() < 2 {
        return Err(format!("\"choices\" of length {}", texts.len()));
    }
    let answer = field("answer")?;
    let index = match answer {
        Value::String(text) => texts.iter().position(|choice| choice == text),
        other => other.as_u64().map(|index| index as usize).filter(|&index| index < texts.len()),
    };
    let index = index.ok_or_else(|| format!("\"answer\": {answer} for {} choices", texts.len()))?;
    let encode = |text: &String| tokenizer.encode_continuation(text).map_err(|error| error.to_string());
    let choices: Vec<Vec<u32>> = texts.iter().map(encode).collect::<Result<_, _>>()?;
    if let Some(at) = choices.iter().position(Vec::is_empty) {
        return Err(format!("\"choices\" with a text without a token at index {at}"));
    }
    if let Some(id) = prompt.iter().chain(choices.iter().flatten()).find(|&&id| id as usize >= vocab) {
        return Err(format!("the token id {id} with a vocabulary of {vocab}"));
    }
    let bytes = texts.iter().map(String::len).collect();
    Ok(Line { number: record.line, question: Question { prompt, choices }, bytes, answer: index })
}

/// Number of questions from the start that have at most [`MAX_ROWS`] rows in total; at least one.
fn within_rows(lines: &[Line]) -> usize {
    let mut rows = 0;
    let beyond = lines.iter().position(|line| {
        rows += line.question.rows() as u64;
        rows > MAX_ROWS
    });
    beyond.unwrap_or(lines.len()).max(1)
}
