//! Vocabularies of GGUF files: what they cannot hold, and unused tokens.
use serde_json::json;

use super::*;

#[test]
fn a_vocabulary_has_at_most_524288_tokens() {
    let error = |n: usize| {
        let tokens = (0..n).map(|id| id.to_string()).collect();
        let values = [("model", Value::String("other".into())), ("tokens", Value::Strings(tokens))];
        let values = values.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).into();
        tokenizer::read(&Metadata { file: "test".into(), values }).unwrap_err().to_string()
    };
    assert!(error((1 << 19) + 1).contains("at most 524288 tokens"));
    let at_the_limit = error(1 << 19);
    assert!(at_the_limit.contains("other"), "the next error: {at_the_limit}");
}

#[test]
fn merges_of_tokens_with_spaces_are_not_written() {
    let mut base: serde_json::Value = serde_json::from_slice(Tokenizer::byte().files()[0].1).unwrap();
    base["pre_tokenizer"]["use_regex"] = json!(true);
    for (token, id) in [("a b", 300), ("ba b", 301), ("a bb", 302), ("ab", 303)] {
        base["model"]["vocab"][token] = json!(id);
    }
    let error = |merge: serde_json::Value| {
        let mut json = base.clone();
        json["model"]["merges"] = json!([merge]);
        let config = Some(Tokenizer::byte().files()[1].1.to_vec());
        let file = Path::new("test/tokenizer.json");
        let tokenizer = Tokenizer::from_parts(json.to_string().into(), config, file).unwrap();
        tokenizer::write(&tokenizer, 400).map_or_else(|e| e.to_string(), |_| "accepted".into())
    };
    assert_eq!(error(json!(["a", "b"])), "accepted");
    for merge in [json!(["b", "a b"]), json!(["a b", "b"])] {
        assert!(error(merge).contains("merges of two tokens without spaces"));
    }
}

#[test]
fn special_tokens_and_bytes_of_a_sentencepiece_vocabulary_have_the_score_0() {
    let values = tokenizer::write(&spm().0, 704).unwrap();
    let meta = Metadata { file: "test".into(), values };
    let scores = meta.floats("tokenizer.ggml.scores").unwrap();
    // three special tokens, then 256 bytes
    assert!(scores[..259].iter().all(|&score| score == 0.0), "{:?}", &scores[..259]);
    let zeros = scores[259..700].iter().filter(|&&score| score == 0.0).count();
    assert!(zeros <= 1, "the first merge has the score 0: {zeros}");
}

/// A header with a small SentencePiece vocabulary.
pub(super) fn small_spm() -> Vec<u8> {
    small_spm_of_types([2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1])
}

/// [`small_spm`] with these types of its tokens.
fn small_spm_of_types(types: [i64; 11]) -> Vec<u8> {
    let text = |text: &str| Value::String(text.into());
    let pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "\u{2581}", "a", "b", "ab", "\u{2581}ab", "ba", "aba"];
    let scores = (0..pieces.len()).map(|id| -(id as f64)).collect();
    let values = [
        ("model", text("llama")),
        ("tokens", Value::Strings(pieces.map(String::from).to_vec())),
        ("scores", Value::Floats(scores)),
        ("token_type", Value::Ints(types.to_vec())),
        ("add_space_prefix", Value::Bool(true)),
        ("bos_token_id", Value::Int(1)),
        ("eos_token_id", Value::Int(2)),
        ("unknown_token_id", Value::Int(0)),
    ];
    let values = values.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    encode::header(&values, &[])
}

#[test]
fn an_unused_token_is_no_token_of_the_tokenizer() {
    let pieces = |kind: i64| {
        let bytes = small_spm_of_types([2, 3, 3, 6, 1, 1, 1, 1, kind, 1, 1]);
        let header = read_header(Path::new("small"), &bytes[..], bytes.len() as u64).unwrap();
        let tokenizer = tokenizer::read(&header.metadata).unwrap().unwrap();
        (tokenizer.token_bytes(8).to_vec(), tokenizer.encode("ab").unwrap())
    };
    assert_eq!(pieces(1), (b" ab".to_vec(), vec![8]));
    let (bytes, ids) = pieces(5);
    assert_eq!(bytes, "\u{fffd}".as_bytes());
    assert!(!ids.contains(&8), "{ids:?}");
}
