//! Limits on the pipeline of a `tokenizer.json`, checked before HF's parser builds it.
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::error::TokenizerError;
use super::json::bad;
use crate::json::{found_at_line, other_value};

/// Maximum length of a pattern in bytes. Patterns in use have a few hundred.
const MAX_PATTERN: usize = 4096;
/// Maximum nesting in a pattern. Its parser is recursive.
const MAX_NESTING: usize = 64;
/// Maximum nesting of sequences of steps. Their parser tries several alternatives per level.
const MAX_STEPS: usize = 8;

/// A `tokenizer.json` without its vocabulary.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Pipeline {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    post_processor: Value,
    pub(super) decoder: Value,
}

impl Pipeline {
    /// The token that the post-processor puts at the beginning of a text, such as `<s>`. `None`: it puts none there.
    pub(super) fn first_token(&self) -> Option<&str> {
        let steps = self.post_processor["processors"].as_array();
        let steps = steps.map_or(std::slice::from_ref(&self.post_processor), Vec::as_slice);
        let template = steps.iter().find(|step| step["type"] == "TemplateProcessing")?;
        template["single"][0]["SpecialToken"]["id"].as_str()
    }
}

/// Reads the steps. Rejects steps whose parser would overflow the stack or not terminate in reasonable time:
/// steps that are nested too deep, patterns that are too long or nested too deep.
pub(super) fn check(json: &[u8], file: &Path) -> Result<Pipeline, TokenizerError> {
    let read = serde_json::from_slice::<Pipeline>(json);
    if json.trim_ascii_start().starts_with(b"[") && read.is_ok() {
        return Err(bad(file, "a tokenizer.json of HF tokenizers", "a list"));
    }
    let pipeline = read.map_err(|e| bad(file, "a tokenizer.json of HF tokenizers", found_at_line(&e)))?;
    let steps = [
        ("normalizer", &pipeline.normalizer),
        ("pre_tokenizer", &pipeline.pre_tokenizer),
        ("post_processor", &pipeline.post_processor),
        ("decoder", &pipeline.decoder),
    ];
    steps.into_iter().try_for_each(|(name, value)| walk(value, 0, name, file))?;
    Ok(pipeline)
}

fn walk(value: &Value, depth: usize, name: &str, file: &Path) -> Result<(), TokenizerError> {
    // a sequence is an object that contains a list; its last step is an object that contains an object
    if depth > 2 * MAX_STEPS + 2 {
        return Err(bad(file, format!("steps nested at most {MAX_STEPS} deep in {name}"), "more"));
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, depth + 1, name, file)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match value {
            Value::String(pattern) if key == "Regex" => check_pattern(pattern, name, file),
            value => walk(value, depth + 1, name, file),
        }),
        _ => Ok(()),
    }
}

/// An error of HF's parser in words. The parser names its own types only; the words name the field of the file.
pub(super) fn in_words(json: &[u8], error: &str) -> String {
    let text = error.rsplit_once(" at line ").map_or(error, |(text, _)| text);
    if text.contains("Model missing") {
        return "an object without the field `model`".into();
    }
    if text.contains("Missing vocab/merges") {
        return "a `model` without `vocab` or `merges`".into();
    }
    match field_of(json, text) {
        Some(field) if text.contains("untagged enum") => {
            format!("{field}, which is unknown or lacks a field")
        }
        Some(field) => format!("{field}: {text}"),
        None => other_value(text).unwrap_or_else(|| text.into()),
    }
}

/// The field of a `tokenizer.json` that an error of HF's parser is about.
fn field_of(json: &[u8], error: &str) -> Option<String> {
    const UNTAGGED: [(&str, &str); 5] = [
        ("ModelUntagged", "model"),
        ("NormalizerUntagged", "normalizer"),
        ("PreTokenizerUntagged", "pre_tokenizer"),
        ("PostProcessorUntagged", "post_processor"),
        ("DecoderUntagged", "decoder"),
    ];
    if error.contains("out of vocabulary") {
        return Some("model.merges".into());
    }
    let json: Value = serde_json::from_slice(json).ok()?;
    if error.contains("Parsing error at position") {
        let with_pattern = |(_, field): &&(&str, &str)| json[*field].to_string().contains("\"Regex\":");
        let fields: Vec<&str> = UNTAGGED.iter().filter(with_pattern).map(|(_, field)| *field).collect();
        return Some(format!("a pattern of {}", fields.join(" or ")));
    }
    let (_, field) = UNTAGGED.iter().find(|(name, _)| error.contains(name))?;
    Some(format!("{field} of type {}", json[*field]["type"]))
}

fn check_pattern(pattern: &str, name: &str, file: &Path) -> Result<(), TokenizerError> {
    let want = |limit: String| format!("a pattern {limit} in {name}");
    if pattern.len() > MAX_PATTERN {
        return Err(bad(file, want(format!("of at most {MAX_PATTERN} bytes")), pattern.len().to_string()));
    }
    let (mut depth, mut deepest, mut escaped) = (0usize, 0, false);
    for byte in pattern.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    match deepest {
        0..=MAX_NESTING => Ok(()),
        _ => Err(bad(file, want(format!("nested at most {MAX_NESTING} deep")), deepest.to_string())),
    }
}
