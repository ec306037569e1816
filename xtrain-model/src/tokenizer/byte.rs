//! The built-in byte tokenizer: each byte is a token.
use std::fmt::Write;
use std::ops::Range;

use serde_json::Value;

use super::alphabet::char_of;
use super::vocabulary::{END_OF_TEXT, Vocabulary};

/// The id of [`END_OF_TEXT`]. Smaller ids are bytes.
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

/// The ids of `text`, each with its byte range in `text`.
pub(super) fn encode_with_offsets(text: &str) -> Vec<(u32, Range<usize>)> {
    let mut at = 0;
    let range = |id: u32| {
        let from = at;
        at += if id == END_OF_TEXT_ID { END_OF_TEXT.len() } else { 1 };
        (id, from..at)
    };
    encode(text).into_iter().map(range).collect()
}

pub(super) fn vocabulary() -> Vocabulary {
    let bytes = (0..=255u8).map(|byte| Some(Box::from([byte])));
    let tokens = bytes.chain([Some(END_OF_TEXT.as_bytes().into())]).collect();
    Vocabulary { tokens, special: vec![END_OF_TEXT_ID], ..Vocabulary::default() }
}

/// The tokenizer as a `tokenizer.json` for HF `tokenizers` and `transformers`: a byte-level BPE without merges whose
/// ids are the bytes.
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

/// Whether a `tokenizer.json` is equal to [`to_json`], ignoring whitespace and the order of keys.
pub(super) fn recognises(json: &[u8]) -> bool {
    const MAX_SIZE: usize = 64 << 10;
    if json.len() > MAX_SIZE {
        return false;
    }
    let built_in: Value = serde_json::from_str(&to_json()).expect("`to_json` returns JSON");
    serde_json::from_slice::<Value>(json).is_ok_and(|value| value == built_in)
}
