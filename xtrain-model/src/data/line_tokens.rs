//! The lines of a JSONL file as tokens, one by one.
use std::io::BufRead;
use std::path::Path;

use serde_json::{Map, Value};
use xtrain_tensor::faults::{self, Fault};

use super::document_sink::Role;
use super::documents::Overflow;
use super::error::DataError;
use super::jsonl::{self, Location, Record};
use super::prepare::RecordEncoder;
use super::tokens::Tokens;
use crate::tokenizer::Tokenizer;

/// A line of a JSONL file as tokens.
#[derive(Debug)]
pub struct LineTokens {
    /// The line number, from 1.
    pub line: u64,
    /// Its documents: one, or several for a `text` with separators.
    pub tokens: Tokens,
    /// What becomes of a document that is longer than a window, as in training. `None`: the tokens are used as they are.
    pub overflow: Option<Overflow>,
    /// All fields of the line.
    pub fields: Map<String, Value>,
}

/// Reads the lines of `reader`, whose name in errors is `name`. Skips blank lines.
///
/// A line has `prompt_ids` and `completion_ids`, which are used as they are: the latter are targets, apart from those
/// whose `mask` is 0. Other lines are records of training data and have the tokens and targets that
/// [`prepare`](super::prepare) gives them, with the token that ends the document. A field that is null counts as absent.
/// `vocab`: the vocabulary size of the model.
///
/// # Errors
/// By line: an invalid record; a record for a model without a tokenizer; an id outside the vocabulary; an empty
/// `prompt_ids`; a `mask` of another length; an integer of more than 64 bits, which would be rounded. A reader that
/// fails or has no record.
pub fn line_tokens(
    reader: impl BufRead,
    name: &Path,
    tokenizer: Option<&Tokenizer>,
    vocab: usize,
) -> Result<Vec<LineTokens>, DataError> {
    let mut encoder = tokenizer.map(|tokenizer| (tokenizer, RecordEncoder::of(tokenizer)));
    let mut lines = Vec::new();
    jsonl::objects_of(reader, name, |object, location| {
        if let Some(number) = location.rounded_integer() {
            let got = format!("{number}: write it as a string, which keeps its digits");
            return Err(location.error("integers of at most 64 bits", got));
        }
        let has = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
        let (tokens, overflow) = match (&mut encoder, [has("prompt_ids"), has("completion_ids")]) {
            (_, [true, true]) => (of_ids(object, location, vocab)?, None),
            (_, [true, false] | [false, true]) if !has("text") && !has("messages") && !has("completion") => {
                return Err(location.error("\"prompt_ids\" with \"completion_ids\"", jsonl::fields(object)));
            }
            (Some((tokenizer, encoder)), _) => {
                let record = Record::from_object(object, location)?;
                let overflow = match record {
                    Record::Text(_) => Overflow::Split,
                    Record::Pair { .. } | Record::Chat(_) => Overflow::Truncate,
                };
                let tokens = Tokens::of_documents(tokenizer, |sink| encoder.encode(&record, location, sink))?;
                (tokens, Some(overflow))
            }
            (None, _) => {
                let want = "\"prompt_ids\" and \"completion_ids\" for a model without a tokenizer";
                return Err(location.error(want, jsonl::fields(object)));
            }
        };
        lines.push(LineTokens { line: location.line(), tokens, overflow, fields: object.clone() });
        Ok(())
    })?;
    Ok(lines)
}

/// The tokens of a prompt and its completion.
fn of_ids(object: &Map<String, Value>, location: &Location, vocab: usize) -> Result<Tokens, DataError> {
    let list = |key: &str| numbers(&object[key], key, location);
    let (prompt, completion) = (list("prompt_ids")?, list("completion_ids")?);
    if prompt.is_empty() {
        return Err(location.error("\"prompt_ids\" with at least one token", "an empty list"));
    }
    let given = object.get("mask").filter(|mask| !mask.is_null() && !faults::on(Fault::ScoredMaskIgnored));
    let mask = match given {
        Some(mask) => numbers(mask, "mask", location)?,
        None => vec![1; completion.len()],
    };
    if mask.len() != completion.len() {
        let got = format!("{} for {}", mask.len(), completion.len());
        return Err(location.error("a \"mask\" with one number for each of \"completion_ids\"", got));
    }
    if let Some(other) = mask.iter().find(|&&mask| mask > 1) {
        return Err(location.error("a \"mask\" of 0 and 1", other.to_string()));
    }
    if let Some(id) = prompt.iter().chain(&completion).find(|&&id| id as usize >= vocab) {
        let got = format!("{id} with a vocabulary of {vocab}");
        return Err(location.error("token ids below the vocabulary size of the model", got));
    }
    let roles = mask.into_iter().map(|mask| if mask == 0 { Role::Context } else { Role::Target });
    let prompt = prompt.into_iter().map(|id| (id, Role::Context));
    Tokens::from_documents([prompt.chain(completion.into_iter().zip(roles))], vocab as u32)
}

/// The list of whole numbers in the field `key`.
fn numbers(value: &Value, key: &str, location: &Location) -> Result<Vec<u32>, DataError> {
    let want = "lists of whole numbers as \"prompt_ids\", \"completion_ids\" and \"mask\"";
    let Value::Array(values) = value else {
        return Err(location.error(want, format!("{key:?}: {}", jsonl::kind_of(value))));
    };
    let number = |(at, value): (usize, &Value)| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| location.error(want, format!("{key:?}: {value} at index {at}")))
    };
    values.iter().enumerate().map(number).collect()
}
