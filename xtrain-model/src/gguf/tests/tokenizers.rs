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

/// A tokenizer and the end-of-text ids of its model, after export and import, and the ids in the keys of GGUF.
fn end_ids_after_export(tokenizer: &Tokenizer, eos: &[u32]) -> (Tokenizer, Vec<u32>, Vec<Option<usize>>) {
    let mut values = tokenizer::write(tokenizer, tokenizer.vocab_size()).unwrap();
    values.extend(tokenizer::write_eos_ids(Some(tokenizer), eos).unwrap());
    let meta = Metadata { file: "test".into(), values };
    let keys = ["eos", "eot", "eom"].map(|key| meta.size(&format!("tokenizer.ggml.{key}_token_id")).unwrap());
    (tokenizer::read(&meta).unwrap().unwrap(), tokenizer::eos_ids(&meta).unwrap(), keys.into())
}

#[test]
fn the_first_end_of_text_id_of_a_file_is_the_eos_token_of_the_tokenizer() {
    // the tokenizer ends a text with 4, the model with 1 and 4
    let own = Tokenizer::load(&path("models/llama3_rope")).unwrap();
    for (eos, keys) in [
        (&[1, 4][..], [Some(4), Some(1), None]),
        (&[4, 1], [Some(4), Some(1), None]),
        (&[1], [Some(4), Some(1), None]),
        (&[4], [Some(4), None, None]),
        (&[], [Some(4), None, None]),
    ] {
        let (again, ids, found) = end_ids_after_export(&own, eos);
        assert_eq!((&ids[..], &found[..]), (eos, &keys[..]));
        assert_eq!((again.separator(), again.eos_ids()), (own.separator(), own.eos_ids()), "{eos:?}");
    }
    // no name, as in a directory without tokenizer_config.json: gguf-py writes the ids of the model
    let json = std::fs::read(path("models/qwen3_tied/tokenizer.json")).unwrap();
    let unnamed = Tokenizer::from_json(json, Path::new("tokenizer.json")).unwrap();
    for (eos, keys) in
        [(&[2][..], [Some(2), None, None]), (&[], [Some(0), None, None]), (&[2, 0], [Some(2), Some(0), None])]
    {
        let (again, ids, found) = end_ids_after_export(&unnamed, eos);
        assert_eq!((&ids[..], &found[..], again.separator()), (eos, &keys[..], Some(0)));
    }
    // no key is left for the token of the tokenizer
    let (_, ids, found) = end_ids_after_export(&own, &[1, 2, 3]);
    assert_eq!((&ids[..], &found[..]), (&[1, 2, 3][..], &[Some(1), Some(2), Some(3)][..]));
    let error = tokenizer::write_eos_ids(Some(&own), &[1, 2, 3, 5]).unwrap_err().to_string();
    assert!(error.contains("at most three ids") && error.contains("[1, 2, 3, 5]"), "{error}");
}

/// The built-in tokenizer with more vocabulary, merges that need it, and a change.
fn with_merges(change: impl FnOnce(&mut serde_json::Value)) -> Tokenizer {
    let mut json: serde_json::Value = serde_json::from_slice(Tokenizer::byte().files()[0].1).unwrap();
    json["pre_tokenizer"]["use_regex"] = json!(true);
    json["model"]["vocab"]["<|endoftext|>"] = json!(256);
    json["model"]["vocab"]["ab"] = json!(257);
    json["model"]["merges"] = json!([["a", "b"]]);
    change(&mut json);
    let config = Some(Tokenizer::byte().files()[1].1.to_vec());
    Tokenizer::from_parts(json.to_string().into(), config, Path::new("test/tokenizer.json")).unwrap()
}

#[test]
fn the_flags_of_added_tokens_survive_export_and_import() {
    let flags = ["single_word", "lstrip", "rstrip", "normalized", "special"];
    let ours = with_merges(|json| {
        for (at, flag) in flags.into_iter().enumerate() {
            let (id, name) = (260 + at, format!("<{flag}>"));
            json["model"]["vocab"][&name] = json!(id);
            let mut token = json!({"id": id, "content": name});
            for other in flags {
                token[other] = json!(other == flag);
            }
            json["added_tokens"].as_array_mut().unwrap().push(token);
        }
    });
    let values = tokenizer::write(&ours, 400).unwrap();
    let meta = Metadata { file: "test".into(), values };
    let theirs = tokenizer::read(&meta).unwrap().unwrap();
    let added = |tokenizer: &Tokenizer| {
        let json: serde_json::Value = serde_json::from_slice(tokenizer.files()[0].1).unwrap();
        json["added_tokens"].clone()
    };
    assert_eq!(added(&theirs), added(&ours));
    for text in ["a  <lstrip> b", "a <rstrip>  b", "a<single_word>b", "ab <normalized>"] {
        assert_eq!(theirs.encode(text).unwrap(), ours.encode(text).unwrap(), "{text:?}");
    }
    let plain = tokenizer::write(&with_merges(|_| ()), 400).unwrap();
    assert!(plain.iter().all(|(key, _)| !key.starts_with("xtrain.")));
    let mut values = plain;
    values.push(("xtrain.tokenizer.lstrip".into(), Value::Ints(vec![256, 97])));
    let error = tokenizer::read(&Metadata { file: "test".into(), values }).unwrap_err().to_string();
    assert!(error.contains("xtrain.tokenizer.lstrip") && error.contains("ids of added tokens"), "{error}");
    assert!(error.contains("found 97"), "{error}");
}

#[test]
fn only_a_plain_bpe_is_written() {
    let error = |change: fn(&mut serde_json::Value)| {
        tokenizer::write(&with_merges(change), 400).map_or_else(|e| e.to_string(), |_| "accepted".into())
    };
    assert_eq!(error(|json| json["model"]["continuing_subword_prefix"] = json!("")), "accepted");
    assert_eq!(error(|json| drop(json["model"].as_object_mut().unwrap().remove("type"))), "accepted");
    for (change, field, found) in [
        (
            (|json| json["model"]["end_of_word_suffix"] = json!("b")) as fn(&mut serde_json::Value),
            "model.end_of_word_suffix",
            "found \"b\"",
        ),
        (
            |json| {
                let vocab = json["model"]["vocab"].clone();
                json["model"] = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "a"});
            },
            "model.type",
            "found \"WordLevel\"",
        ),
        (
            |json| {
                json["model"]["vocab"]["#b"] = json!(258);
                json["model"]["continuing_subword_prefix"] = json!("#");
                json["model"]["merges"] = json!([["a", "#b"]]);
            },
            "model.continuing_subword_prefix",
            "found \"#\"",
        ),
    ] {
        let error = error(change);
        assert!(error.contains(field) && error.contains(found), "{error}");
    }
}

/// The metadata of [`small_spm`] without some keys, with other values.
fn small_spm_with(removed: &[&str], values: &[(&str, Value)]) -> Metadata {
    let bytes = small_spm();
    let mut meta = read_header(Path::new("small"), &bytes[..], bytes.len() as u64).unwrap().metadata;
    let named = |key: &str| format!("tokenizer.ggml.{key}");
    meta.values.retain(|(key, _)| !removed.iter().any(|removed| *key == named(removed)));
    meta.values.extend(values.iter().map(|(key, value)| (named(key), value.clone())));
    meta
}

#[test]
fn a_sentencepiece_vocabulary_without_ids_has_those_that_llama_cpp_assumes() {
    let found = |meta: &Metadata| {
        let tokenizer = tokenizer::read(meta).unwrap().unwrap();
        (tokenizer.bos_id(), tokenizer.eos_ids().to_vec(), tokenizer::eos_ids(meta).unwrap())
    };
    let ids = ["bos_token_id", "eos_token_id"];
    assert_eq!(found(&small_spm_with(&ids, &[])), (Some(1), vec![2], vec![2]));
    let without_bos = small_spm_with(&ids, &[("add_bos_token", Value::Bool(false))]);
    assert_eq!(found(&without_bos), (None, vec![2], vec![2]));
    let tokenizer = tokenizer::read(&without_bos).unwrap().unwrap();
    assert!(tokenizer.special_tokens().iter().all(|(name, _)| name != "bos_token"));
    // a file of xtrain that lists no end-of-text id
    let mut without_end = small_spm_with(&ids, &[]);
    without_end.values.push(("xtrain.eos_token_ids".into(), Value::Ints(Vec::new())));
    assert_eq!(found(&without_end), (Some(1), vec![], vec![]));
    let byte_level = |key: &str| {
        let mut values = tokenizer::write(&with_merges(|_| ()), 400).unwrap();
        values.retain(|(name, _)| !name.ends_with(key));
        tokenizer::eos_ids(&Metadata { file: "test".into(), values }).unwrap()
    };
    assert!(byte_level("eos_token_id").is_empty());
}

#[test]
fn a_sentencepiece_tokenizer_without_an_end_of_text_token_survives_export_and_import() {
    let meta = small_spm_with(&["eos_token_id"], &[]);
    let meta = Metadata {
        values: [meta.values, vec![("xtrain.eos_token_ids".into(), Value::Ints(vec![]))]].concat(),
        ..meta
    };
    let ours = tokenizer::read(&meta).unwrap().unwrap();
    let mut values = tokenizer::write(&ours, 11).unwrap();
    values.extend(tokenizer::write_eos_ids(Some(&ours), &[]).unwrap());
    let meta = Metadata { file: "test".into(), values };
    let theirs = tokenizer::read(&meta).unwrap().unwrap();
    assert_eq!((theirs.eos_ids(), theirs.separator()), (&[][..], None));
    assert!(tokenizer::eos_ids(&meta).unwrap().is_empty());
}

#[test]
fn a_key_that_is_no_boolean_is_refused() {
    let error = |mut meta: Metadata, key: &str| {
        meta.values.retain(|(name, _)| name != key);
        meta.values.push((key.into(), Value::Int(1)));
        tokenizer::read(&meta).map_or_else(|error| error.to_string(), |_| "accepted".into())
    };
    let byte_level = || {
        let values = tokenizer::write(&with_merges(|_| ()), 400).unwrap();
        Metadata { file: "test".into(), values }
    };
    for (meta, key) in [
        (byte_level(), "tokenizer.ggml.add_bos_token"),
        (byte_level(), "xtrain.tokenizer.nfc"),
        (small_spm_with(&[], &[]), "tokenizer.ggml.add_space_prefix"),
        (small_spm_with(&[], &[]), "tokenizer.ggml.remove_extra_whitespaces"),
    ] {
        assert!(error(meta, key).ends_with(&format!("{key}: expected true or false, found 1")), "{key}");
    }
}
