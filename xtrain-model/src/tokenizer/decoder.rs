//! The decoder of a `tokenizer.json`: the bytes of each token, and what is removed from the beginning of a text.
use serde_json::Value;

use super::alphabet::bytes_of;

/// What a supported decoder is, for errors.
pub(super) const SUPPORTED: &str =
    "a decoder of type ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, Fuse and Strip";

/// What is removed from the beginning of a decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Beginning {
    /// Nothing.
    #[default]
    Whole,
    /// Up to this number of spaces.
    Spaces(usize),
    /// The character that stands for a space, wherever it occurs in the first token.
    InFirstToken(char),
}

/// A decoder that maps each token to bytes, independently of its neighbors.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    byte_level: bool,
    /// Replacements, in order.
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    fused: bool,
    pub(super) beginning: Beginning,
}

impl Decoder {
    /// Reads the `decoder` of a `tokenizer.json`. `None`: a decoder of another kind.
    pub(super) fn read(json: &Value) -> Option<Decoder> {
        let mut decoder = Decoder::default();
        if json["type"] != "Sequence" {
            return matches!(json["type"].as_str(), Some("ByteLevel" | "Metaspace"))
                .then(|| decoder.add(json))?
                .then_some(decoder);
        }
        let steps = json["decoders"].as_array()?;
        (!steps.is_empty() && steps.iter().all(|step| decoder.add(step))).then_some(decoder)
    }

    /// Adds a step. Returns false for one that is not supported, or not at this place.
    fn add(&mut self, step: &Value) -> bool {
        if self.byte_level || self.fused && step["type"] != "Strip" {
            return false;
        }
        match step["type"].as_str() {
            Some("ByteLevel") => {
                self.byte_level = true;
                self.replace.is_empty() && !self.byte_fallback
            }
            Some("Replace") => {
                let (from, to) = (step["pattern"]["String"].as_str(), step["content"].as_str());
                let (Some(from), Some(to)) = (from.filter(|from| !from.is_empty()), to) else { return false };
                self.replace.push((from.into(), to.into()));
                // no token becomes longer
                to.len() <= from.len() && !self.byte_fallback
            }
            Some("ByteFallback") => {
                self.byte_fallback = true;
                true
            }
            Some("Fuse") => {
                self.fused = true;
                true
            }
            Some("Strip") if self.fused && self.beginning == Beginning::Whole => {
                let spaces = step["start"].as_u64().and_then(|n| usize::try_from(n).ok());
                self.beginning = Beginning::Spaces(spaces.unwrap_or(0));
                step["content"] == " " && step["stop"] == 0
            }
            Some("Metaspace") if self.replace.is_empty() => {
                let mut text = step["replacement"].as_str().unwrap_or_default().chars();
                let (Some(space), None) = (text.next(), text.next()) else { return false };
                self.replace.push((space.into(), " ".into()));
                if step["prepend_scheme"] != "never" {
                    self.beginning = Beginning::InFirstToken(space);
                }
                !self.byte_fallback
            }
            _ => false,
        }
    }

    /// The bytes of a token.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        if self.byte_level {
            return bytes_of(token);
        }
        let replaced = |token: String, (from, to): &(String, String)| token.replace(from, to);
        let text = self.replace.iter().fold(token.to_string(), replaced);
        match byte(&text).filter(|_| self.byte_fallback) {
            Some(byte) => vec![byte],
            None => text.into_bytes(),
        }
    }
}

/// The byte of a token `<0xHH>`.
pub(crate) fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sequence(steps: &[Value]) -> Option<Decoder> {
        Decoder::read(&json!({"type": "Sequence", "decoders": steps}))
    }

    #[test]
    fn a_token_is_replaced_and_then_a_byte() {
        let (replace, bytes, fuse, strip) = (
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
            json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        );
        let llama = sequence(&[replace.clone(), bytes.clone(), fuse.clone(), strip.clone()]).unwrap();
        assert_eq!((llama.bytes("▁a▁"), llama.bytes("<0xE4>")), (b" a ".to_vec(), vec![0xe4]));
        assert_eq!((llama.bytes("<0xG0>"), llama.beginning), (b"<0xG0>".to_vec(), Beginning::Spaces(1)));
        assert_eq!(sequence(&[replace.clone(), fuse.clone()]).unwrap().bytes("<0x41>"), b"<0x41>");
        let of =
            |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        assert_eq!(sequence(&[of("_", " "), fuse.clone()]).unwrap().bytes("_a"), b" a", "of equal length");
        assert!(sequence(&[of("_", "  "), fuse.clone()]).is_none(), "a token would become longer");
        let regex = json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""});
        let ends = json!({"type": "Strip", "content": " ", "start": 0, "stop": 1});
        for refused in [
            vec![],
            vec![regex, fuse.clone()],
            vec![replace.clone(), strip.clone()],
            vec![fuse.clone(), ends],
            vec![fuse.clone(), replace.clone()],
            vec![bytes, replace],
            vec![json!({"type": "WordPiece", "prefix": "##"})],
        ] {
            assert!(sequence(&refused).is_none(), "{refused:?}");
        }
        assert!(Decoder::read(&Value::Null).is_none() && Decoder::read(&fuse).is_none());
    }

    #[test]
    fn metaspace_begins_with_a_space_unless_it_never_prepends() {
        let metaspace = |scheme: &str| {
            Decoder::read(&json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme}))
                .unwrap()
        };
        assert_eq!(metaspace("first").beginning, Beginning::InFirstToken('▁'));
        assert_eq!(
            (metaspace("never").beginning, metaspace("never").bytes("▁a")),
            (Beginning::Whole, b" a".into())
        );
    }
}
