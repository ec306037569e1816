use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand::RngExt as _;
use xtrain_tensor::rng::PhiloxRng;
use xtrain_tensor::testing::{alone, times};
use xtrain_tensor::{Device, Dtype, RopeScaling};

use super::config::{self, Arch};
use super::import::match_tensors;
use super::*;
use crate::checkpoint::NamedTensor;
use crate::config::Config;
use crate::export_source::ExportSource;
use crate::model::Model;
use crate::store;
use crate::store_error::StoreError;
use crate::test_memory::with_little_memory;
use crate::test_rng::rng;
use crate::tokenizer::Tokenizer;

mod limits;
mod tokenizers;

fn read(path: &Path) -> Result<Imported, StoreError> {
    super::read(path, &NamedTensor::begin)
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

/// The tensors of blocks.safetensors.
fn blocks(name: &str) -> Vec<u8> {
    let bytes = std::fs::read(path("gguf/blocks.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.tensor(name).unwrap().data().to_vec()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn blocks_are_widened_to_the_bits_of_the_reference() {
    let cases = [
        (Quant::Q8_0, "Q8_0.raw", "Q8_0.f32"),
        (Quant::Q4_0, "Q4_0.raw", "Q4_0.f32"),
        (Quant::F16, "quantize.F16.raw", "quantize.F16.dequantized"),
        (Quant::BF16, "quantize.BF16.raw", "quantize.BF16.dequantized"),
        (Quant::Q8_0, "quantize.Q8_0.raw", "quantize.Q8_0.dequantized"),
        (Quant::Q4_0, "quantize.Q4_0.raw", "quantize.Q4_0.dequantized"),
    ];
    for (quant, raw, want) in cases {
        let mut got = Vec::new();
        quant.widen(&blocks(raw), &mut got);
        assert_eq!(bits(&got), bits(&f32s(&blocks(want))), "{raw}");
    }
}

#[test]
fn values_are_narrowed_to_the_blocks_of_the_reference() {
    let x = f32s(&blocks("quantize.x_f32"));
    for quant in [Quant::F16, Quant::BF16, Quant::Q8_0] {
        let mut got = Vec::new();
        let _ = quant.narrow(&x, &mut got);
        let want = blocks(&format!("quantize.{quant}.raw"));
        let first = got.iter().zip(&want).enumerate().find(|(_, (a, b))| a != b);
        assert_eq!(got.len(), want.len(), "{quant}");
        assert!(first.is_none(), "{quant}: byte, found and expected: {first:02x?}");
    }
}

/// A small file of an architecture, in memory.
fn written(name: &str, quant: Quant) -> Vec<u8> {
    let opened = store::open(&path(name), Dtype::F32, &Device::cpu()).unwrap();
    let subject =
        ExportSource { model: &opened.model, tokenizer: opened.tokenizer.as_ref(), eos: &opened.eos };
    let mut bytes = Vec::new();
    write(&mut bytes, &subject, "test", quant).unwrap();
    bytes
}

/// A file that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let file = std::env::temp_dir().join(format!("xtrain-gguf-{name}-{}.gguf", std::process::id()));
        std::fs::write(&file, bytes).unwrap();
        Scratch(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn weights_of_every_family_are_bit_identical_after_export_and_import() {
    for name in ["qwen3_tied", "qwen3_untied_hd", "qwen2_bias", "llama_odd", "llama_sharded", "llama3_rope"] {
        let original = store::open(&path(&format!("models/{name}")), Dtype::F32, &Device::cpu()).unwrap();
        let file = Scratch::new(name, &written(&format!("models/{name}"), Quant::F32));
        let again = store::open(&file.0, Dtype::F32, &Device::cpu()).unwrap();
        assert_eq!(again.model.config(), original.model.config(), "{name}");
        assert_eq!(again.eos, original.eos, "{name}");
        for (a, b) in again.model.params.iter().zip(original.model.params.iter()) {
            let values = |p: &crate::Param| bits(p.value().unwrap().data().unwrap());
            assert_eq!((a.name(), values(a)), (b.name(), values(b)), "{name}");
        }
    }
}

#[test]
fn reading_and_writing_a_file_keeps_the_bytes_of_every_tensor() {
    for (name, quant) in [
        ("gguf/qwen3_tied.F16.gguf", Quant::F16),
        ("gguf/qwen3_tied.BF16.gguf", Quant::BF16),
        ("gguf/qwen3_tied.Q8_0.gguf", Quant::Q8_0),
        ("gguf/llama3_rope.Q4_0.gguf", Quant::F32),
    ] {
        let theirs = std::fs::read(path(name)).unwrap();
        let ours = written(name, quant);
        let header = |bytes: &[u8]| read_header(Path::new(name), bytes, bytes.len() as u64).unwrap();
        let (want, got) = (header(&theirs), header(&ours));
        assert_eq!(got.tensors.len(), want.tensors.len(), "{name}");
        for tensor in &want.tensors {
            let same = got.tensors.iter().find(|t| t.name == tensor.name).unwrap();
            assert_eq!(same.shape, tensor.shape, "{name}: {}", tensor.name);
            let read = |entry: &Entry, bytes: &[u8]| {
                bits(&entry.read(Path::new(name), &mut Cursor::new(bytes)).unwrap().data)
            };
            assert_eq!(read(same, &ours), read(tensor, &theirs), "{name}: {}", tensor.name);
            if quant != Quant::F32 {
                assert_eq!(same.quant, tensor.quant, "{name}: {}", tensor.name);
            }
        }
        let passing = ["general.name", "general.size_label", "general.file_type"];
        for (key, value) in want.metadata.values.iter().filter(|(key, _)| !passing.contains(&key.as_str())) {
            let floats = |v: &Value| if let Value::Float(x) = v { Some((*x as f32).to_bits()) } else { None };
            match (floats(value), got.metadata.get(key).and_then(floats)) {
                (None, _) => assert_eq!(got.metadata.get(key), Some(value), "{name}: {key}"),
                (want, got) => assert_eq!(got, want, "{name}: {key}"),
            }
        }
    }
}

#[test]
fn the_weights_alone_are_those_of_the_model() {
    let file = path("gguf/qwen3_tied.Q8_0.gguf");
    let alone = super::import::weights(&file, &NamedTensor::begin).unwrap();
    assert_eq!(alone, read(&file).unwrap().tensors);
}

#[test]
fn the_tokenizer_of_a_file_equals_that_of_its_directory() {
    for (dir, file) in [("qwen3_tied", "qwen3_tied.Q8_0.gguf"), ("llama3_rope", "llama3_rope.Q4_0.gguf")] {
        let ours = Tokenizer::load(&path(&format!("models/{dir}"))).unwrap();
        let theirs = read(&path(&format!("gguf/{file}"))).unwrap().tokenizer.unwrap();
        assert_eq!((theirs.digest(), theirs.eos_ids()), (ours.digest(), ours.eos_ids()), "{dir}");
        for text in [
            "Hello world, it's 12345 o'clock!\n\n  x",
            "<|im_start|>user\nquiz<|im_end|><think>",
            "<|begin_of_text|><|eot_id|>  äöü 漢字 e\u{301} \u{1f600}\r\n\t",
        ] {
            assert_eq!(theirs.encode(text).unwrap(), ours.encode(text).unwrap(), "{dir}: {text:?}");
        }
    }
}

#[test]
fn the_built_in_tokenizer_survives_export_and_import() {
    let mut values = tokenizer::write(&Tokenizer::byte(), 300).unwrap();
    values.extend(tokenizer::write_eos_ids(&[256]).unwrap());
    let meta = Metadata { file: "test".into(), values };
    let again = tokenizer::read(&meta).unwrap().unwrap();
    assert_eq!(tokenizer::eos_ids(&meta).unwrap(), [256]);
    let text = "any text <|endoftext|> \u{0} ä";
    assert_eq!(again.encode(text).unwrap(), Tokenizer::byte().encode(text).unwrap());
    assert!(tokenizer::write(&Tokenizer::byte(), 256).is_err(), "more ids than rows");
    assert!(tokenizer::write_eos_ids(&[1, 2, 3, 4]).is_err(), "more ids than keys");
}

fn spm() -> (Tokenizer, Metadata) {
    let bytes = std::fs::read(path("gguf/llama_spm.gguf")).unwrap();
    let header = read_header(Path::new("llama_spm.gguf"), &bytes[..], bytes.len() as u64).unwrap();
    (Tokenizer::load(&path("tokenizers/llama_spm")).unwrap(), header.metadata)
}

/// Texts with spaces, line breaks, characters outside the vocabulary and special tokens.
const TEXTS: [&str; 5] =
    ["Hello world", "  two\n\n spaces ", "caf\u{e9} \u{6f22}", "<s>[INST] x [/INST] y</s>", ""];

#[test]
fn a_sentencepiece_vocabulary_with_scores_encodes_as_hf_does() {
    let (hf, metadata) = spm();
    let gguf = tokenizer::read(&metadata).unwrap().unwrap();
    assert_eq!((gguf.digest(), gguf.eos_ids()), (hf.digest(), hf.eos_ids()));
    let json = |t: &Tokenizer| serde_json::from_slice::<serde_json::Value>(t.files()[0].1).unwrap();
    let (ours, theirs) = (json(&gguf), json(&hf));
    for part in ["model", "normalizer", "decoder", "added_tokens"] {
        assert_eq!(ours[part], theirs[part], "{part}");
    }
    assert_eq!(ours["post_processor"]["single"], theirs["post_processor"]["single"]);
    for text in TEXTS {
        assert_eq!(gguf.encode(text).unwrap(), hf.encode(text).unwrap(), "{text:?}");
    }
}

#[test]
fn a_sentencepiece_tokenizer_survives_export_and_import() {
    for name in ["llama_spm", "metaspace_spm"] {
        let ours = Tokenizer::load(&path(&format!("tokenizers/{name}"))).unwrap();
        let mut values = tokenizer::write(&ours, 704).unwrap();
        values.extend(tokenizer::write_eos_ids(&[2]).unwrap());
        let again = Metadata { file: "test".into(), values };
        let (_, theirs) = spm();
        let keys = ["model", "tokens", "bos_token_id", "unknown_token_id", "add_bos_token"];
        for key in keys.map(|key| format!("tokenizer.ggml.{key}")) {
            match (again.get(&key), theirs.get(&key)) {
                (Some(Value::Strings(a)), Some(Value::Strings(b))) => assert_eq!(a[..700], b[..]),
                (a, b) => assert_eq!(a, b, "{key}"),
            }
        }
        let types = |meta: &Metadata| meta.ints("tokenizer.ggml.token_type").unwrap()[..700].to_vec();
        assert_eq!(types(&again), types(&theirs), "{name}");
        let again = tokenizer::read(&again).unwrap().unwrap();
        let merges = |t: &Tokenizer| {
            serde_json::from_slice::<serde_json::Value>(t.files()[0].1).unwrap()["model"]["merges"].clone()
        };
        assert_eq!(merges(&again), merges(&ours), "{name}");
        assert_eq!(again.encode("Hello world").unwrap(), ours.encode("Hello world").unwrap());
    }
}

#[test]
fn a_model_with_an_unsupported_tokenizer_has_its_weights_and_the_reason() {
    let mut bytes = std::fs::read(path("corrupt/g_base_ok/model.gguf")).unwrap();
    swap(&mut bytes, b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0gpt3");
    let file = Scratch::new("gpt3", &bytes);
    let imported = read(&file.0).unwrap();
    assert!(imported.tokenizer.is_none());
    let reason = imported.unsupported_tokenizer.unwrap().to_string();
    assert!(reason.contains("tokenizer not supported") && reason.contains("gpt3"), "{reason}");
    assert!(tokenizer_of(&file.0).unwrap_err().to_string().contains("gpt3"));
}

#[test]
fn every_chat_template_survives_export_and_import() {
    let file = Path::new("test/tokenizer.json");
    let json = Tokenizer::byte().files()[0].1.to_vec();
    for config in [
        r#"{"eos_token": "<|endoftext|>"}"#,
        r#"{"eos_token": "<|endoftext|>", "chat_template": "{{ 1 }}"}"#,
        r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#,
        r#"{"chat_template": [{"name": "rag", "template": "c"}]}"#,
    ] {
        let ours = Tokenizer::from_parts(json.clone(), Some(config.into()), file).unwrap();
        let meta = Metadata { file: "test".into(), values: tokenizer::write(&ours, 300).unwrap() };
        let again = tokenizer::read(&meta).unwrap().unwrap();
        assert_eq!(again.chat_templates(), ours.chat_templates(), "{config}");
        // a single template is a text, as transformers writes it
        let json = |t: &Tokenizer| serde_json::from_slice::<serde_json::Value>(t.files()[1].1).unwrap();
        assert_eq!(json(&again)["chat_template"], json(&ours)["chat_template"], "{config}");
    }
}

#[test]
fn the_scaling_rule_of_divisors_is_recovered() {
    let imported = read(&path("gguf/llama3_rope.Q4_0.gguf")).unwrap();
    let want = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
    assert_eq!(imported.config.rope_scaling, want);
    assert_eq!((imported.config.norm_eps, imported.config.rope_theta), (1e-5, 500.0));
}

#[test]
fn a_file_without_a_tokenizer_has_the_key_that_llama_cpp_requires() {
    let opened = store::open(&path("models/qwen3_tied"), Dtype::F32, &Device::cpu()).unwrap();
    let source = ExportSource { model: &opened.model, tokenizer: None, eos: &[] };
    let mut bytes = Vec::new();
    write(&mut bytes, &source, "test", Quant::F32).unwrap();
    let key =
        |value: &[u8]| [&b"tokenizer.ggml.model\x08\0\0\0"[..], &value.len().to_le_bytes(), value].concat();
    assert!(bytes.windows(40).any(|w| w == key(b"no_vocab")), "{:?}", String::from_utf8_lossy(&bytes[..999]));
    assert!(read(&Scratch::new("no_vocab", &bytes).0).unwrap().tokenizer.is_none());
    // another name of the same kind; as long as "no_vocab", so that no offset changes
    swap(&mut bytes, b"no_vocab", b"no_vocib");
    let error = read(&Scratch::new("no_vocib", &bytes).0).unwrap().unsupported_tokenizer;
    assert!(error.is_some_and(|e| e.to_string().contains("no_vocib")));
}

#[test]
fn a_model_that_gguf_cannot_represent_is_not_written() {
    let opened = store::open(&path("models/qwen3_tied"), Dtype::F32, &Device::cpu()).unwrap();
    let windows = Config { windows: vec![Some(4), None], ..opened.model.config().clone() };
    let windowed = Model::new(windows, opened.model.params.clone()).unwrap();
    let subject = |model| ExportSource { model, tokenizer: None, eos: &[] };
    let error = write(&mut Vec::new(), &subject(&windowed), "test", Quant::F32).unwrap_err();
    assert!(error.to_string().contains("sliding_window"), "{error}");
    let error = write(&mut Vec::new(), &subject(&opened.model), "test", Quant::Q4_0).unwrap_err();
    assert!(error.to_string().contains("Q4_0"), "{error}");
}

/// The error of reading the valid base file with a change, or "accepted".
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = std::fs::read(path("corrupt/g_base_ok/model.gguf")).unwrap();
    change(&mut bytes);
    let name = format!("changed-{:x}", crc32c::crc32c(&bytes));
    let file = Scratch::new(&name, &bytes);
    read(&file.0).map_or_else(|e| e.to_string(), |_| "accepted".to_string())
}

/// Replaces the first `old` with `new`, of the same length.
fn swap(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let at = bytes.windows(old.len()).position(|w| w == old).expect("`old` occurs");
    bytes[at..at + new.len()].copy_from_slice(new);
}

#[test]
fn each_error_names_its_cause() {
    assert_eq!(changed(|_| ()), "accepted");
    for (at, what, most) in [(8, "tensors", 100_000u64), (16, "metadata values", 10_000)] {
        let count = |n: u64| changed(|bytes| bytes[at..at + 8].copy_from_slice(&n.to_le_bytes()));
        let found = count(most + 1);
        assert!(found.contains(&(most + 1).to_string()) && found.contains(what), "{found}");
        assert!(!count(most).contains(&most.to_string()), "{}", count(most));
    }
    for (says, text) in [
        ("3, found 2", changed(|b| b[4] = 2)),
        (
            "attention.head_coumt",
            changed(|b| swap(b, b"attention.head_count\x04", b"attention.head_coumt\x04")),
        ),
        ("UTF-8", changed(|b| swap(b, b"general.type", b"general.\xff\xff\xff\xff"))),
        (
            "blk.0.attn_q.weight is missing",
            changed(|b| swap(b, b"blk.0.attn_q.weight", b"blk.0.attn_z.weight")),
        ),
    ] {
        assert!(
            text.contains(says) || says == "attention.head_coumt" && text.contains("head_count"),
            "{text}"
        );
    }
    let nan = changed(|b| {
        let header = read_header(Path::new("base"), &b[..], b.len() as u64).unwrap();
        let at = header.tensors.iter().find(|t| t.quant == Quant::F32).unwrap().offset as usize;
        b[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(nan.contains("NaN"), "{nan}");
    let missing = read(Path::new("nowhere.gguf")).unwrap_err().to_string();
    assert!(missing.contains("nowhere.gguf not found"), "{missing}");
    let dir = read(&path("gguf")).unwrap_err().to_string();
    assert!(dir.contains("not a regular file"), "{dir}");
}

/// Numbers that are meaningful to the parser.
const NUMBERS: [u64; 10] = [0, 1, 2, 8, 9, 255, 1 << 31, (1 << 32) - 1, 1 << 61, u64::MAX];

/// Applies one to four changes: flips bits, replaces bytes and numbers, removes or duplicates ranges, truncates.
fn mutate(bytes: &mut Vec<u8>, header: usize, random: &mut PhiloxRng) {
    for _ in 0..=random.random_range(0..4) {
        let bound = header.min(bytes.len());
        if bound < 16 {
            return;
        }
        let (at, other) = (random.random_range(0..bound), random.random_range(0..bound));
        match random.random_range(0..6) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_le_bytes();
                let end = bytes.len().min(at + [4, 8][random.random_range(0..2)]);
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            3 => drop(bytes.drain(at.min(other)..at.max(other))),
            4 => {
                let copied = bytes[at.min(other)..at.max(other)].to_vec();
                drop(bytes.splice(at..at, copied));
            }
            _ => bytes.truncate(at),
        }
    }
}

#[test]
fn mutated_files_do_no_harm() {
    if !alone("gguf::tests::mutated_files_do_no_harm") {
        return;
    }
    let seeds = ["corrupt/g_base_ok/model.gguf", "gguf/k_quants.gguf"].map(|name| {
        let seed = std::fs::read(path(name)).unwrap();
        let first = read_header(Path::new("seed"), &seed[..], seed.len() as u64).unwrap();
        (first.tensors.iter().map(|t| t.offset).min().unwrap() as usize, seed)
    });
    let cases = times(20_000, 200_000);
    let mut accepted = 0;
    for case in 0..cases {
        let (header, seed) = &seeds[case as usize % seeds.len()];
        let (mut bytes, mut random) = (seed.clone(), rng(case));
        mutate(&mut bytes, *header, &mut random);
        // the steps of `read`, from memory: header, config, tensors, tokenizer
        let load = || -> Result<(), StoreError> {
            let name = Path::new("mutated");
            let header = read_header(name, &bytes[..], bytes.len() as u64)?;
            let arch = Arch::read(&header.metadata)?;
            let cfg = config::read(&header, arch, None)?;
            for (_, entry) in match_tensors(name, &header, &cfg, arch)? {
                entry.read(name, &mut Cursor::new(&bytes))?;
            }
            tokenizer::eos_ids(&header.metadata)?;
            tokenizer::read(&header.metadata).map(|_| ())
        };
        let done = with_little_memory(format_args!("gguf, case {case}"), bytes.len(), || {
            catch_unwind(AssertUnwindSafe(load))
        });
        let done = done.unwrap_or_else(|_| panic!("case {case} panicked"));
        accepted += u64::from(done.is_ok());
    }
    println!("gguf: {accepted} of {cases} mutations are valid files");
    assert!(accepted < cases / 2);
}

/// A header with a small SentencePiece vocabulary.
fn small_spm() -> Vec<u8> {
    small_spm_of_types([2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1])
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
fn mutated_sentencepiece_vocabularies_do_no_harm() {
    if !alone("gguf::tests::mutated_sentencepiece_vocabularies_do_no_harm") {
        return;
    }
    let seed = small_spm();
    let cases = times(20_000, 200_000);
    let mut accepted = 0;
    for case in 0..cases {
        let (mut bytes, mut random) = (seed.clone(), rng(case));
        let length = bytes.len();
        mutate(&mut bytes, length, &mut random);
        let load = || -> Result<bool, StoreError> {
            let header = read_header(Path::new("mutated"), &bytes[..], bytes.len() as u64)?;
            let Some(tokenizer) = tokenizer::read(&header.metadata)? else { return Ok(false) };
            let ids = tokenizer.encode("ab a\nba")?;
            tokenizer.decode(&ids);
            let _ = tokenizer::write(&tokenizer, tokenizer.vocab_size())?;
            Ok(true)
        };
        let done = with_little_memory(format_args!("spm, case {case}"), bytes.len(), || {
            catch_unwind(AssertUnwindSafe(load))
        });
        let done = done.unwrap_or_else(|_| panic!("case {case} panicked"));
        accepted += u64::from(matches!(done, Ok(true)));
    }
    println!("spm: {accepted} of {cases} mutations are valid vocabularies");
    assert!((cases / 50..cases).contains(&accepted), "{accepted} of {cases}");
}

/// A header whose only value is a list of `count` elements of type `kind`, which ends the file.
fn with_list(kind: u32, element: &[u8], count: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend([0u64, 1, 4].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(b"list");
    bytes.extend([9, kind].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(count.to_le_bytes());
    bytes.extend(element.repeat(3));
    bytes
}

#[test]
fn a_list_may_end_at_the_end_of_the_file_and_not_after_it() {
    let sizes = [1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8];
    for kind in (0..=12).filter(|&kind| kind != 9) {
        let read = |count| {
            let bytes = with_list(kind, &vec![0; sizes[kind as usize]], count);
            header::read_header(Path::new("list.gguf"), &bytes[..], bytes.len() as u64).map(drop)
        };
        assert!(read(3).is_ok(), "type {kind}: {}", read(3).unwrap_err());
        assert!(read(4).is_err(), "type {kind}");
    }
}
