//! The tags of a template, by the rules of jinja.
use std::ops::Range;

/// The content of a tag without its whitespace control.
pub(super) fn tag_content(inner: &str) -> &str {
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    inner.strip_suffix(['-', '+']).unwrap_or(inner).trim()
}

/// The byte ranges of the `{% %}` tags of a template, in order, except those in comments, expressions and raw blocks.
pub(super) fn tags(source: &str) -> impl Iterator<Item = Range<usize>> {
    spans(source).filter(|span| source[span.clone()].starts_with("{%"))
}

/// The lengths of the code in the tags and expressions of a template, without string literals. Includes an unclosed
/// one, which the engine also parses.
pub(super) fn code_lengths(source: &str) -> impl Iterator<Item = usize> {
    let closed: Vec<Range<usize>> = spans(source).collect();
    let rest = &source[closed.last().map_or(0, |span| span.end)..];
    let open = rest.find("{{").into_iter().chain(rest.find("{%")).min();
    let code = closed.into_iter().map(|span| &source[span]).chain(open.map(|open| &rest[open..]));
    code.map(|code| if code.starts_with("{#") { 0 } else { code_length(code) })
}

/// The number of bytes outside string literals.
fn code_length(code: &str) -> usize {
    let (mut quote, mut escaped, mut length) = (None, false, 0);
    for byte in code.bytes() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None => {
                length += 1;
                if matches!(byte, b'"' | b'\'') {
                    quote = Some(byte);
                }
            }
        }
    }
    length
}

/// The byte ranges of all tags, expressions and comments outside raw blocks.
fn spans(source: &str) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = source.as_bytes();
        let opens = |&i: &usize| matches!(bytes.get(i + 1), Some(b'%' | b'{' | b'#'));
        let start = source[at..].match_indices('{').map(|(i, _)| at + i).find(opens)?;
        let end = match bytes[start + 1] {
            b'#' => source[start + 2..].find("#}").map(|i| start + 4 + i)?,
            b'{' => end_of(source, start + 2, "}}")?,
            _ => end_of(source, start + 2, "%}")?,
        };
        let is_raw = bytes[start + 1] == b'%' && tag_content(&source[start + 2..end - 2]) == "raw";
        at = if is_raw { end_of_raw(source, end)? } else { end };
        Some(start..end)
    })
}

/// The offset after the first `close` outside string literals.
fn end_of(source: &str, from: usize, close: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut quote) = (from, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return Some(at + close.len()),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The offset of the tag that ends a raw block.
fn end_of_raw(source: &str, from: usize) -> Option<usize> {
    let tags = source[from..].match_indices("{%").map(|(i, _)| from + i);
    tags.into_iter().find(|&at| {
        let inner = source[at + 2..].split("%}").next().unwrap_or_default();
        tag_content(inner) == "endraw"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, want: &[&str]) {
        let found: Vec<&str> = tags(source).map(|tag| &source[tag]).collect();
        assert_eq!(found, want, "{source}");
    }

    #[test]
    fn code_is_counted_outside_string_literals() {
        let lengths = |source| code_lengths(source).collect::<Vec<_>>();
        assert_eq!(lengths("a{{ 'long' + x }}{# comment #}{% if \"\\\"\" %}"), [11, 0, 10]);
        assert_eq!(lengths("{% if x %}{{ open 'text"), [10, 9]);
        assert_eq!(lengths("plain {"), [0; 0]);
    }

    #[test]
    fn tags_are_those_outside_strings_comments_and_raw_text() {
        check("a{% if x %}b{%- endif -%}", &["{% if x %}", "{%- endif -%}"]);
        check("{# {% a %} #}{{ '{% b %}' }}{% set x = '%}' %}", &["{% set x = '%}' %}"]);
        check("{% raw %}{% generation %}{%- endraw %}{% z %}", &["{% raw %}", "{%- endraw %}", "{% z %}"]);
        check("{{ 'it\\'s }} {% x %}' }}{% y %}", &["{% y %}"]);
        check("{ {% open", &[]);
        check("{{ 'open", &[]);
        check("é{% é %}", &["{% é %}"]);
    }
}
