//! The lines between xtrain and a reward process. docs/guide/rewards.md specifies them.
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::error::RewardError;
use super::reward::{RewardInput, Turn};
use crate::decode::FinishReason;
use crate::model::json;

/// The keys that xtrain writes. The columns of a prompt must have other names.
pub const RESERVED_COLUMNS: [&str; 13] = [
    "id",
    "prompt",
    "prompt_index",
    "completion_index",
    "completion",
    "prompt_ids",
    "completion_ids",
    "finish_reason",
    "truncated",
    "turn",
    "turn_text",
    "completion_mask",
    "can_append",
];

/// The reply of a process to one completion.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    /// `{"id": 7, "rewards": {"name": 1.0, "other": null}}` or, for one function with the name `reward`,
    /// `{"id": 7, "reward": 1.0}`.
    Rewards(BTreeMap<String, Option<f64>>),
    /// `{"id": 7, "append": "text"}`: continue the completion after this text.
    Append(String),
}

/// The fields of a request except the columns of the prompt.
#[derive(Serialize)]
struct Request<'a> {
    id: u64,
    prompt_index: usize,
    completion_index: usize,
    prompt: &'a str,
    completion: &'a str,
    prompt_ids: &'a [u32],
    completion_ids: &'a [u32],
    finish_reason: FinishReason,
    truncated: bool,
    #[serde(flatten)]
    turn: Option<TurnFields<'a>>,
    #[serde(flatten)]
    columns: &'a Map<String, Value>,
}

/// The fields of a request whose completion may have several turns.
#[derive(Serialize)]
struct TurnFields<'a> {
    turn: usize,
    turn_text: &'a str,
    completion_mask: Vec<u8>,
    can_append: bool,
}

impl<'a> TurnFields<'a> {
    fn new(turn: Turn<'a>) -> TurnFields<'a> {
        let Turn { number, text, mask, can_append } = turn;
        let completion_mask = mask.iter().map(|&sampled| u8::from(sampled)).collect();
        TurnFields { turn: number, turn_text: text, completion_mask, can_append }
    }
}

/// Appends the line of a completion to `lines`.
///
/// # Errors
/// [`RewardError::Column`].
pub(super) fn write_request(
    lines: &mut Vec<u8>,
    id: u64,
    input: &RewardInput<'_>,
) -> Result<(), RewardError> {
    if let Some(name) = RESERVED_COLUMNS.into_iter().find(|&name| input.columns.contains_key(name)) {
        return Err(RewardError::Column { at: input.location(), name });
    }
    let request = Request {
        id,
        prompt_index: input.prompt_index,
        completion_index: input.completion_index,
        prompt: input.prompt,
        completion: input.completion,
        prompt_ids: input.prompt_ids,
        completion_ids: input.completion_ids,
        finish_reason: input.finish_reason,
        truncated: input.truncated,
        turn: input.turn.map(TurnFields::new),
        columns: input.columns,
    };
    serde_json::to_writer(&mut *lines, &request).expect("string keys are JSON");
    lines.push(b'\n');
    Ok(())
}

/// An invalid reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) want: String,
    pub(super) got: String,
}

pub(super) fn mismatch(want: impl Into<String>, got: impl Into<String>) -> Mismatch {
    Mismatch { want: want.into(), got: got.into() }
}

/// The object of a line.
///
/// # Errors
/// A line that is not a JSON object.
pub(super) fn parse_object(line: &[u8]) -> Result<Map<String, Value>, Mismatch> {
    const WANT: &str = "a JSON object";
    if line.trim_ascii().is_empty() {
        return Err(mismatch(WANT, "an empty line"));
    }
    match serde_json::from_slice(line).map(json::sorted) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(mismatch(WANT, kind_of(&other))),
        Err(error) if has_non_finite_literal(line) => {
            let got = json::found_at_column(&error);
            Err(mismatch(WANT, format!("NaN or Infinity, which JSON does not have ({got})")))
        }
        Err(error) => Err(mismatch(WANT, json::found_at_column(&error))),
    }
}

/// Whether a line that is not JSON contains `NaN` or `Infinity`, which Python writes.
fn has_non_finite_literal(line: &[u8]) -> bool {
    ["NaN", "Infinity"]
        .iter()
        .any(|literal| line.windows(literal.len()).any(|part| part == literal.as_bytes()))
}

/// The reply of an object.
///
/// # Errors
/// Not exactly one of `reward`, `rewards` and `append`, or one of another type; an empty object as `rewards`, or a name in
/// it that is empty or has control characters; an empty text as `append`.
pub(super) fn parse_reply(object: &Map<String, Value>) -> Result<Reply, Mismatch> {
    match (object.get("rewards"), object.get("reward"), object.get("append")) {
        (Some(Value::Object(rewards)), None, None) if !rewards.is_empty() => {
            if let Some(name) = rewards.keys().find(|name| name.is_empty() || name.contains(char::is_control))
            {
                let want = "names of at least one character and no control characters in \"rewards\"";
                return Err(mismatch(want, format!("{name:?}")));
            }
            let value = |(name, value): (&String, &Value)| Ok((name.clone(), number(name, value)?));
            rewards.iter().map(value).collect::<Result<_, _>>().map(Reply::Rewards)
        }
        (Some(Value::Object(_)), None, None) => Err(mismatch("at least one name in \"rewards\"", "none")),
        (Some(other), None, None) => Err(mismatch("an object as \"rewards\"", kind_of(other))),
        (None, Some(value), None) => {
            let name = "reward".to_string();
            let value = number(&name, value)?;
            Ok(Reply::Rewards(BTreeMap::from([(name, value)])))
        }
        (None, None, Some(Value::String(text))) if text.is_empty() => {
            Err(mismatch("at least one character as \"append\"", "an empty string"))
        }
        (None, None, Some(Value::String(text))) => Ok(Reply::Append(text.clone())),
        (None, None, Some(other)) => Err(mismatch("a string as \"append\"", kind_of(other))),
        _ => {
            let fields: Vec<String> = object.keys().take(8).map(|name| format!("{name:?}")).collect();
            let got = format!("the fields {}", fields.join(", "));
            Err(mismatch("one of \"rewards\", \"reward\" and \"append\"", got))
        }
    }
}

fn number(name: &str, value: &Value) -> Result<Option<f64>, Mismatch> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) if number.as_f64().is_some_and(f64::is_finite) => Ok(number.as_f64()),
        other => Err(mismatch(format!("a number or null as {name:?}"), kind_of(other))),
    }
}

fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// The number after the first `"id":` of a line that is not JSON, for errors.
pub(super) fn find_id(line: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(line);
    let digits = text.split_once("\"id\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(line: &str) -> Result<Reply, Mismatch> {
        parse_reply(&parse_object(line.as_bytes())?)
    }

    #[test]
    fn a_reply_has_rewards_or_text() {
        let rewards = |pairs: &[(&str, Option<f64>)]| {
            Ok(Reply::Rewards(pairs.iter().map(|&(name, value)| (name.to_string(), value)).collect()))
        };
        assert_eq!(reply("{\"id\":1,\"reward\":0.5}"), rewards(&[("reward", Some(0.5))]));
        assert_eq!(reply("{\"reward\":null,\"x\":[]}\r\n"), rewards(&[("reward", None)]));
        let line = "{\"rewards\":{\"b\":-1e-3,\"a\":null}}";
        assert_eq!(reply(line), rewards(&[("a", None), ("b", Some(-1e-3))]));
        assert_eq!(reply("{\"append\":\"x\\n\"}"), Ok(Reply::Append("x\n".into())));
    }

    #[test]
    fn an_invalid_reply_is_described() {
        for (line, want, got) in [
            ("", "a JSON object", "an empty line"),
            ("ok", "a JSON object", "text that is not JSON"),
            ("[1]", "a JSON object", "an array"),
            ("{\"id\":1,\"reward\":NaN}", "a JSON object", "NaN or Infinity"),
            ("{\"id\":1,\"reward\":-Infinity}", "a JSON object", "NaN or Infinity"),
            ("{\"reward\":1e999}", "a JSON object", "invalid JSON"),
            ("{\"reward\":nope}", "a JSON object", "invalid JSON"),
            ("{\"reward\":\"1\"}", "a number or null as \"reward\"", "a string"),
            ("{\"reward\":true}", "a number or null as \"reward\"", "true"),
            ("{\"rewards\":{\"a\":[1]}}", "a number or null as \"a\"", "an array"),
            ("{\"rewards\":{}}", "at least one name", "none"),
            ("{\"rewards\":{\"\":1}}", "names of at least one character", "\"\""),
            ("{\"rewards\":{\"a\\nb\":1}}", "names of at least one character", "\"a\\nb\""),
            ("{\"rewards\":1}", "an object as \"rewards\"", "1"),
            ("{\"append\":null}", "a string as \"append\"", "null"),
            ("{\"append\":7}", "a string as \"append\"", "7"),
            ("{\"append\":\"\"}", "at least one character as \"append\"", "an empty string"),
            ("{\"id\":1}", "one of \"rewards\"", "the fields \"id\""),
            ("{\"reward\":1,\"append\":\"x\"}", "one of \"rewards\"", "the fields"),
        ] {
            let error = reply(line).unwrap_err();
            assert!(error.want.contains(want) && error.got.contains(got), "{line}: {error:?}");
            assert_eq!(
                error.got.contains("NaN"),
                line.contains("NaN") || line.contains("Infinity"),
                "{line}"
            );
        }
    }

    #[test]
    fn the_id_of_an_invalid_line_is_found() {
        assert_eq!(find_id(b"{\"id\": 17, \"reward\": NaN}"), Some(17));
        assert_eq!(find_id(b"{\"id\":\"17\"}"), None);
        assert_eq!(find_id(b"\xff"), None);
    }
}
