use std::io::Cursor;
use std::path::{Path, PathBuf};

use tempfile::TempPath;
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
use crate::tokenizer::Tokenizer;

mod damaged;
mod limits;
mod tokenizers;

fn read(path: &Path) -> Result<Imported, StoreError> {
    super::read(path, &NamedTensor::begin)
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

/// Replaces the first `old` with `new`, of the same length.
fn swap(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let at = bytes.windows(old.len()).position(|w| w == old).expect("`old` occurs");
    bytes[at..at + new.len()].copy_from_slice(new);
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

/// A temporary file with these bytes.
fn file(bytes: &[u8]) -> TempPath {
    let path = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap().into_temp_path();
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn weights_of_every_family_are_bit_identical_after_export_and_import() {
    for name in ["qwen3_tied", "qwen3_untied_hd", "qwen2_bias", "llama_odd", "llama_sharded", "llama3_rope"] {
        let original = store::open(&path(&format!("models/{name}")), Dtype::F32, &Device::cpu()).unwrap();
        let file = file(&written(&format!("models/{name}"), Quant::F32));
        let again = store::open(&file, Dtype::F32, &Device::cpu()).unwrap();
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
    values.extend(tokenizer::write_eos_ids(Some(&Tokenizer::byte()), &[256]).unwrap());
    let meta = Metadata { file: "test".into(), values };
    let again = tokenizer::read(&meta).unwrap().unwrap();
    assert_eq!(tokenizer::eos_ids(&meta).unwrap(), [256]);
    let text = "any text <|endoftext|> \u{0} ä";
    assert_eq!(again.encode(text).unwrap(), Tokenizer::byte().encode(text).unwrap());
    assert!(tokenizer::write(&Tokenizer::byte(), 256).is_err(), "more ids than rows");
    assert!(tokenizer::write_eos_ids(None, &[1, 2, 3, 4]).is_err(), "more ids than keys");
}

/// It has the pattern of Qwen2, whose tokenizers normalize text to NFC; it does not.
#[test]
fn a_trained_tokenizer_survives_export_and_import() {
    let texts = ["a cafe\u{301} and a re\u{301}sume\u{301}".repeat(9)];
    let own = Tokenizer::train_bpe(texts.into_iter(), 270, &[]).unwrap();
    let vocab = own.vocab_size();
    let values = tokenizer::write(&own, vocab).unwrap();
    assert!(values.iter().any(|(key, value)| key == "xtrain.tokenizer.nfc" && *value == Value::Bool(false)));
    let meta = Metadata { file: "test".into(), values: values.into_iter().collect() };
    let again = tokenizer::read(&meta).unwrap().unwrap();
    for text in ["cafe\u{301}", "caf\u{e9} 123", "re\u{301}sume\u{301}  x"] {
        assert_eq!(again.encode(text).unwrap(), own.encode(text).unwrap(), "{text:?}");
    }
}

/// The end-of-text ids of a file that names one token by two keys.
fn end_tokens_of_two_keys() -> Vec<u32> {
    let values = ["eos", "eot"].map(|key| (format!("tokenizer.ggml.{key}_token_id"), Value::Int(256)));
    tokenizer::eos_ids(&Metadata { file: "test".into(), values: values.into() }).unwrap()
}

#[test]
fn a_token_that_several_keys_name_ends_a_text_once() {
    assert_eq!(end_tokens_of_two_keys(), [256]);
}

#[test]
#[cfg(feature = "faults")]
fn an_end_token_that_is_listed_twice_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    assert_eq!(faults::with(Fault::EndTokenListedTwice, end_tokens_of_two_keys), [256, 256]);
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
        values.extend(tokenizer::write_eos_ids(Some(&ours), &[2]).unwrap());
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
    let file = file(&bytes);
    let imported = read(&file).unwrap();
    assert!(imported.tokenizer.is_none());
    let reason = imported.unsupported_tokenizer.unwrap().to_string();
    assert!(reason.contains("tokenizer not supported") && reason.contains("gpt3"), "{reason}");
    assert!(tokenizer_of(&file).unwrap_err().to_string().contains("gpt3"));
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
fn the_memory_of_quantized_matrices_follows_from_the_header() {
    let device = Device::cpu();
    let mut kept = 0;
    for name in ["k_quants", "llama3_rope.Q4_0", "qwen3_tied.F16", "qwen3_tied.Q8_0", "small_quants"] {
        let file = path(&format!("gguf/{name}.gguf"));
        let types = store::describe(&file).unwrap().types;
        let params = store::open_for_inference(&file, Dtype::F32, &device).unwrap().model.params;
        assert_eq!(types.len(), params.iter().count());
        for (param, quant) in params.iter().zip(types) {
            let Ok(shape) = <[usize; 2]>::try_from(param.shape()) else { continue };
            let weight = param.packed().unwrap();
            let want = weight.block_bytes().map(|_| weight.packed_bytes());
            let what = format!("{name}: {} ({quant})", param.name());
            assert_eq!(quant.packed_bytes(shape, Dtype::F32, &device), want, "{what}");
            assert_eq!(want.is_some(), quant.format().is_some(), "{what}");
            assert_eq!(quant.packed_bytes(shape, Dtype::BF16, &device), None, "{what}");
            assert_eq!(quant.packed_bytes(shape, Dtype::F32, &Device::reference()), None, "{what}");
            kept += usize::from(want.is_some());
        }
    }
    assert!(kept > 15 + 16, "{kept}");
}

#[test]
fn the_bytes_of_parameters_are_those_of_their_blocks_only_in_memory() {
    let file = path("gguf/qwen3_tied.Q8_0.gguf");
    let bytes = |compute, open: fn(&Path, Dtype, &Device) -> Result<store::LoadedModel, StoreError>| {
        open(&file, compute, &Device::cpu()).unwrap().model.params.compute_bytes()
    };
    let (matrices, vectors) = (118_784, 384);
    // a block of 32 codes has one scale in f32
    assert_eq!(bytes(Dtype::F32, store::open_for_inference), matrices / 32 * 36 + 4 * vectors);
    assert_eq!(bytes(Dtype::F32, store::open), 4 * (matrices + vectors));
    assert_eq!(bytes(Dtype::BF16, store::open_for_inference), 2 * (matrices + vectors));
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
    assert!(read(&file(&bytes)).unwrap().tokenizer.is_none());
    // another name of the same kind; as long as "no_vocab", so that no offset changes
    swap(&mut bytes, b"no_vocab", b"no_vocib");
    let error = read(&file(&bytes)).unwrap().unsupported_tokenizer;
    assert!(error.is_some_and(|e| e.to_string().contains("no_vocib")));
}

#[test]
fn a_model_that_gguf_cannot_represent_is_not_written() {
    let opened = store::open(&path("models/qwen3_tied"), Dtype::F32, &Device::cpu()).unwrap();
    let windows = Config { windows: vec![Some(4), None], ..opened.model.config().clone() };
    let windowed = Model::new(windows, opened.model.params.clone()).unwrap();
    let subject = |model| ExportSource { model, tokenizer: None, eos: &[] };
    let error = write(&mut Vec::new(), &subject(&windowed), "test", Quant::F32).unwrap_err();
    let parts = [
        "sliding_window must be none in a GGUF file, found a window of ",
        "; a Hugging Face directory can hold it",
    ];
    assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    let error = write(&mut Vec::new(), &subject(&opened.model), "test", Quant::Q4_0).unwrap_err();
    assert!(error.to_string().contains("Q4_0"), "{error}");
}
