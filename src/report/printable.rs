//! What a model said, fit for a terminal.

/// `text` with U+FFFD for every control character but line break and tab: an untrained model draws escape
/// sequences too, and a terminal would obey them.
pub fn printable(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_escape_sequence() {
        assert_eq!(printable("a\u{1b}[2J\tb\r\nc\0\u{9b}é"), "a\u{fffd}[2J\tb\u{fffd}\nc\u{fffd}\u{fffd}é");
    }
}
