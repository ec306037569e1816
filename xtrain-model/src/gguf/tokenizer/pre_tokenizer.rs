//! The pre-tokenizers of byte-level BPEs by their names in GGUF.
use serde_json::{Value as Json, json};

/// A pre-tokenizer of GGUF.
pub(super) struct PreTokenizer {
    pub(super) name: &'static str,
    /// The split pattern. `None`: the pattern of GPT-2.
    pattern: Option<&'static str>,
    /// Whether text is normalized to NFC first.
    pub(super) nfc: bool,
    /// Whether whole words of the vocabulary take precedence over merges.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with the BOS token if the file does not say so.
    pub(super) adds_bos: bool,
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The supported pre-tokenizers. The first is the default.
pub(super) const PRE_TOKENIZERS: [PreTokenizer; 3] = [
    PreTokenizer { name: "gpt-2", pattern: None, nfc: false, ignore_merges: false, adds_bos: false },
    PreTokenizer { name: "qwen2", pattern: Some(QWEN2), nfc: true, ignore_merges: false, adds_bos: false },
    PreTokenizer {
        name: "llama-bpe",
        pattern: Some(LLAMA3),
        nfc: false,
        ignore_merges: true,
        adds_bos: true,
    },
];

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// The `pre_tokenizer` of a `tokenizer.json`.
pub(super) fn pre_tokenizer(pre: &PreTokenizer) -> Json {
    let Some(pattern) = pre.pattern else { return byte_level(true) };
    let split =
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
}

/// The GGUF pre-tokenizer that is equivalent to `json`, the `pre_tokenizer` of a `tokenizer.json`. Without merges all
/// pre-tokenizers are equivalent.
pub(super) fn find_pre_tokenizer(json: &Json, no_merges: bool) -> Option<&'static PreTokenizer> {
    if no_merges && json["type"] == "ByteLevel" {
        return Some(&PRE_TOKENIZERS[0]);
    }
    let is_byte_level = |step: &Json, use_regex: bool| {
        step["type"] == "ByteLevel" && step["use_regex"] == use_regex && step["add_prefix_space"] == false
    };
    PRE_TOKENIZERS.iter().find(|pre| {
        let (want, steps) = (&pre_tokenizer(pre)["pretokenizers"], &json["pretokenizers"]);
        match pre.pattern {
            None => is_byte_level(json, true),
            Some(_) => want[0] == steps[0] && is_byte_level(&steps[1], false) && steps[2].is_null(),
        }
    })
}
