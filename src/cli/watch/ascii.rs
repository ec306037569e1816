//! The dashboard in a locale that is not UTF-8.
use ratatui::buffer::Buffer;

/// Replaces the characters that the dashboard draws with by ASCII. Other characters stay.
pub(super) fn replace(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if let Some(text) = ascii(cell.symbol()) {
            cell.set_symbol(text);
        }
    }
}

/// The character in place of a line, a block or a Braille pattern. `None`: another character.
fn ascii(symbol: &str) -> Option<&'static str> {
    match symbol.chars().next()? {
        '\u{2500}' => Some("-"),
        '\u{2501}' => Some("="),
        '\u{2502}' => Some("|"),
        '\u{2503}'..='\u{257f}' => Some("+"),
        '\u{2580}'..='\u{259f}' => Some("#"),
        '\u{2800}' => Some(" "),
        '\u{2801}'..='\u{28ff}' => Some("*"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_characters_become_ascii_and_text_stays() {
        let drawn = [
            "\u{250c} loss \u{2510}",
            "5\u{2502}\u{28c0}\u{2800}\u{2809}\u{2502}",
            "\u{2514}\u{2500}\u{2500}\u{2518}\u{2588}",
            "\u{2501}\u{2501}\u{2500} \u{e9}",
        ];
        let mut buffer = Buffer::with_lines(drawn);
        replace(&mut buffer);
        assert_eq!(buffer, Buffer::with_lines(["+ loss +", "5|* *|", "+--+#", "==- \u{e9}"]));
    }
}
