//! JSON of untrusted files: a nesting check for recursive parsers, and parser errors in words. Sorted objects.
use serde::de::DeserializeSeed;
use serde_json::Value;
use serde_json::error::{Category, Error};
use xtrain_tensor::faults::{self, Fault};

mod unique;

/// Maximum nesting of brackets.
pub(crate) const MAX_DEPTH: usize = 64;

/// The offset of the first bracket outside strings that is nested deeper than [`MAX_DEPTH`]. `None`: there is none.
pub(crate) fn too_deep(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    bytes.iter().position(|&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > MAX_DEPTH
    })
}

/// The first integer outside strings that would be rounded: it does not fit in 64 bits, and no f64 is equal to it.
/// `None`: there is none. `text` is JSON.
pub fn rounded_integer(text: &str) -> Option<&str> {
    if faults::on(Fault::RoundedIntegersAccepted) {
        return None;
    }
    let is_rounded = |number: &str| {
        let is_wide = number.parse::<u64>().is_err() && number.parse::<i64>().is_err();
        is_wide && number.parse::<f64>().is_ok_and(|nearest| format!("{nearest:.0}") != number)
    };
    let is_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    let (bytes, mut at) = (text.as_bytes(), 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            byte if byte.is_ascii_digit() || byte == b'-' => {
                let len = bytes[at..].iter().take_while(|&&byte| is_number(byte)).count();
                let number = &text[at..at + len];
                if !number.contains(['.', 'e', 'E']) && is_rounded(number) {
                    return Some(number);
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    None
}

/// Parses a value. Keys that an object has twice are an error.
pub(crate) fn from_unique(text: &str) -> Result<Value, Error> {
    if faults::on(Fault::LastOfRepeatedKeys) {
        return serde_json::from_str(text);
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = unique::Unique.deserialize(&mut parser)?;
    parser.end().map(|()| value)
}

/// `value` with the keys of all its objects in ascending order.
pub fn sorted(mut value: Value) -> Value {
    value.sort_all_objects();
    value
}

/// What a parser found instead of the expected JSON, in words that complete the sentence "expected ..., found ...".
pub fn found(error: &Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
    match error.classify() {
        Category::Eof if error.column() == 0 && text == "EOF while parsing a value" => "no text".into(),
        Category::Eof => match text.strip_prefix("EOF while parsing ") {
            Some(inside @ ("a string" | "an object" | "a list")) => format!("JSON that ends inside {inside}"),
            _ => "JSON that ends too early".into(),
        },
        Category::Data => other_value(text).unwrap_or_else(|| "another JSON value".into()),
        _ if (error.line(), error.column()) <= (1, 1) => "text that is not JSON".into(),
        _ => "invalid JSON".into(),
    }
}

/// [`found`] in one line, with the column.
pub fn found_at_column(error: &Error) -> String {
    match error.column() {
        0 => found(error),
        column => format!("{} at column {column}", found(error)),
    }
}

/// [`found`] in a file, with line and column.
pub fn found_at_line(error: &Error) -> String {
    match error.column() {
        0 => found(error),
        column => format!("{} at line {}, column {column}", found(error), error.line()),
    }
}

/// Maximum length of a quoted value in characters.
const MAX_SHOWN: usize = 60;

/// The words for an error about a value: a field that is missing or unknown, or another type. `None`: another error.
pub(crate) fn other_value(text: &str) -> Option<String> {
    if let Some(field) = text.strip_prefix("missing field ") {
        return Some(format!("an object without the field {field}"));
    }
    if let Some(rest) = text.strip_prefix("unknown field ") {
        let field = rest.split(", ").next().unwrap_or(rest);
        return Some(format!("an object with the unknown field {field}"));
    }
    if let Some(rest) = text.strip_prefix("unknown variant ") {
        let (value, known) = rest.split_once(", expected ")?;
        return Some(format!("{value} instead of {known}"));
    }
    if let Some(field) = text.strip_prefix("duplicate field ") {
        return Some(format!("an object with the field {field} twice"));
    }
    let value = text.strip_prefix("invalid type: ").or(text.strip_prefix("invalid value: "))?;
    let (value, want) = value.rsplit_once(", expected ")?;
    Some(format!("{} instead of {}", kind_of(value), type_of(want)))
}

/// The words for a value as the parser names it: `integer 5`, `map`.
fn kind_of(value: &str) -> String {
    let (kind, content) = value.split_once(' ').unwrap_or((value, ""));
    let content = content.strip_prefix("point ").unwrap_or(content).trim_matches('`');
    let content: String = content.chars().take(MAX_SHOWN).collect();
    match kind {
        "map" => "an object".into(),
        "sequence" => "a list".into(),
        "floating" => format!("the number {content}"),
        "integer" | "string" | "boolean" => format!("the {kind} {content}"),
        other => other.into(),
    }
}

/// The words for an expected type as the parser names it.
fn type_of(want: &str) -> &str {
    match want {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a borrowed string" => "a string",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its errors are used")]
    struct Sample {
        ids: Vec<u32>,
        name: String,
        score: f32,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code, reason = "only its errors are used")]
    enum Kind {
        Eos,
        Stop,
        Length,
    }

    #[test]
    fn errors_of_the_parser_are_words() {
        for (text, want) in [
            ("{\"name\": \"a", "JSON that ends inside a string at line 1, column 11"),
            ("{\"ids\": [1", "JSON that ends inside a list at line 1, column 10"),
            ("{\"ids\": [1]", "JSON that ends inside an object at line 1, column 11"),
            ("{\"ids\": [1]\n", "JSON that ends inside an object"),
            ("", "no text"),
            ("\n", "no text"),
            ("{\"ids\": ", "JSON that ends too early at line 1, column 8"),
            ("The quick", "text that is not JSON at line 1, column 1"),
            ("{\n \"ids\": [1,]}", "invalid JSON at line 2, column 12"),
            ("{}", "an object without the field `ids` at line 1, column 2"),
            ("{\"idx\": 1}", "an object with the unknown field `idx` at line 1, column 6"),
            ("{\"ids\": [1], \"ids\": [1]}", "an object with the field `ids` twice at line 1, column 18"),
            (
                "{\"ids\": [-1]}",
                "the integer -1 instead of a whole number of at least 0 at line 1, column 11",
            ),
            ("{\"ids\": 1.5}", "the number 1.5 instead of a list at line 1, column 11"),
            ("{\"ids\": {}}", "an object instead of a list at line 1, column 8"),
            ("{\"kind\": \"end\"}", "`end` instead of one of `eos`, `stop`, `length` at line 1, column 14"),
            ("{\"name\": null}", "null instead of a string at line 1, column 13"),
            ("{\"score\": \"1\"}", "the string \"1\" instead of a number at line 1, column 13"),
        ] {
            let error = serde_json::from_str::<Sample>(text).unwrap_err();
            assert_eq!(found_at_line(&error), want, "{text}: {error}");
        }
        let error = serde_json::from_str::<Sample>("[1").unwrap_err();
        assert!(!found(&error).contains("struct"), "{error}: {}", found(&error));
    }

    #[test]
    fn only_brackets_outside_strings_count() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(too_deep(nested(MAX_DEPTH).as_bytes()), None);
        assert_eq!(too_deep(nested(MAX_DEPTH + 1).as_bytes()), Some(MAX_DEPTH));
        assert_eq!(too_deep(nested(30).repeat(9).as_bytes()), None, "adjacent");
        let quoted = format!("[\"\\\"{}\"]", "[{".repeat(100));
        assert_eq!(too_deep(quoted.as_bytes()), None, "{quoted}");
    }
}
