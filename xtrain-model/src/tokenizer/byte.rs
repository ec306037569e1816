//! The built-in tokenizer: a token is a byte.
use std::fmt::Write;
use std::ops::Range;

use serde_json::Value;

use super::alphabet::char_of;
use super::{END_OF_TEXT, Vocabulary};

/// The id of [`END_OF_TEXT`]; an id below it is the byte of that value.
pub(super) const END_OF_TEXT_ID: u32 = 256;

/// The ids of `text`: its UTF-8 bytes, with 256 for each `<|endoftext|>`.
pub(super) fn encode(text: &str) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    for (i, part) in text.split(END_OF_TEXT).enumerate() {
        if i > 0 {
            ids.push(END_OF_TEXT_ID);
        }
        ids.extend(part.bytes().map(u32::from));
    }
    ids
}

/// The ids of `text` with the bytes that each stands for.
pub(super) fn encode_with_places(text: &str) -> Vec<(u32, Range<usize>)> {
    let mut at = 0;
    let place = |id: u32| {
        let from = at;
        at += if id == END_OF_TEXT_ID { END_OF_TEXT.len() } else { 1 };
        (id, from..at)
    };
    encode(text).into_iter().map(place).collect()
}

pub(super) fn vocabulary() -> Vocabulary {
    let mut vocabulary = Vocabulary::default();
    for byte in 0..=255u8 {
        vocabulary.tokens.push(Some(Box::from([byte])));
    }
    vocabulary.tokens.push(Some(END_OF_TEXT.as_bytes().into()));
    vocabulary.special.push(END_OF_TEXT_ID);
    vocabulary
}

/// The tokenizer as a `tokenizer.json` that HF `tokenizers` and `transformers` open: a byte-level BPE
/// without merges, whose ids are the bytes.
pub(super) fn to_json() -> String {
    let mut vocab = String::new();
    for byte in 0..=255u8 {
        let key = Value::from(char_of(byte).to_string());
        let comma = if byte == 255 { "" } else { "," };
        write!(vocab, "\n      {key}: {byte}{comma}").expect("writing to a string cannot fail");
    }
    format!(
        r#"{{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [
    {{
      "id": {END_OF_TEXT_ID},
      "content": "{END_OF_TEXT}",
      "single_word": false,
      "lstrip": false,
      "rstrip": false,
      "normalized": false,
      "special": true
    }}
  ],
  "normalizer": null,
  "pre_tokenizer": {{
    "type": "ByteLevel",
    "add_prefix_space": false,
    "trim_offsets": true,
    "use_regex": false
  }},
  "post_processor": null,
  "decoder": {{
    "type": "ByteLevel",
    "add_prefix_space": false,
    "trim_offsets": true,
    "use_regex": false
  }},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{vocab}
    }},
    "merges": []
  }}
}}
"#
    )
}

/// Whether a `tokenizer.json` says what [`to_json`] says, whatever its spacing and order of keys.
pub(super) fn recognises(json: &[u8]) -> bool {
    const LARGER_THAN_ANY: usize = 64 << 10;
    if json.len() > LARGER_THAN_ANY {
        return false;
    }
    let ours: Value = serde_json::from_str(&to_json()).expect("the text above is JSON");
    serde_json::from_slice::<Value>(json).is_ok_and(|value| value == ours)
}
