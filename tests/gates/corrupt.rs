//! Damaged checkpoints and GGUF files: each is refused with an error that names the file and the cause.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use xtrain::model::store;
use xtrain::tensor::{Device, Dtype};

use crate::cli::Scratch;
use crate::fixtures::{json, path};

/// The text that the error of each case must contain in addition to the path. It is taken from the manifest's
/// `should_say` where possible.
const EXPECTED: [(&str, &str); 62] = [
    ("st_empty_file", "found 0"),
    ("st_header_len_2pow63", "9223372036854775808"),
    ("st_header_len_past_eof", "end of the header"),
    ("st_truncated_data", "bytes"),
    ("st_truncated_header", "end of the header"),
    ("st_header_not_json", "JSON"),
    ("st_header_not_utf8", "UTF-8"),
    ("st_header_deep_json", "depth"),
    ("st_overlapping_offsets", "tensor"),
    ("st_offsets_reversed", "model.layers.0.input_layernorm.weight"),
    ("st_hole", "tensor"),
    ("st_size_mismatch", "model.layers.0.self_attn.q_proj.weight"),
    ("st_shape_overflow", "model.layers.0.self_attn.q_proj.weight"),
    ("st_shape_float", "16.5"),
    ("st_unknown_dtype", "F33"),
    ("st_metadata_not_string", "string"),
    ("w_nan", "model.layers.0.self_attn.q_proj.weight"),
    ("w_missing_tensor", "model.layers.0.self_attn.q_proj.weight is missing"),
    ("w_missing_lm_head", "lm_head.weight is missing"),
    ("w_shape_transposed", "model.layers.0.mlp.down_proj.weight"),
    ("w_vocab_rows", "model.embed_tokens.weight"),
    ("w_dtype_i8", "I8"),
    ("w_unexpected_tensor", "model.layers.7"),
    ("w_zero_size", "zero"),
    ("c_missing", "config.json not found"),
    ("c_not_json", "JSON"),
    ("c_not_utf8", "UTF-8"),
    ("c_deep_json", "depth"),
    ("c_zero_layers", "num_hidden_layers"),
    ("c_absurd_layers", "num_hidden_layers"),
    ("c_more_layers_than_weights", "model.layers.1"),
    ("c_kv_heads_not_dividing", "num_key_value_heads"),
    ("c_zero_kv_heads", "num_key_value_heads"),
    ("c_odd_head_dim", "head_dim"),
    ("c_vocab_zero", "vocab"),
    ("c_hidden_huge", "hidden_size"),
    ("c_hidden_string", "hidden_size"),
    ("c_unknown_arch", "mamba9"),
    ("c_act_gelu", "gelu_new"),
    ("c_rope_type_unknown", "spiral"),
    ("c_rope_theta_zero", "rope_theta"),
    ("c_eps_nan", "config.json"),
    ("c_quantization_config", "quantization_config"),
    ("i_missing_shard", "model-00001-of-00001.safetensors not found"),
    ("i_path_traversal", "../base_ok/model.safetensors"),
    ("i_tensor_not_in_shard", "model.layers.0.self_attn.q_proj.weight"),
    ("i_index_not_json", "JSON"),
    ("no_weights", "model.safetensors"),
    ("g_bad_magic", "magic"),
    ("g_version_99", "99"),
    ("g_truncated_header", "is truncated"),
    ("g_truncated_data", "a file of"),
    ("g_kv_count_2pow63", "metadata values"),
    ("g_string_len_2pow62", "a string in the header is truncated"),
    ("g_array_len_absurd", "a list in the header is truncated"),
    ("g_tensor_type_200", "type 200"),
    ("g_tensor_offset_past_eof", "blk.0.attn_q.weight"),
    ("g_tensor_offset_unaligned", "multiple of 32"),
    ("g_dims_overflow", "2^56 elements"),
    ("g_zero_dim", "zero"),
    ("g_duplicate_tensor", "twice"),
    ("g_missing_block_count", "block_count"),
];
/// Further cases.
const MORE: [(&str, &str); 2] = [("g_unknown_arch", "general.architecture"), ("g_heads_zero", "head_count")];

#[test]
fn every_damaged_model_is_refused_with_the_file_and_the_cause() {
    let scratch = Scratch::new("corrupt");
    let mut refused = 0;
    for case in json("corrupt/manifest.json").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let dir = scratch.0.join(name);
        std::fs::create_dir(&dir).unwrap();
        for (file, from) in case["files"].as_object().unwrap() {
            let from: PathBuf = path("corrupt").join(from.as_str().unwrap());
            std::fs::copy(&from, dir.join(file)).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        }
        let model = if case["kind"] == "gguf" { dir.join("model.gguf") } else { dir };
        // up to three attempts: the machine may be busy
        let open = |_| {
            let started = Instant::now();
            (store::open(&model, Dtype::F32, &Device::cpu()), started.elapsed())
        };
        let quick = |(_, took): &(_, Duration)| *took < Duration::from_secs(1);
        let (opened, _) =
            (0..3).map(open).find(quick).unwrap_or_else(|| panic!("{name} took more than a second"));
        if case["expect"] == "ok" {
            assert!(opened.is_ok(), "{name}: {}", opened.unwrap_err());
            continue;
        }
        let Err(error) = opened else { panic!("{name} was accepted: {}", case["should_say"]) };
        let text = error.to_string();
        let expected = EXPECTED.iter().chain(&MORE).find(|(case, _)| *case == name);
        let (_, expected) = expected.unwrap_or_else(|| panic!("no expected text for {name}: {text}"));
        assert!(text.contains(expected), "{name}: {text:?} does not contain {expected:?}");
        assert!(
            text.contains(name) && !text.contains('\n'),
            "{name}: no path, or more than one line: {text}"
        );
        refused += 1;
    }
    println!("corrupt: {refused} damaged models refused");
    assert_eq!(refused, EXPECTED.len() + MORE.len());
}
