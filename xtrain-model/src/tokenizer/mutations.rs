//! Damaged and malicious tokenizer files: each is rejected with a one-line error, or works.
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rand::RngExt as _;
use serde_json::{Value, json};
use xtrain_tensor::rng::PhiloxRng;
use xtrain_tensor::testing::{alone, times};

use super::alphabet::char_of;
use super::*;
use crate::test_memory::with_little_memory;
use crate::test_rng::rng;

/// A random value that is meaningful to the parser.
fn value(random: &mut PhiloxRng) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1u64 << 40),
        json!(1e300),
        json!(""),
        json!("\u{0}"),
        json!("Ġa"),
        json!("a".repeat(5000)),
        json!([]),
        json!({}),
        json!({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}]}),
        json!({"type": "Split", "pattern": {"Regex": "(?=(a+)+b)"}, "behavior": "Removed", "invert": false}),
        json!({"type": "Split", "pattern": {"Regex": "a{900}{900}"}, "behavior": "Removed", "invert": false}),
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": true}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        json!({"type": "Replace", "pattern": {"String": ""}, "content": "aaaaaaaa"}),
        json!({"type": "Prepend", "prepend": "x"}),
        json!({"type": "WordPiece", "vocab": {}, "unk_token": "?"}),
        json!({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 99}),
        json!({"type": "Nothing"}),
    ];
    values[random.random_range(0..values.len())].clone()
}

/// A random location in `json`.
fn location<'v>(json: &'v mut Value, random: &mut PhiloxRng) -> &'v mut Value {
    let size = match &json {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if size == 0 || random.random_range(0..5) == 0 {
        return json;
    }
    let at = random.random_range(0..size);
    match json {
        Value::Array(items) => location(&mut items[at], random),
        Value::Object(fields) => {
            location(fields.values_mut().nth(at).expect("`at` is below the number of fields"), random)
        }
        _ => unreachable!("only arrays and objects have items"),
    }
}

/// `seed` with random changes to values and bytes.
fn mutate(seed: &Value, random: &mut PhiloxRng) -> Vec<u8> {
    let mut json = seed.clone();
    for _ in 0..random.random_range(0..3) {
        *location(&mut json, random) = value(random);
    }
    let mut bytes = json.to_string().into_bytes();
    for _ in 0..random.random_range(0..3) {
        let (at, other) = (random.random_range(0..bytes.len()), random.random_range(0..bytes.len()));
        match random.random_range(0..5) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = b"\"{}[],:0-9eEu\\\xff"[random.random_range(0..15)],
            2 => drop(bytes.drain(at.min(other)..at.max(other).min(at.min(other) + 60))),
            3 => {
                let from = at.min(other);
                let copied = bytes[from..at.max(other).min(from + 60)].to_vec();
                drop(bytes.splice(at..at, copied));
            }
            _ => bytes.truncate(at + 1),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

const TEXT: &str = "the cat aaaaaaaaaaaaaaaaaaaaaaaaaaaa\n 12 日本 <|endoftext|> e\u{301}";

/// Uses a loaded tokenizer. Returns the first error.
fn used(tokenizer: Result<Tokenizer, TokenizerError>) -> Result<(), TokenizerError> {
    let tokenizer = tokenizer?;
    let ids = tokenizer.encode(TEXT)?;
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    assert_eq!(tokenizer.encode_masked(TEXT, &[3..9, 11..12])?.0, ids);
    tokenizer.decode(&ids);
    tokenizer.decode_continuation(&tokenizer.encode_continuation(TEXT)?);
    assert!(tokenizer.text_bytes(&ids) <= 1 << 20);
    Ok(())
}

/// Calls `load` with mutations of `seed`.
fn check_mutations(
    name: &str,
    seed: &Value,
    cases: u64,
    load: impl Fn(Vec<u8>) -> Result<Tokenizer, TokenizerError>,
) {
    let mut accepted = 0;
    for case in 0..cases {
        let bytes = mutate(seed, &mut rng(case));
        let length = bytes.len();
        let work = || catch_unwind(AssertUnwindSafe(|| used(load(bytes))));
        let done = with_little_memory(format_args!("{name}, case {case}"), length, work);
        match done.unwrap_or_else(|_| panic!("{name}: case {case} panicked")) {
            Ok(()) => accepted += 1,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    println!("{name}: {accepted} of {cases} mutations are valid tokenizers");
    assert!((cases / 50..cases).contains(&accepted), "{name}: {accepted} of {cases}");
}

#[test]
fn mutated_files_do_no_harm() {
    if !alone("tokenizer::mutations::mutated_files_do_no_harm") {
        return;
    }
    let file = Path::new("some/tokenizer.json");
    // no pattern: compiling one takes longer than everything else; then the vocabulary, so it has the bytes of TEXT only
    let mut seed: Value = serde_json::from_str(&byte::to_json()).unwrap();
    let merges = [("t", "h"), ("th", "e"), ("Ġ", "a")];
    let bytes: BTreeSet<String> = TEXT.bytes().map(|byte| char_of(byte).to_string()).collect();
    let merged = merges.map(|(a, b)| format!("{a}{b}"));
    let special = ["<|endoftext|>", "<|im_end|>"].map(String::from);
    let vocabulary = bytes.into_iter().chain(merged).chain(special.clone());
    seed["model"]["vocab"] = (0..).zip(vocabulary).map(|(id, token)| (token, json!(id))).collect();
    seed["model"]["merges"] = merges.map(|(a, b)| json!([a, b])).into_iter().collect();
    let mut added = seed["added_tokens"][0].clone();
    added["content"] = json!("<|im_end|>");
    seed["added_tokens"].as_array_mut().unwrap().push(added);
    for (at, token) in special.iter().enumerate() {
        seed["added_tokens"][at]["id"] = seed["model"]["vocab"][token].clone();
    }
    let bpe = Tokenizer::from_json(seed.to_string().into_bytes(), file).unwrap();
    check_mutations("tokenizer.json", &seed, times(20_000, 200_000), |json| Tokenizer::from_json(json, file));
    let config = json!({
        "eos_token": {"content": "<|im_end|>", "lstrip": false}, "pad_token": "<|endoftext|>",
        "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": ""}],
        "model_max_length": 256, "added_tokens_decoder": {"0": {"content": "<|endoftext|>"}},
    });
    check_mutations("tokenizer_config.json", &config, times(20_000, 200_000), |config| {
        let mut loaded = bpe.clone();
        loaded.configure(config, Path::new("some/tokenizer_config.json"))?;
        Ok(loaded)
    });
}

#[test]
fn mutated_sentencepiece_files_do_no_harm() {
    if !alone("tokenizer::mutations::mutated_sentencepiece_files_do_no_harm") {
        return;
    }
    let file = Path::new("some/tokenizer.json");
    check_mutations("tokenizer.json of SentencePiece", &sentencepiece(), times(20_000, 200_000), |json| {
        Tokenizer::from_json(json, file)
    });
}

/// A `tokenizer.json` with bytes for unknown characters and a space before a text.
fn sentencepiece() -> Value {
    let bytes = TEXT.bytes().collect::<BTreeSet<u8>>().into_iter().map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["\u{2581}", "t", "h", "e", "a", "c", "th", "the", "\u{2581}the"].map(String::from);
    let special = ["<unk>", "<|endoftext|>"].map(String::from);
    let vocabulary = special.into_iter().chain(bytes).chain(pieces);
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let prepend = json!({"type": "Prepend", "prepend": "\u{2581}"});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let bytes = json!({"type": "ByteFallback"});
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 1, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace(" ", "\u{2581}")]},
        "pre_tokenizer": null,
        "decoder": {
            "type": "Sequence", "decoders": [replace("\u{2581}", " "), bytes, {"type": "Fuse"}, strip],
        },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary.zip(0..).collect::<std::collections::BTreeMap<String, u32>>(),
            "merges": [["t", "h"], ["th", "e"], ["\u{2581}", "the"]],
        },
    })
}

#[test]
fn leading_spaces_are_counted_over_several_tokens() {
    for (start, want) in [(0, "   the"), (1, "  the"), (2, " the"), (3, "the"), (4, "the")] {
        let mut json = sentencepiece();
        json["decoder"]["decoders"][3]["start"] = start.into();
        let id = |token: &str| json["model"]["vocab"][token].as_u64().unwrap() as u32;
        let ids = [id("\u{2581}"), id("\u{2581}"), id("\u{2581}the")];
        let tokenizer = Tokenizer::from_json(json.to_string().into_bytes(), Path::new("t.json")).unwrap();
        assert_eq!(tokenizer.decode(&ids), want, "{start} spaces");
        let mut stream = tokenizer.stream();
        let streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(streamed, want, "{start} spaces");
    }
}

/// The result of using the byte tokenizer with a change.
fn changed(change: impl FnOnce(&mut Value)) -> Result<(), TokenizerError> {
    let mut json: Value = serde_json::from_str(&byte::to_json()).unwrap();
    change(&mut json);
    used(Tokenizer::from_json(json.to_string().into_bytes(), Path::new("some/tokenizer.json")))
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Value), want: &str) {
    let error = changed(change).unwrap_err().to_string();
    assert!(error.contains(want) && error.lines().count() == 1 && error.len() < 700, "{error}");
}

#[test]
fn patterns_that_overflow_the_stack_or_do_not_terminate_are_refused() {
    let split = |pattern: String| {
        move |json: &mut Value| {
            json["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        }
    };
    refused(split("(?=".repeat(100_000)), "a pattern");
    refused(split("(?=".repeat(300)), "a pattern");
    refused(split("[".repeat(300)), "a pattern");
    // patterns with exponential backtracking end, with an error or with ids
    let start = std::time::Instant::now();
    for pattern in ["a{900}{900}{900}", "(?=(a+)+(a+)+(a+)+\\1z)", "(?=(a|a)+b)\\1", "(a*)*(?!a)b"] {
        if let Err(error) = changed(split(pattern.into())) {
            assert!(error.to_string().contains("could not encode"), "{error}");
        }
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(120));
    let nested = |field: &'static str, inner: &'static str, leaf: Value| {
        move |json: &mut Value| {
            json[field] = (0..26).fold(leaf, |value, _| json!({"type": "Sequence", inner: [value]}));
        }
    };
    refused(nested("pre_tokenizer", "pretokenizers", json!({"type": "Whitespace"})), "at most 8");
    refused(nested("normalizer", "normalizers", json!({"type": "NFC"})), "at most 8");
    refused(nested("decoder", "decoders", json!({"type": "Fuse"})), "at most 8");
    refused(nested("post_processor", "processors", json!({"type": "ByteLevel"})), "at most 8");
}
