//! Generated text, made safe for a terminal.

/// Replaces every control character except line break and tab by U+FFFD. A model can generate escape sequences, which
/// a terminal would execute.
pub(crate) fn printable(text: &str) -> String {
    let replaced =
        |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_escape_sequence() {
        assert_eq!(printable("a\u{1b}[2J\tb\r\nc\0\u{9b}é"), "a\u{fffd}[2J\tb\u{fffd}\nc\u{fffd}\u{fffd}é");
    }
}
