//! `{% generation %}`: HF's block around assistant text, rewritten to syntax that minijinja supports.
use super::tags::{tag_content, tags};

/// The variables whose text marks the start and the end of a block.
pub(super) const MARKS: [&str; 2] = ["__generation_begins", "__generation_ends"];

/// Rewrites every `{% generation %}` block of `source` to a scope between the two marks, with the same whitespace
/// control. Also returns whether there is such a block.
///
/// The opening tag becomes `{% if true %}{{ begins }}{% with %}`, the closing tag
/// `{% endwith %}{{ ends }}{% endif %}`. The `-` and `+` of a tag stay at the outer sides.
pub(super) fn rewrite(source: &str) -> (String, bool) {
    let (mut out, mut from, mut found) = (String::with_capacity(source.len()), 0, false);
    for tag in tags(source) {
        let inner = &source[tag.start + 2..tag.end - 2];
        let side =
            |c: Option<char>| c.filter(|c| matches!(c, '-' | '+')).map(String::from).unwrap_or_default();
        let (left, right) = (side(inner.chars().next()), side(inner.chars().next_back()));
        let [begins, ends] = MARKS;
        let new = match tag_content(inner) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_whitespace_control_and_other_text_is_unchanged() {
        let (out, found) = rewrite("x{%- generation +%}y{% endgeneration -%}z");
        let want = "x{%- if true %}{{ __generation_begins }}{% with +%}y{% endwith %}{{ __generation_ends }}\
                    {% endif -%}z";
        assert_eq!((out.as_str(), found), (want, true));
        let other = "{{ '{% generation %}' }}{# {% generation %} #}";
        assert_eq!(rewrite(other), (other.to_string(), false));
    }
}
