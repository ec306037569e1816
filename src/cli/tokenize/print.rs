//! The output of `xtrain tokenize`.
use serde::Serialize;

use crate::cli::{CliError, out};
use crate::model::tokenizer::Tokenizer;
use crate::report::units;

/// The output of `--json` for one text.
#[derive(Serialize)]
struct Tokenized<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    ids: &'a [u32],
    pieces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assistant_mask: Option<Vec<u8>>,
    tokens: usize,
    bytes: usize,
    characters: usize,
}

/// A text and its tokens.
pub(super) struct TokenizedText<'a> {
    pub(super) text: &'a str,
    pub(super) ids: &'a [u32],
    /// Marks the tokens of the assistant. `None`: unknown.
    pub(super) mask: Option<&'a [bool]>,
    /// Include the text in the JSON output, because it is not the input.
    pub(super) print_text: bool,
}

/// Prints the tokens as a table or as JSON.
pub(super) fn print(
    tokenizer: &Tokenizer,
    tokenized: &TokenizedText<'_>,
    json: bool,
) -> Result<(), CliError> {
    let TokenizedText { text, ids, mask, print_text } = *tokenized;
    let pieces = ids.iter().map(|&id| tokenizer.decode(&[id]));
    let record = Tokenized {
        text: print_text.then_some(text),
        ids,
        pieces: pieces.collect(),
        assistant_mask: mask.map(|mask| mask.iter().map(|&inside| u8::from(inside)).collect()),
        tokens: ids.len(),
        bytes: text.len(),
        characters: text.chars().count(),
    };
    if json {
        return out::print_json(&record);
    }
    let mut lines = String::new();
    for (at, &id) in ids.iter().enumerate() {
        let mark = if mask.is_some_and(|mask| mask[at]) { " *" } else { "" };
        lines += &format!("{id:>7}  {}{mark}\n", quoted(tokenizer.token_bytes(id)));
    }
    let assistant = mask.map(|mask| mask.iter().filter(|inside| **inside).count());
    let assistant = assistant.map(|n| format!(" ({n} of the assistant)")).unwrap_or_default();
    let (tokens, bytes, characters) = (ids.len(), record.bytes, record.characters);
    let [tokens, bytes, characters] = [(tokens, "token"), (bytes, "byte"), (characters, "character")]
        .map(|(n, word)| units::many(n as u64, word));
    out::print(format!("{lines}{tokens}{assistant}, {bytes}, {characters}\n"))
}

/// Formats bytes as a string literal. Control characters and invalid UTF-8 are escaped.
fn quoted(bytes: &[u8]) -> String {
    let mut literal = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' | '\0'..=' ' if c != ' ' => literal.extend(c.escape_default()),
                c if c.is_control() => literal.extend(c.escape_default()),
                c => literal.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| literal += &format!("\\x{byte:02x}"));
    }
    literal + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_formatted_as_a_literal() {
        assert_eq!(quoted("a \"b\"\n\\é\u{1b}".as_bytes()), "\"a \\\"b\\\"\\n\\\\é\\u{1b}\"");
        assert_eq!(quoted(b"\xf0\x9fz"), "\"\\xf0\\x9fz\"");
    }
}
