//! The byte-level alphabet of GPT-2: one printable character for each byte.

/// The character of `byte` in a byte-level vocabulary: the byte itself if it is printable (33..=126, 161..=172,
/// 174..=255), else the next of U+0100, U+0101, ... in increasing order of bytes.
pub(super) fn char_of(byte: u8) -> char {
    let moved = match byte {
        0..=32 => u32::from(byte),
        127..=160 => u32::from(byte) - 127 + 33,
        173 => 67,
        _ => return char::from(byte),
    };
    char::from_u32(256 + moved).expect("U+0100..=U+0143 are characters")
}

/// The byte of the character `c`. `None`: `c` is not in the alphabet.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ (33..=126 | 161..=172 | 174..=255) => u8::try_from(n).ok(),
        n @ 256..=288 => u8::try_from(n - 256).ok(),
        n @ 289..=322 => u8::try_from(n - 289 + 127).ok(),
        323 => Some(173),
        _ => None,
    }
}

/// The bytes of a vocabulary entry: its characters mapped back, or its UTF-8 if one of them is not in the alphabet
/// (the rule of HF's `ByteLevel` decoder).
pub(super) fn bytes_of(token: &str) -> Vec<u8> {
    token.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_unique_character() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!((byte_of(' '), byte_of('日'), byte_of('\u{144}')), (None, None, None));
    }

    #[test]
    fn a_token_outside_the_alphabet_has_the_bytes_of_its_utf8() {
        assert_eq!(bytes_of("Ġcafé"), b" caf\xe9");
        assert_eq!(bytes_of("a b"), b"a b");
        assert_eq!(bytes_of("日本"), "日本".as_bytes());
    }
}
