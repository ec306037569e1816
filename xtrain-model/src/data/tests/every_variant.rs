//! Every variant of [`DataError`], each from a file or call with one defect.
use super::*;
use xtrain_tensor::testing::named_cases::{check, variants};

/// The error for a file of that name.
fn file(name: &str, bytes: &[u8]) -> DataError {
    let dir = Scratch::new();
    prepared(&dir, &[dir.file(name, bytes)], &Tokenizer::byte()).unwrap_err()
}

/// The error for a token file.
fn packed(bytes: &[u8]) -> DataError {
    let dir = Scratch::new();
    TokenFile::open(&dir.file("in.tok", bytes)).unwrap_err()
}

/// The error for a file and a tokenizer whose only token is the word `a`.
fn word_without_a_token(name: &str, text: &str) -> DataError {
    let json = r#"{"version": "1.0", "added_tokens": [{"id": 1, "content": "<|endoftext|>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}], "decoder": {"type": "ByteLevel",
        "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}"#;
    let tokenizer = Tokenizer::from_json(json.into(), Path::new("tokenizer.json")).unwrap();
    let dir = Scratch::new();
    prepared(&dir, &[dir.file(name, text)], &tokenizer).unwrap_err()
}

#[test]
fn bytes_that_are_no_text_are_named() {
    for (bytes, want) in [
        (&b"ab\xe9"[..], "in.toml: expected UTF-8 text, found byte 0xe9 at byte 2"),
        (b"a\0b\xe9", "in.toml: expected UTF-8 text, found a zero byte (a binary file?) at byte 1"),
        (b"\xe9\0", "in.toml: expected UTF-8 text, found byte 0xe9 at byte 0"),
    ] {
        let error = String::from_utf8(bytes.to_vec()).unwrap_err();
        assert_eq!(DataError::not_text(Path::new("in.toml"), &error).to_string(), want);
    }
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants =
        variants!(DataError: Io NotText Empty Line Format Vocabulary TooShort NoTargets Argument Tokenizer);
    let missing = TokenFile::open(Path::new("nowhere/in.tok")).unwrap_err();
    let id = Tokens::from_ids(vec![3, 9], 5).unwrap_err();
    let short = Windows::new(0..4, 4, 0, WindowOrder::Random).unwrap_err();
    let single = Tokens::from_ids(vec![3], 5).unwrap();
    let single = Pieces::cut(&single, &(0..1), 4, Overflow::Split).unwrap();
    let single = DocumentWindows::pack(&single, 4, 0, WindowOrder::Random).unwrap_err();
    let nothing = prepare(&[], Path::new("out.tok"), &Tokenizer::byte(), &mut |_| ()).unwrap_err();
    check(
        &variants,
        &[
            ("no file", missing, &["nowhere/in.tok: cannot open: "]),
            (
                "bytes that are not text",
                file("in.txt", b"ab\xffc"),
                &["in.txt: expected UTF-8 text, ", "at byte 2"],
            ),
            ("a file without text", file("none.txt", b""), &["none.txt: expected text, found an empty file"]),
            (
                "a line that is not JSON",
                file("in.jsonl", b"{\"text\": \"a\"}\n[\n"),
                &["in.jsonl:2: expected "],
            ),
            ("an empty packed file", packed(b""), &["in.tok: length: expected at least 64 bytes"]),
            ("another packed file", packed(&[7; 64]), &["in.tok: magic: expected "]),
            ("an id above the vocabulary", id, &["tokens in memory: token 1 is 9, expected an id below 5"]),
            ("too few tokens", short, &["the training data", "expected at least 5 tokens, found 4"]),
            (
                "a document of one token",
                single,
                &["expected a document with a target ", "first 4 predictions, found 1 document without one"],
            ),
            ("no file to prepare", nothing, &["prepare: expected at least one file, found none"]),
            (
                "a word without a token",
                word_without_a_token("in.txt", "b"),
                &["in.txt: the tokenizer could not"],
            ),
            (
                "a word without a token, in a line",
                word_without_a_token("in.jsonl", "{\"text\": \"b\"}"),
                &["in.jsonl:1: expected"],
            ),
        ],
    );
}

#[test]
fn wrapped_errors_are_sources() {
    use std::error::Error;
    let missing = TokenFile::open(Path::new("nowhere/in.tok")).unwrap_err();
    assert!(missing.source().is_some_and(<dyn Error>::is::<std::io::Error>));
    let encode = word_without_a_token("source.txt", "b");
    assert!(encode.source().is_some_and(|source| source.to_string().contains("could not encode")));
}
