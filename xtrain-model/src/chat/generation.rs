//! `{% generation %}`: HF's block around what the assistant says, in words that minijinja knows.
use std::ops::Range;

/// The variables whose text marks where a block begins and ends.
pub(super) const MARKS: [&str; 2] = ["__generation_begins", "__generation_ends"];

/// `source` with every `{% generation %}` block as a scope of its own between the two marks; the whitespace
/// around the tags is controlled as theirs. And whether there is such a block.
///
/// The opening tag becomes `{% if true %}{{ begins }}{% with %}`, the closing one
/// `{% endwith %}{{ ends }}{% endif %}`; the `-` and `+` of its sides stay at the outer sides.
pub(super) fn rewrite(source: &str) -> (String, bool) {
    let (mut out, mut from, mut found) = (String::with_capacity(source.len()), 0, false);
    for tag in (Tags { source, at: 0 }) {
        let inner = &source[tag.start + 2..tag.end - 2];
        let side =
            |c: Option<char>| c.filter(|c| matches!(c, '-' | '+')).map(String::from).unwrap_or_default();
        let (left, right) = (side(inner.chars().next()), side(inner.chars().next_back()));
        let [begins, ends] = MARKS;
        let new = match word(inner) {
            "generation" => format!("{{%{left} if true %}}{{{{ {begins} }}}}{{% with {right}%}}"),
            "endgeneration" => format!("{{%{left} endwith %}}{{{{ {ends} }}}}{{% endif {right}%}}"),
            _ => continue,
        };
        out.push_str(&source[from..tag.start]);
        out.push_str(&new);
        (from, found) = (tag.end, true);
    }
    out.push_str(&source[from..]);
    (out, found)
}

/// What a tag says, without its whitespace control.
fn word(inner: &str) -> &str {
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    inner.strip_suffix(['-', '+']).unwrap_or(inner).trim()
}

/// The places of the `{% %}` tags of a template, in order; those in comments, expressions and raw blocks are
/// none.
struct Tags<'s> {
    source: &'s str,
    at: usize,
}

impl Iterator for Tags<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        loop {
            let rest = &self.source[self.at..];
            let open = rest
                .match_indices('{')
                .map(|(i, _)| i)
                .find(|&i| matches!(rest.as_bytes().get(i + 1), Some(b'%' | b'{' | b'#')))?;
            let start = self.at + open;
            let (close, is_tag) = match rest.as_bytes()[open + 1] {
                b'#' => (self.source[start + 2..].find("#}").map(|i| start + 4 + i)?, false),
                b'{' => (after(self.source, start + 2, "}}")?, false),
                _ => (after(self.source, start + 2, "%}")?, true),
            };
            self.at = close;
            if !is_tag {
                continue;
            }
            if word(&self.source[start + 2..close - 2]) == "raw" {
                self.at = end_of_raw(self.source, close)?;
            }
            return Some(start..close);
        }
    }
}

/// The place after the first `close` outside string literals.
fn after(source: &str, from: usize, close: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut quote) = (from, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return Some(at + close.len()),
            (None, _) => {}
        }
        at += 1;
    }
    None
}

/// The place of the tag that ends a raw block.
fn end_of_raw(source: &str, from: usize) -> Option<usize> {
    let tags = source[from..].match_indices("{%").map(|(i, _)| from + i);
    tags.into_iter().find(|&at| {
        let inner = source[at + 2..].split("%}").next().unwrap_or_default();
        word(inner) == "endraw"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, tags: &[&str]) {
        let found: Vec<&str> = Tags { source, at: 0 }.map(|tag| &source[tag]).collect();
        assert_eq!(found, tags, "{source}");
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

    #[test]
    fn a_block_keeps_its_whitespace_control_and_others_are_left_alone() {
        let (out, found) = rewrite("x{%- generation +%}y{% endgeneration -%}z");
        let want = "x{%- if true %}{{ __generation_begins }}{% with +%}y{% endwith %}{{ __generation_ends }}\
                    {% endif -%}z";
        assert_eq!((out.as_str(), found), (want, true));
        let other = "{{ '{% generation %}' }}{# {% generation %} #}";
        assert_eq!(rewrite(other), (other.to_string(), false));
    }
}
