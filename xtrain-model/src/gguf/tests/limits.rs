//! Headers and metadata at their limits, and what a file cannot hold.
#[cfg(feature = "faults")]
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Truncate, Yarn};

use super::super::{encode, names};
use super::*;
use crate::config::Biases;

/// The error of a header of these bytes, or "accepted".
fn header_of(bytes: &[u8]) -> String {
    read_header(Path::new("test"), bytes, bytes.len() as u64)
        .map_or_else(|error| error.to_string(), |_| "accepted".into())
}

/// A header without tensors that ends with `value`, its only one, of the type `kind`.
fn with_value(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let counts = [0u64.to_le_bytes(), 1u64.to_le_bytes(), (key.len() as u64).to_le_bytes()].concat();
    [b"GGUF", &3u32.to_le_bytes()[..], &counts, key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

#[test]
fn a_header_is_read_to_its_end_and_not_beyond() {
    let key = "k".repeat(512);
    assert_eq!(header_of(&with_value(&key, 4, &[0; 4])), "accepted");
    assert!(header_of(&with_value(&key, 4, &[0; 3])).contains("the header is truncated"));
    let long = with_value(&"k".repeat(513), 4, &[]);
    let cut = &long[..long.len() - 4];
    for bytes in [&long[..], cut] {
        assert!(header_of(bytes).contains("bytes of a string: expected at most 512, found 513"));
    }
    // a length beyond the end is reported as such
    let beyond = &with_value(&"k".repeat(530), 4, &[])[..24 + 8 + 520];
    assert!(header_of(beyond).contains("a string in the header is truncated"));
    let list = |count: u64, bytes: usize| {
        with_value("k", 9, &[&0u32.to_le_bytes()[..], &count.to_le_bytes(), &vec![0; bytes]].concat())
    };
    assert_eq!(header_of(&list(9, 9)), "accepted");
    assert!(header_of(&list(9, 8)).contains("a list in the header is truncated"));
    assert_eq!(header_of(&list(1 << 20, 1 << 20)), "accepted");
    assert!(header_of(&list((1 << 20) + 1, (1 << 20) + 1)).contains("elements of all lists"));
}

#[test]
fn tensors_and_alignments_at_their_limits_are_accepted() {
    let aligned = |n: i64| header_of(&encode::header(&[("general.alignment".into(), Value::Int(n))], &[]));
    for (n, accepted) in [(4, false), (8, true), (1 << 16, true), (1 << 17, false), (24, false)] {
        assert_eq!(aligned(n) == "accepted", accepted, "{n}: {}", aligned(n));
    }
    let shaped = |shape: Vec<usize>| {
        let mut bytes = encode::header(&[], &[("t".into(), shape, Quant::F32)]);
        bytes.extend([0; 32]);
        header_of(&bytes)
    };
    assert_eq!(shaped(vec![1; 8]), "accepted");
    assert!(shaped(vec![1; 9]).contains("1 to 8 dimensions"));
    assert!(shaped(vec![1 << 28, 1 << 28]).contains("fewer than 2^56 elements"));
    assert!(shaped(vec![1 << 28, (1 << 28) - 1]).contains("a file of"));
}

/// The config of a file with the metadata of `cfg`, changed, and these divisors.
fn config_of(
    cfg: &Config,
    arch: Arch,
    change: &[(&str, Option<Value>)],
    divisors: Option<Vec<f32>>,
) -> Result<Config, String> {
    let mut values = config::write(cfg, arch);
    for (key, value) in change {
        let key = format!("{}.{key}", arch.name());
        values.retain(|(name, _)| *name != key);
        values.extend(value.clone().map(|value| (key, value)));
    }
    let header = Header { metadata: Metadata { file: "test".into(), values }, tensors: Vec::new() };
    config::read(&header, arch, divisors).map_err(|error| error.to_string())
}

#[test]
fn optional_metadata_have_defaults_or_the_value_that_is_supported() {
    let cfg = Config { qk_norm: false, ..Config::tiny() };
    let read = |key, value| config_of(&cfg, Arch::Llama, &[(key, value)], None);
    assert_eq!(read("attention.key_length", None).unwrap().head_dim, 8);
    assert_eq!(read("attention.head_count_kv", None).unwrap().n_kv_heads, cfg.n_heads);
    assert_eq!(read("rope.freq_base", None).unwrap().rope_theta, 10_000.0);
    for (key, good, bad) in [
        ("expert_count", Value::Int(0), Value::Int(1)),
        ("attention.sliding_window", Value::Int(0), Value::Int(4)),
        ("attention.causal", Value::Bool(true), Value::Bool(false)),
        ("attention.scale", Value::Float(f64::from(1.0 / 8f32.sqrt())), Value::Float(1.0)),
        ("attention.clamp_kqv", Value::Float(0.0), Value::Float(8.0)),
        ("attn_logit_softcapping", Value::Float(0.0), Value::Float(50.0)),
        ("final_logit_softcapping", Value::Float(0.0), Value::Float(30.0)),
        ("logit_scale", Value::Float(1.0), Value::Float(0.5)),
        ("embedding_scale", Value::Float(0.0), Value::Float(12.0)),
        ("residual_scale", Value::Float(1.0), Value::Float(0.5)),
        ("rope.scaling.yarn_log_multiplier", Value::Float(1.0), Value::Float(0.1)),
        ("rope.scaling.attn_factor", Value::Float(1.0), Value::Float(2.0)),
        ("rope.scaling.yarn_attn_factor", Value::Float(1.0), Value::Float(2.0)),
        ("rope.scaling.yarn_ext_factor", Value::Float(1.0), Value::Float(0.0)),
        ("rope.scale_linear", Value::Float(1.0), Value::Float(2.0)),
        ("attention.value_length", Value::Int(8), Value::Int(16)),
        ("rope.dimension_count", Value::Int(8), Value::Int(4)),
    ] {
        assert_eq!(read(key, Some(good)).as_ref(), Ok(&cfg), "{key}");
        assert!(read(key, Some(bad)).unwrap_err().contains(key), "{key}");
    }
    #[cfg(feature = "faults")]
    for (key, bad) in [("attention.causal", Value::Bool(false)), ("logit_scale", Value::Float(0.5))] {
        let ignored = faults::with(Fault::GgufComputationsIgnored, || read(key, Some(bad)));
        assert_eq!(ignored.as_ref(), Ok(&cfg), "{key}");
    }
    let epsilon = "llama.attention.layer_norm_rms_epsilon: expected a number, found none";
    assert!(read("attention.layer_norm_rms_epsilon", None).unwrap_err().ends_with(epsilon));
    let linear = read("rope.scaling.factor", Some(Value::Float(4.0))).unwrap();
    assert_eq!(linear.rope_scaling, RopeScaling::Linear { factor: 4.0 });
    assert_eq!(read("rope.scaling.factor", Some(Value::Float(1.0))).as_ref(), Ok(&cfg));
    assert!(read("attention.head_count", Some(Value::Int(0))).unwrap_err().contains("at least 1"));
    let qwen2 = config_of(&cfg, Arch::Qwen2, &[], None).unwrap();
    assert_eq!(qwen2.biases, Biases { qkv: true, o: false, mlp: false }, "also without such a tensor");
    let ones = config_of(&cfg, Arch::Llama, &[], Some(vec![1.0; 4])).unwrap();
    assert_eq!(ones.rope_scaling, RopeScaling::Divisors(vec![1.0; 4]));
}

#[test]
fn a_scaling_that_an_architecture_cannot_represent_is_refused() {
    let scaled = |rope_scaling, qk_norm| Arch::of(&Config { qk_norm, rope_scaling, ..Config::tiny() });
    let llama3 = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
    assert_eq!(scaled(llama3.clone(), false), Ok(Arch::Llama));
    assert!(scaled(llama3, true).is_err());
    assert!(scaled(RopeScaling::Divisors(vec![2.0; 4]), true).is_err());
    let yarn = Yarn {
        factor: 4.0,
        original: 16.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention: None,
        truncate: Truncate::Whole,
    };
    assert_eq!(scaled(RopeScaling::Yarn(yarn), true), Ok(Arch::Qwen3));
    assert!(scaled(RopeScaling::Yarn(Yarn { attention: Some(1.0), ..yarn }), true).is_err());
    assert!(scaled(RopeScaling::Yarn(Yarn { truncate: Truncate::Exact, ..yarn }), true).is_err());
}

#[test]
fn a_file_states_its_type_and_rows_of_partial_blocks_are_f16() {
    for (quant, number) in [(Quant::F32, 0), (Quant::F16, 1), (Quant::Q8_0, 7), (Quant::BF16, 32)] {
        let bytes = written("models/llama_odd", quant);
        let header = read_header(Path::new("test"), &bytes[..], bytes.len() as u64).unwrap();
        assert_eq!(header.metadata.get("general.file_type"), Some(&Value::Int(number)));
        for tensor in &header.tensors {
            let want = match tensor.shape[..] {
                [_] => Quant::F32,
                [.., row] if row % quant.block().elements != 0 => Quant::F16,
                _ => quant,
            };
            assert_eq!(tensor.quant, want, "{quant}: {}", tensor.name);
        }
    }
}

/// Heads of the largest size, in tensors of more than one piece, which ends inside of a head.
fn large() -> Model {
    let cfg = Config {
        vocab: 700,
        dim: 96,
        n_heads: 3,
        n_kv_heads: 1,
        head_dim: 256,
        n_layers: 1,
        qk_norm: false,
        tie_embeddings: true,
        rope_scaling: RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 },
        ..Config::tiny()
    };
    Model::init(&cfg, Dtype::F32, &Device::cpu(), 5).unwrap()
}

fn export(model: &Model) -> Vec<u8> {
    let mut bytes = Vec::new();
    let source = ExportSource { model, tokenizer: None, eos: &[] };
    write(&mut bytes, &source, "test", Quant::F32).unwrap();
    bytes
}

#[test]
fn heads_of_several_pieces_are_stored_interleaved_and_restored() {
    let (model, bytes) = (large(), export(&large()));
    let header = read_header(Path::new("test"), &bytes[..], bytes.len() as u64).unwrap();
    let file = file(&bytes);
    let again = read(&file).unwrap();
    assert_eq!(again.config, *model.config());
    for (parameter, tensor) in model.params.iter().zip(&again.tensors) {
        let data = parameter.value().unwrap().data::<f32>().unwrap();
        assert_eq!((parameter.name(), bits(data)), (&*tensor.name, bits(&tensor.data)));
        let name = names::gguf_name(parameter.name());
        let entry = header.tensors.iter().find(|entry| entry.name == name).unwrap();
        let stored = entry.read(Path::new("test"), &mut Cursor::new(&bytes)).unwrap().data;
        let interleaved = name.contains("attn_q.") || name.contains("attn_k.");
        let want = if interleaved { names::interleave(data, 256, 96) } else { data.to_vec() };
        assert_eq!(bits(&stored), bits(&want), "{name}");
    }
    assert!(recognises(&file) && !recognises(&path("gguf/blocks.safetensors")) && !recognises(&path("none")));
    let below = read(&file.join("below a file")).unwrap_err().to_string();
    assert!(below.contains("inspect"), "{below}");
}

#[test]
fn a_nan_in_the_second_piece_is_counted_from_the_first() {
    let mut bytes = export(&large());
    let header = read_header(Path::new("test"), &bytes[..], bytes.len() as u64).unwrap();
    let entry = header.tensors.iter().find(|entry| entry.name == "token_embd.weight").unwrap();
    let last = entry.offset as usize + 4 * (700 * 96 - 1);
    bytes[last..last + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = read(&file(&bytes)).unwrap_err().to_string();
    assert!(error.contains("element 67199 is NaN"), "{error}");
}

/// The byte tokenizer with changed JSON.
fn changed_tokenizer(change: impl FnOnce(&mut serde_json::Value), config: &str) -> Tokenizer {
    let mut json: serde_json::Value = serde_json::from_slice(Tokenizer::byte().files()[0].1).unwrap();
    change(&mut json);
    Tokenizer::from_parts(json.to_string().into_bytes(), Some(config.into()), Path::new("t")).unwrap()
}

#[test]
fn only_pre_tokenizers_of_gguf_are_written() {
    for (pre, accepted) in [
        (
            serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            false,
        ),
        (
            serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            true,
        ),
        (serde_json::json!({"type": "Whitespace"}), false),
    ] {
        let tokenizer = changed_tokenizer(|json| json["pre_tokenizer"] = pre.clone(), "{}");
        assert_eq!(tokenizer::write(&tokenizer, 300).is_ok(), accepted, "{pre}");
    }
    for (normalizer, accepted) in [
        (serde_json::json!(null), true),
        (serde_json::json!({"type": "NFC"}), true),
        (serde_json::json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]}), true),
        (
            serde_json::json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}),
            false,
        ),
        (serde_json::json!({"type": "Lowercase"}), false),
    ] {
        let tokenizer = changed_tokenizer(|json| json["normalizer"] = normalizer.clone(), "{}");
        assert_eq!(tokenizer::write(&tokenizer, 300).is_ok(), accepted, "{normalizer}");
    }
}

#[test]
fn names_of_templates_and_end_tokens_are_written() {
    let text = |key: &str, config: &str| {
        let values = tokenizer::write(&changed_tokenizer(|_| (), config), 300).unwrap();
        values.into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    };
    let two =
        r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}"#;
    let names = Value::Strings(vec!["rag".into()]);
    assert_eq!(text("tokenizer.chat_templates", two), Some(names));
    assert_eq!(text("tokenizer.chat_templates", r#"{"chat_template": "a"}"#), None);
    let bos = r#"{"bos_token": "<|endoftext|>"}"#;
    for bos in [bos, r#"{"bos_token": {"content": "<|endoftext|>", "lstrip": false}}"#] {
        assert_eq!(text("tokenizer.ggml.bos_token_id", bos), Some(Value::Int(256)));
    }
    assert_eq!(text("tokenizer.ggml.add_bos_token", bos), Some(Value::Bool(false)));
    assert_eq!(tokenizer::write_eos_ids(None, &[1, 2, 3]).unwrap().len(), 3);
    let metadata = |add: bool| {
        let mut values = tokenizer::write(&changed_tokenizer(|_| (), bos), 300).unwrap();
        values.retain(|(key, _)| key != "tokenizer.ggml.add_bos_token");
        values.push(("tokenizer.ggml.add_bos_token".into(), Value::Bool(add)));
        Metadata { file: "test".into(), values }
    };
    for add in [false, true] {
        let again = tokenizer::read(&metadata(add)).unwrap().unwrap();
        let json: serde_json::Value = serde_json::from_slice(again.files()[0].1).unwrap();
        assert_eq!(json["post_processor"].is_null(), !add);
        let written = tokenizer::write(&again, 300).unwrap();
        assert!(written.contains(&("tokenizer.ggml.add_bos_token".into(), Value::Bool(add))));
    }
}

#[test]
fn each_pre_tokenizer_splits_digits_as_it_should() {
    for (pre, want) in
        [("gpt-2", &[4, 2][..]), ("llama-bpe", &[4, 2]), ("qwen2", &[4, 0, 1]), ("smollm", &[4, 0, 1])]
    {
        let strings = |texts: &[&str]| Value::Strings(texts.iter().map(ToString::to_string).collect());
        let values = [
            ("model", Value::String("gpt2".into())),
            ("pre", Value::String(pre.into())),
            ("tokens", strings(&["1", "2", "12", "</s>", "a"])),
            ("token_type", Value::Ints(vec![1, 1, 1, 3, 1])),
            ("merges", strings(&["1 2"])),
            ("eos_token_id", Value::Int(3)),
            ("add_bos_token", Value::Bool(false)),
        ];
        let values = values.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
        let read = tokenizer::read(&Metadata { file: "test".into(), values }).unwrap().unwrap();
        assert_eq!(read.encode("a12").unwrap(), want, "{pre}");
    }
}
