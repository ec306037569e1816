//! Tests of tokenizers against their contracts and against HF's results.
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;

use super::codec::{CONFIG, Kind, TEMPLATE};
use super::*;

fn fixture(name: &str) -> (Tokenizer, Value) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers").join(name);
    let cases = std::fs::read(dir.join("cases.json")).unwrap();
    (Tokenizer::load(&dir).unwrap(), serde_json::from_slice(&cases).unwrap())
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| u32::try_from(v.as_u64().unwrap()).unwrap()).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.finish());
    text
}

#[track_caller]
fn check_against_hf(name: &str) {
    let (tokenizer, cases) = fixture(name);
    assert_eq!(tokenizer.vocab_size() as u64, cases["vocab_size"].as_u64().unwrap());
    for case in cases["encode"].as_array().unwrap() {
        let (text, want) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        assert_eq!(tokenizer.encode(text).unwrap(), want, "{text:?}");
        assert_eq!(tokenizer.decode(&want), case["decoded"].as_str().unwrap(), "{want:?}");
        let offsets = tokenizer.encode_with_offsets(text).unwrap();
        assert_eq!(offsets.iter().map(|(id, _)| *id).collect::<Vec<_>>(), want, "{text:?}");
        let char_at = |byte: usize| text.char_indices().take_while(|(at, _)| *at < byte).count();
        let got = offsets.iter().map(|(_, range)| [char_at(range.start), char_at(range.end)]);
        let want =
            case["offsets"].as_array().unwrap().iter().map(|pair| [0, 1].map(|i| pair[i].as_u64().unwrap()));
        assert_eq!(
            got.map(|pair| pair.map(|n| n as u64)).collect::<Vec<_>>(),
            want.collect::<Vec<_>>(),
            "{text:?}"
        );
    }
    for case in cases["decode"].as_array().unwrap() {
        let ids = ids(&case["ids"]);
        assert_eq!(tokenizer.decode(&ids), case["text"].as_str().unwrap(), "{ids:?}");
        assert_eq!(streamed(&tokenizer, &ids), case["text"].as_str().unwrap(), "{ids:?}");
    }
    for case in cases["prefix"].as_array().unwrap() {
        let ids = ids(&case["ids"]);
        for (n, want) in case["prefix_decodes"].as_array().unwrap().iter().enumerate() {
            assert_eq!(tokenizer.decode(&ids[..n]), want.as_str().unwrap());
            assert_eq!(streamed(&tokenizer, &ids[..n]), want.as_str().unwrap());
        }
    }
    for (id, want) in cases["decode_single"].as_array().unwrap().iter().enumerate() {
        assert_eq!(tokenizer.decode(&[id as u32]), want.as_str().unwrap());
    }
}

#[test]
fn sentencepiece_tokenizers_encode_decode_and_stream_as_hf_does() {
    check_against_hf("llama_spm");
    check_against_hf("metaspace_spm");
}

#[test]
fn a_continuation_has_no_space_at_its_beginning() {
    for name in ["llama_spm", "metaspace_spm", "qwen_bpe"] {
        let (tokenizer, _) = fixture(name);
        for (text, rest) in
            [("Hello", " world"), ("Hel", "lo world"), ("a\n", "b"), ("x ", "<s> y"), ("", "a")]
        {
            let (first, more) =
                (tokenizer.encode(text).unwrap(), tokenizer.encode_continuation(rest).unwrap());
            let both = tokenizer.decode(&[&first[..], &more].concat());
            // after a special token begins another text, to which `Prepend` adds its space
            let rest = if name == "llama_spm" { rest.replace("<s>", "<s> ") } else { rest.to_string() };
            assert_eq!(both, format!("{text}{rest}"), "{name}");
            let mut stream = tokenizer.stream_continuation();
            let mut streamed: String = more.iter().map(|&id| stream.push(id)).collect();
            streamed += &stream.finish();
            assert_eq!(streamed, tokenizer.decode_continuation(&more), "{name}");
            assert_eq!(streamed, rest, "{name}");
        }
    }
}

#[test]
fn a_prompt_begins_with_the_token_that_hf_adds() {
    for (name, bos) in
        [("llama3_bpe", Some(0)), ("llama_spm", Some(1)), ("metaspace_spm", Some(1)), ("qwen_bpe", None)]
    {
        let (tokenizer, cases) = fixture(name);
        assert_eq!(tokenizer.bos_id(), bos, "{name}");
        for case in cases["encode"].as_array().unwrap() {
            let (text, mut want) = (case["text"].as_str().unwrap(), ids(&case["ids_with_special"]));
            // a second one is not added
            if bos.is_some() && want.len() > 1 && want[0] == want[1] {
                want.remove(0);
            }
            assert_eq!(tokenizer.encode_with_bos(text).unwrap(), want, "{name}: {text:?}");
        }
        let plain = tokenizer.clone().without_bos();
        assert_eq!(plain.encode_with_bos("a").unwrap(), tokenizer.encode("a").unwrap());
        assert_eq!((plain.bos_id(), plain.files()), (None, tokenizer.files()));
    }
    assert_eq!(Tokenizer::byte().bos_id(), None);
}

/// transformers replaces the post-processor of these classes.
#[test]
fn the_setting_of_a_llama_class_replaces_the_post_processor() {
    let (tokenizer, _) = fixture("llama3_bpe");
    let with: serde_json::Value = serde_json::from_slice(tokenizer.files()[0].1).unwrap();
    let mut without = with.clone();
    without["post_processor"] = serde_json::Value::Null;
    let bos = |json: &serde_json::Value, class: &str, add: serde_json::Value| {
        let config = serde_json::json!({
            "tokenizer_class": class, "add_bos_token": add, "bos_token": "<|begin_of_text|>",
        });
        let (json, config) = (json.to_string().into_bytes(), config.to_string().into_bytes());
        Tokenizer::from_parts(json, Some(config), Path::new("tokenizer.json")).unwrap().bos_id()
    };
    let (yes, no, none) = (true.into(), false.into(), serde_json::Value::Null);
    for class in ["LlamaTokenizerFast", "LlamaTokenizer", "CodeLlamaTokenizerFast"] {
        assert_eq!(
            [&without, &with].map(|json| bos(json, class, serde_json::Value::clone(&yes))),
            [Some(0); 2]
        );
        assert_eq!([&without, &with].map(|json| bos(json, class, serde_json::Value::clone(&no))), [None; 2]);
        assert_eq!([&without, &with].map(|json| bos(json, class, none.clone())), [None, Some(0)]);
    }
    let other = "PreTrainedTokenizerFast";
    assert_eq!((bos(&without, other, yes), bos(&with, other, no)), (None, Some(0)));
}

#[test]
fn a_special_token_in_a_continuation_is_followed_by_a_new_text() {
    let (tokenizer, _) = fixture("llama_spm");
    let whole = tokenizer.encode("a</s><s>b c").unwrap();
    let (first, rest) =
        (tokenizer.encode("a").unwrap(), tokenizer.encode_continuation("</s><s>b c").unwrap());
    assert_eq!([&first[..], &rest].concat(), whole);
}

#[test]
fn bytes_that_are_no_character_become_one_replacement_for_each_invalid_sequence() {
    let (tokenizer, _) = fixture("llama_spm");
    let byte = |byte: u8| 3 + u32::from(byte);
    assert_eq!(tokenizer.token_bytes(byte(0xc3)), [0xc3]);
    let ids = [byte(0xc3), byte(0xa4), byte(0xff), byte(b'x'), byte(0xe6), byte(0xbc)];
    assert_eq!(tokenizer.decode(&ids), "ä\u{fffd}x\u{fffd}");
    assert_eq!(streamed(&tokenizer, &ids), "ä\u{fffd}x\u{fffd}");
}

#[test]
fn a_qwen_tokenizer_encodes_decodes_and_streams_as_hf_does() {
    check_against_hf("qwen_bpe");
}

#[test]
fn a_llama3_tokenizer_encodes_decodes_and_streams_as_hf_does() {
    check_against_hf("llama3_bpe");
}

#[test]
fn bytes_are_their_own_ids() {
    let byte = Tokenizer::byte();
    assert_eq!((byte.vocab_size(), byte.eos_ids(), byte.separator()), (257, &[256][..], Some(256)));
    assert_eq!(byte.encode("aé\r\n\0").unwrap(), [97, 0xc3, 0xa9, 13, 10, 0]);
    assert!(byte.encode("").unwrap().is_empty());
    assert_eq!(byte.encode("a<|endoftext|>b").unwrap(), [97, 256, 98]);
    assert_eq!(byte.decode(&[97, 256, 98]), "a<|endoftext|>b");
    assert_eq!(byte.decode(&[0xff, 97, 0xc3]), "\u{fffd}a\u{fffd}");
    assert_eq!(byte.decode(&[97, 257, u32::MAX]), "a\u{fffd}\u{fffd}");
    assert_eq!(byte.text_bytes(&[97, 256, 0xc3, 0xa9]), 3);
}

#[test]
fn a_stream_never_splits_a_character() {
    let byte = Tokenizer::byte();
    let mut stream = byte.stream();
    let pieces: Vec<String> = "x🙂é".bytes().map(|b| stream.push(u32::from(b))).collect();
    assert_eq!(pieces, ["x", "", "", "", "🙂", "", "é"]);
    assert_eq!(stream.finish(), "");
    let mut cut = byte.stream();
    assert_eq!((cut.push(0xf0), cut.push(0x9f)), (String::new(), String::new()));
    assert_eq!(cut.finish(), "\u{fffd}");
}

/// The pieces of a byte that begins no character, a letter, and a character that is cut.
fn pieces_of_invalid_bytes() -> Vec<String> {
    let byte = Tokenizer::byte();
    let mut stream = byte.stream();
    let pieces = [0xff, 0x41, 0xe2, 0x82, 0x80, 0xe2, 0x42].map(|id| stream.push(id));
    pieces.into_iter().chain([stream.finish()]).collect()
}

#[test]
fn a_stream_holds_nothing_but_the_beginning_of_a_character() {
    let pieces = ["\u{fffd}", "A", "", "", "\u{2080}", "", "\u{fffd}B", ""];
    assert_eq!(pieces_of_invalid_bytes(), pieces);
}

#[test]
#[cfg(feature = "faults")]
fn a_stream_that_holds_invalid_bytes_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    assert_eq!(faults::with(Fault::InvalidBytesHeld, pieces_of_invalid_bytes)[..2], ["", "\u{fffd}A"]);
}

#[test]
fn streaming_any_bytes_gives_the_text_of_decode() {
    let byte = Tokenizer::byte();
    let edges = [0x00, 0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed, 0xf0, 0x90, 0xf4, 0x8f, 0xff, 256, 9000];
    for seed in 0..2000 {
        let at = |i| xtrain_tensor::rng::uniform_u64(5, seed, i, xtrain_tensor::rng::Purpose::Sample);
        let ids: Vec<u32> = (0..12).map(|i| edges[at(i) as usize % edges.len()]).collect();
        assert_eq!(streamed(&byte, &ids), byte.decode(&ids), "{ids:?}");
    }
}

#[test]
fn streaming_any_tokens_of_a_bpe_gives_the_text_of_decode_and_splits_no_character() {
    for name in ["qwen_bpe", "llama3_bpe"] {
        let (tokenizer, _) = fixture(name);
        for seed in 0..1000 {
            let at = |i| xtrain_tensor::rng::uniform_u64(6, seed, i, xtrain_tensor::rng::Purpose::Sample);
            let ids: Vec<u32> =
                (0..20).map(|i| (at(i) % (tokenizer.vocab_size() as u64 + 2)) as u32).collect();
            assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids), "{ids:?}");
        }
        // a prefix of the tokens of a text: each piece is text, and no character is replaced
        let text = "日本語 🙂 na\u{ef}ve 한국어 👩‍👧 שלום";
        let ids = tokenizer.encode(text).unwrap();
        for cut in 0..=ids.len() {
            let mut stream = tokenizer.stream();
            let pieces: Vec<String> = ids[..cut].iter().map(|&id| stream.push(id)).collect();
            let shown = pieces.concat();
            assert!(
                tokenizer.decode(&ids).starts_with(&shown) && !shown.contains('\u{fffd}'),
                "{cut}: {shown}"
            );
        }
    }
}

#[test]
fn a_mask_marks_the_ids_that_overlap_a_part() {
    let byte = Tokenizer::byte();
    let masked = |text: &str, parts: &[std::ops::Range<usize>]| byte.encode_masked(text, parts).unwrap();
    let (ids, mask) = masked("ab<|endoftext|>cd", &[1..4, 16..17]);
    assert_eq!(ids, [97, 98, 256, 99, 100]);
    assert_eq!(mask, [false, true, true, false, true]);
    assert_eq!(masked("abc", &[0..0, 1..1, 3..3]).1, [false; 3]);
    assert_eq!(masked("abc", &[0..1, 1..3]).1, [true; 3]);
    assert_eq!(masked("abc", &[]).1, [false; 3]);
    // a token across the edge of a part belongs to it, as in HF
    let (qwen, _) = fixture("qwen_bpe");
    let (ids, mask) = qwen.encode_masked("hello wor", &[0..0, 7..9]).unwrap();
    assert_eq!((qwen.decode(&ids[ids.len() - 1..]).as_str(), mask.last()), (" wor", Some(&true)));
    assert_eq!(mask.iter().filter(|inside| **inside).count(), 1);
}

#[test]
fn chat_templates_are_read_in_every_form_and_saved() {
    let (dir, again) = (tempdir().unwrap(), tempdir().unwrap());
    let (dir, again) = (dir.path(), again.path());
    Tokenizer::byte().save(dir).unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    let named = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    };
    write(CONFIG, r#"{"chat_template": "a"}"#);
    assert_eq!(Tokenizer::load(dir).unwrap().chat_templates(), named(&[("default", "a")]));
    let two =
        r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#;
    write(CONFIG, two);
    let both = Tokenizer::load(dir).unwrap();
    assert_eq!(both.chat_templates(), named(&[("default", "a"), ("tool_use", "b")]));
    let object = serde_json::json!({"content": "<|endoftext|>", "lstrip": false, "special": true});
    write(CONFIG, &serde_json::json!({"eos_token": object, "bos_token": "<|endoftext|>"}).to_string());
    let names = [("eos_token", "<|endoftext|>"), ("bos_token", "<|endoftext|>")];
    let mut special = Tokenizer::load(dir).unwrap().special_tokens().to_vec();
    special.sort_by(|a, b| b.cmp(a));
    assert_eq!(special, named(&names));
    write(CONFIG, two);
    write(TEMPLATE, "c\n");
    let own = Tokenizer::load(dir).unwrap();
    assert_eq!(
        own.chat_templates(),
        named(&[("default", "c\n")]),
        "it replaces all templates, as in transformers"
    );
    own.save(again).unwrap();
    assert_eq!(Tokenizer::load(again).unwrap().files(), own.files());
    assert_eq!(own.files().len(), 3);
    for (config, want) in [
        (r#"{"chat_template": 3}"#, "chat_template as a string"),
        (r#"{"chat_template": [{"name": "a"}]}"#, "chat_template as a string"),
        (
            r#"{"chat_template": [{"name": "a", "template": ""}, {"name": "a", "template": ""}]}"#,
            "unique names",
        ),
        (r#"{"bos_token": 1}"#, "bos_token as a string"),
        ("[]", "a JSON object"),
        ("{", "JSON"),
    ] {
        write(CONFIG, config);
        let error = Tokenizer::load(dir).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json: expected") && error.contains(want), "{error}");
    }
    write(CONFIG, "{}");
    std::fs::write(dir.join(TEMPLATE), b"a\xff").unwrap();
    let error = Tokenizer::load(dir).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja: expected UTF-8"), "{error}");
}

#[test]
fn the_eos_ids_of_a_model_override_those_of_its_tokenizer() {
    let (llama, _) = fixture("llama3_bpe");
    let (eos, separator) = (llama.eos_ids().to_vec(), llama.separator());
    let of_model = llama.clone().with_eos_ids(&[1, 4]);
    assert_eq!((of_model.eos_ids(), of_model.separator()), (&[1, 4][..], separator));
    assert_eq!((of_model.with_eos_ids(&[]).eos_ids(), eos[0]), (&eos[..], 4));
}

#[test]
fn hf_reads_the_file_of_the_byte_tokenizer_with_the_same_ids() {
    let byte = Tokenizer::byte();
    let (inner, vocabulary) = {
        let file = Path::new("byte");
        hf::load(&byte.json, &pipeline::check(&byte.json, file).unwrap(), file).unwrap()
    };
    let mut twin = byte.clone();
    (twin.kind, twin.vocabulary) = (Kind::Hf(Box::new(inner)), vocabulary);
    let text = "Hello,  wörld 123\r\n\t🙂<|endoftext|> \0x";
    assert_eq!(twin.encode(text).unwrap(), byte.encode(text).unwrap());
    assert_eq!((twin.digest(), twin.vocab_size()), (byte.digest(), 257));
}

#[test]
fn a_saved_tokenizer_is_loaded_unchanged() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    Tokenizer::byte().save(dir).unwrap();
    let byte = Tokenizer::load(dir).unwrap();
    assert!(matches!(byte.kind, Kind::Byte));
    assert_eq!((byte.digest(), byte.eos_ids()), (Tokenizer::byte().digest(), &[256][..]));
    let (qwen, _) = fixture("qwen_bpe");
    qwen.save(dir).unwrap();
    let again = Tokenizer::load(dir).unwrap();
    assert_eq!((again.files(), again.eos_ids()), (qwen.files(), qwen.eos_ids()));
    assert_ne!(again.digest(), byte.digest());
}

fn corpus() -> impl Iterator<Item = String> + Send {
    (0..200).map(|i| format!("the cat number {i} sat on the mat\nand the dog did not"))
}

#[test]
fn a_trained_bpe_has_the_requested_size_and_encodes_any_text() {
    let bpe = Tokenizer::train_bpe(corpus(), 280, &["<|im_end|>"]).unwrap();
    assert_eq!((bpe.vocab_size(), bpe.separator()), (280, Some(0)));
    assert_eq!(bpe.encode("<|endoftext|><|im_end|>").unwrap(), [0, 1]);
    let text = "the cat 日本 \r\n\0 🙂 zzz";
    let ids = bpe.encode(text).unwrap();
    assert_eq!(bpe.decode(&ids), text);
    assert!(ids.len() < text.len());
    assert_eq!(bpe.text_bytes(&ids), text.len() as u64);
}

#[test]
fn training_twice_gives_the_same_bytes() {
    let train = || Tokenizer::train_bpe(corpus(), 400, &[]).unwrap();
    assert_eq!(train().files(), train().files());
}

#[test]
fn training_splits_words_of_more_than_4096_characters() {
    // each merge doubles the longest token, up to the length of a word
    let longest = |text: String| {
        let bpe = Tokenizer::train_bpe([text].into_iter(), 290, &[]).unwrap();
        (0..bpe.vocab_size() as u32).map(|id| bpe.token_bytes(id).len()).max().unwrap()
    };
    assert_eq!(longest("ab".repeat(16_384)), 4096);
    assert_eq!(longest(" ".repeat(32_768)), 4096);
    assert_eq!(longest("é".repeat(4_096)), 8192, "characters, not bytes");
    let words = ["ab".repeat(2_048), "cd".repeat(2_048)].join(" ");
    assert_eq!(longest(words), 4097, "a word with its space");
    #[cfg(feature = "faults")]
    {
        use xtrain_tensor::faults::{self, Fault};
        assert_eq!(faults::with(Fault::LongWordsNotSplit, || longest("ab".repeat(4_096))), 8192);
    }
}

#[test]
fn a_vocabulary_without_room_for_the_bytes_is_refused() {
    for (size, specials) in
        [(256, &[][..]), (257, &["<a>"][..]), (0, &[]), (MAX_VOCABULARY as usize + 1, &[])]
    {
        let error = Tokenizer::train_bpe(corpus(), size, specials).unwrap_err();
        assert!(error.to_string().contains("256 bytes"), "{error}");
    }
    assert_eq!(Tokenizer::train_bpe(corpus(), 257, &[]).unwrap().vocab_size(), 257);
    assert!(Tokenizer::train_bpe(corpus(), MAX_VOCABULARY as usize, &[]).is_ok(), "the limit");
    assert!(Tokenizer::train_bpe(corpus(), 300, &["<a>", "<a>"]).is_err());
    assert!(Tokenizer::train_bpe(corpus(), 300, &[""]).is_err());
}

#[track_caller]
fn refused(json: &str, want: &str) {
    let error = Tokenizer::from_json(json.into(), Path::new("some/tokenizer.json")).unwrap_err().to_string();
    assert!(error.starts_with("some/tokenizer.json: ") && error.contains(want), "{error}");
}

#[test]
fn files_that_are_not_tokenizers_are_refused_by_name() {
    refused("", "expected a tokenizer.json");
    refused("{}", "expected a tokenizer.json");
    refused("\u{0}\u{1}", "expected a tokenizer.json");
    refused(&"[".repeat(1_000_000), "nested at most 64");
    refused(&format!("{{\"a\": {}1{}}}", "{\"a\":".repeat(99), "}".repeat(99)), "nested at most 64");
    let byte = byte::to_json();
    refused(&byte[..byte.len() / 2], "expected a tokenizer.json");
    refused(
        &byte
            .replace("\"decoder\": {\n    \"type\": \"ByteLevel\"", "\"decoder\": {\n    \"type\": \"Fuse\""),
        "tokenizer not supported: expected a decoder of type ByteLevel",
    );
    refused(&byte.replace("\"Ġ\": 32", "\"Ġ\": 4000000000"), "ids below 524288");
    refused(&byte.replace("\"Ġ\": 32", "\"Ġ\": 33"), "one token for each id");
    let dropout =
        |dropout: &str| byte.replace("\"Ġ\": 32", "\"Ġ\": 300").replace("\"dropout\": null", dropout);
    refused(&dropout("\"dropout\": 0.1"), "expected model.dropout of null or 0: otherwise");
    assert!(Tokenizer::from_json(dropout("\"dropout\": 0.0").into(), Path::new("t")).is_ok());
}

#[test]
fn a_missing_tokenizer_and_a_wrong_eos_are_refused_by_name() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let error = Tokenizer::load(dir).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: cannot open: no such file"), "{error}");
    Tokenizer::byte().save(dir).unwrap();
    std::fs::write(dir.join(CONFIG), "{\"eos_token\": \"<nobody>\"}").unwrap();
    let error = Tokenizer::load(dir).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json") && error.contains("<nobody>"), "{error}");
    std::fs::write(dir.join(CONFIG), "{\"eos_token\": 7}").unwrap();
    assert!(Tokenizer::load(dir).is_err());
}

#[test]
fn padding_and_truncation_of_a_file_are_disabled() {
    let (qwen, _) = fixture("qwen_bpe");
    let json = String::from_utf8(qwen.json.clone()).unwrap();
    let cut =
        r#""truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}"#;
    let json = json.replace("\"truncation\": null", cut);
    let truncating = Tokenizer::from_json(json.into_bytes(), Path::new("t")).unwrap();
    let text = "hello world and more";
    assert_eq!(truncating.encode(text).unwrap(), qwen.encode(text).unwrap());
}
