//! Tests of training data against its contracts, including unusual inputs.
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::tokenizer::Tokenizer;

mod conversations;
mod every_variant;
mod lines;
mod token_file;
mod windows;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn prepared(dir: &Scratch, inputs: &[PathBuf], tokenizer: &Tokenizer) -> Result<TokenFile, DataError> {
    let out = dir.path("out.tok");
    prepare(inputs, &out, tokenizer, &mut |_| ())?;
    let file = TokenFile::open(&out)?;
    file.verify()?;
    Ok(file)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers").join(name)
}

fn fixture_tokenizer() -> Tokenizer {
    Tokenizer::load(&fixture("qwen_bpe")).unwrap()
}

#[test]
fn a_text_file_becomes_its_bytes_and_a_separator() {
    let dir = Scratch::new();
    for (text, want) in [
        ("a", vec![97, 256]),
        ("a\r\nb\n", vec![97, 13, 10, 98, 10, 256]),
        ("\u{feff}a", vec![97, 256]),
        ("a<|endoftext|>b<|endoftext|>", vec![97, 256, 98, 256]),
    ] {
        let input = dir.file("in.txt", text);
        let file = prepared(&dir, std::slice::from_ref(&input), &Tokenizer::byte()).unwrap();
        assert_eq!(file.ids(0..file.count()).unwrap(), want, "{text:?}");
        assert_eq!((file.vocab(), file.is_masked()), (257, false));
        assert_eq!(file.documents(), want.iter().filter(|&&id| id == 256).count() as u64);
        let memory = Tokens::from_files(&[input], &Tokenizer::byte(), Content::Any).unwrap();
        assert_eq!(memory.ids(0..memory.len()).unwrap(), want);
        for (tokens, path) in [(memory, None), (Tokens::open(file.path()).unwrap(), Some(file.path()))] {
            assert_eq!((tokens.vocab(), tokens.is_empty(), tokens.is_masked()), (257, false, false));
            assert_eq!(tokens.file().map(TokenFile::path), path);
        }
    }
    assert!(Tokens::from_ids(Vec::new(), 257).is_ok_and(|tokens| tokens.is_empty()));
}

/// A byte-level BPE tokenizer with tokens of two line breaks, and this pre-tokenizer.
fn byte_level(dir: &Scratch, pre_tokenizer: &str) -> Tokenizer {
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("qwen_bpe").join("tokenizer.json")).unwrap()).unwrap();
    json["pre_tokenizer"] = serde_json::from_str(pre_tokenizer).unwrap();
    let model = &mut json["model"];
    for (id, [left, right]) in (10_000..).zip([["Ċ", "Ċ"], ["č", "Ċ"], ["Ċ", "Ġ"]]) {
        model["vocab"][format!("{left}{right}")] = id.into();
        let merges = model["merges"].as_array_mut().unwrap();
        let merge = if merges[0].is_string() {
            format!("{left} {right}").into()
        } else {
            serde_json::json!([left, right])
        };
        merges.push(merge);
    }
    let path = dir.file("tokenizer.json", json.to_string());
    Tokenizer::load(&path).unwrap()
}

/// The sizes of blocks with which tokens differ from those of the whole text.
fn sizes_with_other_tokens(tokenizer: &Tokenizer, text: &str) -> Vec<usize> {
    let dir = Scratch::new();
    let path = dir.file("in.txt", text);
    let whole = tokenizer.encode(text).unwrap();
    let differs = |&size: &usize| {
        let mut blocks = text::Blocks::open(&path, size).unwrap();
        let (mut ids, mut count) = (Vec::new(), 0);
        while let Some(block) = blocks.next().unwrap() {
            let encode = if count == 0 { Tokenizer::encode } else { Tokenizer::encode_continuation };
            ids.extend(encode(tokenizer, &block).unwrap());
            count += 1;
        }
        assert!(count > 1 || size > 1000, "blocks of {size}");
        ids != whole
    };
    [1, 7, 23, 64, 1000, 100_000].into_iter().filter(differs).collect()
}

fn text_with_breaks() -> String {
    let line = "It's 12 o'clock,\n\n  the cat \r\nsat  there\n日本語 🙂\nend. ";
    let end = ["", "\n ", "\n \n ", "\n\n", "\r\n", "\r\n\r\n", "\u{3000}\n", "\n\u{3000}", "\t\n"];
    (0..90).map(|i| format!("{line}{i}\n{}", end[i % end.len()])).collect::<Vec<_>>().concat()
}

const GPT2: &str =
    r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}"#;

#[test]
fn tokenizing_blocks_gives_the_tokens_of_the_whole_text() {
    let dir = Scratch::new();
    let digits = format!(
        r#"{{"type": "Sequence", "pretokenizers": [{{"type": "Digits", "individual_digits": true}}, {GPT2}]}}"#
    );
    let of_fixtures = ["qwen_bpe", "llama3_bpe", "llama_spm", "metaspace_spm"]
        .map(|name| Tokenizer::load(&fixture(name)).unwrap());
    let [gpt2, digits] = [GPT2, &digits].map(|steps| byte_level(&dir, steps));
    let text = text_with_breaks();
    let words = "the cat sat on the mat and slept. ".repeat(40);
    for tokenizer in of_fixtures.into_iter().chain([Tokenizer::byte(), gpt2, digits]) {
        let tokenizer = tokenizer.without_bos();
        for text in [&text, &text.replace("\r\n", "\n").replace('\n', "\r\n"), &words] {
            assert_eq!(sizes_with_other_tokens(&tokenizer, text), [0; 0], "{tokenizer:?}");
        }
    }
}

#[test]
#[cfg(feature = "faults")]
fn blocks_that_end_in_whitespace_are_found() {
    let gpt2 = byte_level(&Scratch::new(), GPT2);
    let differ = || sizes_with_other_tokens(&gpt2, &text_with_breaks());
    let found = xtrain_tensor::faults::with(xtrain_tensor::faults::Fault::BlocksEndInWhitespace, differ);
    assert!(found.contains(&64), "{found:?}");
}

#[test]
fn the_first_block_of_a_text_begins_it() {
    let dir = Scratch::new();
    let spm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers/llama_spm");
    let spm = Tokenizer::load(&spm).unwrap();
    let (text, input) = ("Hello world", dir.file("in.txt", "Hello world"));
    let file = prepared(&dir, &[input], &spm.clone().without_bos()).unwrap();
    let ids = spm.encode(text).unwrap();
    assert_ne!(ids, spm.encode_continuation(text).unwrap(), "a space is added to the beginning of a text");
    assert_eq!(file.ids(0..ids.len() as u64).unwrap(), ids);
}

#[test]
fn jsonl_records_become_documents_and_prompts_are_masked() {
    let dir = Scratch::new();
    let lines = "{\"text\": \"ab\"}\r\n\n{\"prompt\": \"1+1=\", \"completion\": \"2\\n\", \"id\": 7}\n{\"text\":\"\"}";
    let path = dir.file("in.jsonl", lines);
    let file = prepared(&dir, std::slice::from_ref(&path), &Tokenizer::byte()).unwrap();
    let want = [97, 98, 256, 49, 43, 49, 61, 50, 10, 256];
    assert_eq!(file.ids(0..file.count()).unwrap(), want);
    assert_eq!((file.documents(), file.is_masked()), (2, true));
    let mask = [true, true, true, false, false, false, false, true, true, true];
    assert_eq!(file.target_mask(0..10).unwrap(), mask);
    for start in 0..10 {
        assert_eq!(file.target_mask(start..10).unwrap(), mask[start as usize..]);
    }
    let tokens = Tokens::open(file.path()).unwrap();
    let window = tokens.window(2..9).unwrap();
    assert_eq!(window.inputs, [256, 49, 43, 49, 61, 50]);
    assert_eq!(window.targets, [None, None, None, None, Some(50), Some(10)]);
    assert_eq!(window.targets.iter().flatten().count(), 2);
    for name in ["in.jsonl", "in.ndjson", "in.JSONL"] {
        let memory = Tokens::from_files(&[dir.file(name, lines)], &Tokenizer::byte(), Content::Any).unwrap();
        assert_eq!((memory.ids(0..10).unwrap(), memory.len()), (want.to_vec(), 10), "{name}");
        assert_eq!(memory.target_mask(0..10).unwrap(), mask, "{name}");
    }
}

#[track_caller]
fn refused(name: &str, bytes: &[u8], want: &str) {
    let dir = Scratch::new();
    let path = dir.file(name, bytes);
    let error = prepared(&dir, &[path], &Tokenizer::byte()).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains(want), "{error}");
    let left: Vec<_> = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [name], "nothing is left of a failed output");
}

#[test]
fn bad_text_is_refused_by_file_and_offset() {
    refused("empty.txt", b"", "expected text, found an empty file");
    refused("latin.txt", b"caf\xe9 au lait", "byte 0xe9 at byte 3");
    refused("cut.txt", b"ab\xf0\x9f", "byte 0xf0 at byte 2");
    refused("zero.txt", b"\x7fELF\x00\x00", "a zero byte (a binary file?) at byte 4");
    refused("bom.txt", b"\xef\xbb\xbfa\xff", "byte 0xff at byte 4");
    let mut far = b"line\n".repeat(500_000);
    far.push(0xfe);
    refused("far.txt", &far, "byte 0xfe at byte 2500000");
}

#[test]
fn bad_jsonl_is_refused_by_file_and_line() {
    refused("empty.jsonl", b"", ":1: expected at least one line with a JSON object, found none");
    refused("blank.jsonl", b"\n \r\n", ":2: expected at least one line with a JSON object, found none");
    refused("broken.jsonl", b"{\"text\": \"a\"}\n{\"text\": ", ":2: expected a JSON object");
    refused("list.jsonl", b"[1]", ":1: expected a JSON object, found an array");
    refused("chat.jsonl", b"{\"messages\": []}", ":1: expected \"messages\" as [{\"role\": ...");
    refused("nobody.jsonl", b"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"gpt\"}]}", {
        ":1: expected \"messages\" with a turn of the role \"assistant\", found only the roles \"user\", \"gpt\""
    });
    refused(
        "role.jsonl",
        b"{\"messages\":[{\"content\":\"a\"}]}",
        "found messages: expected messages as objects",
    );
    refused("content.jsonl", b"{\"messages\":[{\"role\":\"assistant\",\"content\":[1]}]}", {
        ":1: expected text as \"content\" for the built-in template, found a list in message 0 of the role assistant"
    });
    refused(
        "spelling.jsonl",
        b"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"asistant\",\"content\":\"b\"}]}",
        "found messages: expected the role \"assistant\", found \"asistant\"",
    );
    refused(
        "weight.jsonl",
        b"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"weight\":0.5}]}",
        "found messages: expected \"weight\" as 0 or 1, found 0.5",
    );
    refused(
        "twice.jsonl",
        b"{\"text\":\"a\",\"text\":\"b\"}",
        ":1: expected a JSON object, found an object with the field `text` twice at column",
    );
    refused("many.jsonl", b"{\"messages\":[],\"text\":\"\"}", "found the fields \"messages\", \"text\"");
    refused("half.jsonl", b"{\"prompt\": \"a\"}", "found the field \"prompt\"");
    refused(
        "both.jsonl",
        b"{\"text\":\"\",\"prompt\":\"a\",\"completion\":\"b\"}",
        ":1: expected only one of \"text\", ",
    );
    refused("none.jsonl", b"{}", "found no field");
    refused("null.jsonl", b"{\"text\": null}", "found only null");
    refused("nulls.jsonl", b"{\"prompt\":\"a\",\"completion\":null}", "found the field \"prompt\"");
    refused("type.jsonl", b"{\"text\": 3}", "\"text\": a number");
    refused("deep.jsonl", "[".repeat(100_000).as_bytes(), ":1: expected a JSON object");
    refused(
        "latin.jsonl",
        b"{\"text\": \"a\"}\n\xff",
        "latin.jsonl:2: expected UTF-8 text, found byte 0xff at byte 0",
    );
}

#[test]
fn roles_that_are_nearly_that_of_the_assistant_are_refused() {
    let dir = Scratch::new();
    let read = |role: &str| {
        let row = format!(
            "{{\"messages\":[{{\"role\":\"assistant\",\"content\":\"a\"}},{{\"role\":\"{role}\",\"content\":\"b\"}}]}}"
        );
        prepared(&dir, &[dir.file("in.jsonl", row)], &Tokenizer::byte()).is_ok()
    };
    for role in ["user", "system", "tool", "assistant_2", "assistants", "agent"] {
        assert!(read(role), "{role}");
    }
    for role in ["asistant", "Assistant", "assitsant", "assistan"] {
        assert!(!read(role), "{role}");
        #[cfg(feature = "faults")]
        {
            use xtrain_tensor::faults::{self, Fault};
            assert!(faults::with(Fault::MisspelledRolesUntrained, || read(role)), "{role}");
        }
    }
}

#[test]
fn a_missing_input_and_an_invalid_output_path_are_refused_by_name() {
    let dir = Scratch::new();
    let error = prepared(&dir, &[dir.path("nobody.txt")], &Tokenizer::byte()).unwrap_err();
    assert!(matches!(&error, DataError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound));
    assert!(error.to_string().contains("nobody.txt: cannot open"), "{error}");
    let input = dir.file("in.txt", "a");
    let nowhere = dir.path("no/such/out.tok");
    assert!(prepare(&[input], &nowhere, &Tokenizer::byte(), &mut |_| ()).is_err());
    assert!(prepare(&[], &dir.path("out.tok"), &Tokenizer::byte(), &mut |_| ()).is_err());
}

#[test]
fn progress_reaches_the_total() {
    let dir = Scratch::new();
    // with a byte-order mark, which is no text
    let text = ["\u{feff}", &"line\n".repeat(700_000)].concat();
    let inputs = [dir.file("b.jsonl", "{\"text\":\"a\"}\n"), dir.file("a.txt", text)];
    let mut seen = Vec::new();
    let out = dir.path("out.tok");
    let done = prepare(&inputs, &out, &Tokenizer::byte(), &mut |p| seen.push(p)).unwrap();
    assert!(seen.len() >= 4 && seen.windows(2).all(|w| w[0] <= w[1]));
    assert_eq!(seen.last(), Some(&3_500_016));
    assert_eq!(done, Prepared { bytes: 3_500_016, tokens: 3_500_003, documents: 2 });
}

#[test]
fn documents_begin_with_the_bos_token_of_the_tokenizer() {
    let dir = Scratch::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers/llama_spm");
    let tokenizer = Tokenizer::load(&fixture).unwrap();
    let rows = "{\"text\":\"a\"}\n{\"text\":\"<s>a\"}\n{\"text\":\"\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n\
                {\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n";
    let inputs = [dir.file("a.txt", "a</s></s>b"), dir.file("b.jsonl", rows)];
    let of = |tokenizer: &Tokenizer| {
        let tokens = Tokens::from_files(&inputs, tokenizer, Content::Any).unwrap();
        let ends = tokens.ends().unwrap();
        let starts = [0].into_iter().chain(ends.iter().copied());
        let first: Vec<u32> =
            starts.zip(&ends).map(|(start, _)| tokens.ids(start..start + 1).unwrap()[0]).collect();
        (first, tokens.len(), tokens)
    };
    let (first, count, tokens) = of(&tokenizer);
    // an empty document has only its end, and the built-in chat template writes no BOS token
    assert_eq!(
        first.iter().map(|&id| id == 1).collect::<Vec<_>>(),
        [true, false, true, true, true, true, false]
    );
    let (_, without, _) = of(&tokenizer.clone().without_bos());
    assert_eq!(count, without + 4, "the text of the second row has its own");
    let pair = tokens.ends().unwrap()[4];
    assert_eq!(tokens.target_mask(pair..pair + 2).unwrap(), [false, false], "the prompt is context only");
    let file = prepared(&dir, &inputs, &tokenizer).unwrap();
    assert_eq!(file.ids(0..count).unwrap(), tokens.ids(0..count).unwrap());
}
