//! Every variant of [`TokenizerError`], each from a file or call with one defect.
use std::path::Path;

use super::*;
use xtrain_tensor::testing::named_cases::{check, variants};

const FILE: &str = "some/tokenizer.json";

/// A vocabulary of one word piece.
const WORD_PIECES: &str = r###"{"version": "1.0", "added_tokens": [], "decoder": {"type": "WordPiece", "prefix": "##",
    "cleanup": false}, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"###;

/// The error for these bytes as a `tokenizer.json`.
fn from_bytes(json: &str) -> TokenizerError {
    Tokenizer::from_json(json.into(), Path::new(FILE)).unwrap_err()
}

/// A vocabulary of one word without its token for unknown words.
fn word_without_a_token() -> TokenizerError {
    let json = r#"{"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true}, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}"#;
    Tokenizer::from_json(json.into(), Path::new(FILE)).unwrap().encode("b").unwrap_err()
}

fn small_vocabulary() -> TokenizerError {
    Tokenizer::train_bpe(["a".to_string()].into_iter(), 256, &[]).unwrap_err()
}

fn unknown_end_of_text() -> TokenizerError {
    let (json, config) = (byte::to_json().into_bytes(), r#"{"eos_token": "</s>"}"#);
    Tokenizer::from_parts(json, Some(config.into()), Path::new(FILE)).unwrap_err()
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(TokenizerError: Io Format Unsupported Argument Encode);
    let missing = Tokenizer::load(Path::new("nowhere/tokenizer.json")).unwrap_err();
    check(
        &variants,
        &[
            ("no file", missing, &["nowhere/tokenizer.json: cannot open: no such file"]),
            ("no JSON", from_bytes("{"), &["some/tokenizer.json: expected a tokenizer.json", "line 1"]),
            ("too deep", from_bytes(&"[".repeat(65)), &["some/tokenizer.json: ", "at byte 64"]),
            (
                "an unknown end-of-text token",
                unknown_end_of_text(),
                &["some/tokenizer_config.json: ", "eos_token", "</s>"],
            ),
            (
                "a decoder of words",
                from_bytes(WORD_PIECES),
                &["some/tokenizer.json: tokenizer not supported", "found WordPiece"],
            ),
            (
                "a small vocabulary",
                small_vocabulary(),
                &["train_bpe: expected a vocabulary of 257", "found 256"],
            ),
            ("a word without a token", word_without_a_token(), &["could not encode the text: ", "[UNK]"]),
        ],
    );
}
