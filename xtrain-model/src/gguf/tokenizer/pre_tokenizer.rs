//! The pre-tokenizers of byte-level BPEs by their names in GGUF.
use serde_json::{Value as Json, json};

use crate::tokenizer::QWEN2_PATTERN;

/// How a text is split into words.
enum Split {
    /// The pattern of GPT-2.
    Gpt2,
    /// Each digit is a word of its own; the pattern of GPT-2 splits the rest.
    Digits,
    /// A pattern.
    Pattern(&'static str),
}

/// A pre-tokenizer of GGUF.
pub(super) struct PreTokenizer {
    pub(super) name: &'static str,
    split: Split,
    /// Whether text is normalized to NFC first.
    pub(super) nfc: bool,
    /// Whether whole words of the vocabulary take precedence over merges.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with the BOS token if the file does not say so.
    pub(super) adds_bos: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The supported pre-tokenizers.
pub(super) const PRE_TOKENIZERS: [PreTokenizer; 4] = [
    GPT2,
    PreTokenizer { name: "qwen2", split: Split::Pattern(QWEN2_PATTERN), nfc: true, ..GPT2 },
    PreTokenizer {
        name: "llama-bpe",
        split: Split::Pattern(LLAMA3),
        ignore_merges: true,
        adds_bos: true,
        ..GPT2
    },
    PreTokenizer { name: "smollm", split: Split::Digits, ..GPT2 },
];

const GPT2: PreTokenizer =
    PreTokenizer { name: "gpt-2", split: Split::Gpt2, nfc: false, ignore_merges: false, adds_bos: false };

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// The `pre_tokenizer` of a `tokenizer.json`.
pub(super) fn pre_tokenizer(pre: &PreTokenizer) -> Json {
    let (split, uses_regex) = match pre.split {
        Split::Gpt2 => return byte_level(true),
        Split::Digits => (json!({"type": "Digits", "individual_digits": true}), true),
        Split::Pattern(pattern) => {
            let pattern = json!({"Regex": pattern});
            (json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false}), false)
        }
    };
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(uses_regex)]})
}

/// Whether a `normalizer` of a `tokenizer.json` is NFC. `None`: it is another one.
pub(super) fn is_nfc(json: &Json) -> Option<bool> {
    match json["type"].as_str() {
        None if json.is_null() => Some(false),
        Some("NFC") => Some(true),
        Some("Sequence") => match &json["normalizers"].as_array()?[..] {
            [] => Some(false),
            [one] => is_nfc(one),
            _ => None,
        },
        _ => None,
    }
}

/// The supported pre-tokenizer with this name of GGUF. Those of Llama 3 and Qwen2 have several names, as in llama.cpp.
pub(super) fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    let name = match name {
        "llama3" | "llama-v3" => "llama-bpe",
        "deepseek-r1-qwen" => "qwen2",
        name => name,
    };
    PRE_TOKENIZERS.iter().find(|pre| pre.name == name)
}

/// The GGUF pre-tokenizer that is equivalent to `json`, the `pre_tokenizer` of a `tokenizer.json`. Without merges all
/// pre-tokenizers are equivalent.
pub(super) fn find_pre_tokenizer(json: &Json, no_merges: bool) -> Option<&'static PreTokenizer> {
    if no_merges && json["type"] == "ByteLevel" && json["add_prefix_space"] == false {
        return Some(&PRE_TOKENIZERS[0]);
    }
    let is_byte_level = |step: &Json, use_regex: bool| {
        step["type"] == "ByteLevel" && step["use_regex"] == use_regex && step["add_prefix_space"] == false
    };
    PRE_TOKENIZERS.iter().find(|pre| {
        let (want, steps) = (&pre_tokenizer(pre)["pretokenizers"], &json["pretokenizers"]);
        let of_sequence = |use_regex: bool| {
            want[0] == steps[0] && is_byte_level(&steps[1], use_regex) && steps[2].is_null()
        };
        match pre.split {
            Split::Gpt2 => is_byte_level(json, true),
            Split::Digits => of_sequence(true),
            Split::Pattern(_) => of_sequence(false),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(json: &Json, no_merges: bool) -> Option<&'static str> {
        find_pre_tokenizer(json, no_merges).map(|pre| pre.name)
    }

    #[test]
    fn a_pre_tokenizer_is_found_if_all_its_fields_are_equal() {
        for pre in &PRE_TOKENIZERS {
            let json = pre_tokenizer(pre);
            assert_eq!(name(&json, false), Some(pre.name));
            for (field, other) in [
                ("type", json!("Metaspace")),
                ("use_regex", json!(matches!(pre.split, Split::Pattern(_)))),
                ("add_prefix_space", json!(true)),
            ] {
                let mut changed = json.clone();
                let is_sequence = !matches!(pre.split, Split::Gpt2);
                let step = if is_sequence { &mut changed["pretokenizers"][1] } else { &mut changed };
                step[field] = other;
                assert_eq!(name(&changed, false), None, "{} with another {field}", pre.name);
            }
        }
        let named = |name: &str| by_name(name).map(|pre| pre.name);
        assert_eq!(["llama3", "llama-v3", "llama-bpe"].map(named), [Some("llama-bpe"); 3]);
        assert_eq!([named("qwen2"), named("deepseek-r1-qwen")], [Some("qwen2"); 2]);
        assert_eq!([named("smollm"), named("tekken"), named("none")], [Some("smollm"), None, None]);
        let mut split = pre_tokenizer(&PRE_TOKENIZERS[1]);
        split["pretokenizers"][0]["behavior"] = json!("Removed");
        assert_eq!(name(&split, false), None);
        let mut longer = pre_tokenizer(&PRE_TOKENIZERS[1]);
        longer["pretokenizers"].as_array_mut().unwrap().push(byte_level(false));
        assert_eq!(name(&longer, false), None);
    }

    #[test]
    fn without_merges_any_byte_level_step_is_that_of_gpt_2() {
        assert_eq!(name(&byte_level(false), true), Some("gpt-2"));
        assert_eq!(name(&byte_level(false), false), None);
        assert_eq!(name(&json!({"type": "Metaspace"}), true), None);
    }
}
