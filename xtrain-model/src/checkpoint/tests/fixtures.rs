//! Damaged Hugging Face directories, as tests/data/corrupt holds them.
use super::*;

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corrupt").join(name)
}

/// Loads a fixture and requires the shapes of the undamaged checkpoint.
pub(super) fn load_fixture(name: &str) -> Result<Weights> {
    let mut want = Vec::new();
    let healthy = load_weights(&RealFs, &dir("base_ok"), &LoadOptions::default()).unwrap();
    want.extend(healthy.tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)));
    let shapes =
        |file: &Path, _: &Value, found: &[TensorInfo]| require_shapes(file, &want, TensorInfo::shapes(found));
    load_weights(&RealFs, &dir(name), &LoadOptions { shapes: Some(&shapes), ..LoadOptions::default() })
}

/// Checks that the fixture is refused and that the message contains all of `parts`.
#[track_caller]
fn check(name: &str, parts: &[&str]) {
    let error = load_fixture(name).expect_err(name).to_string();
    for part in parts {
        assert!(error.contains(part), "{name}: {part:?} is not in: {error}");
    }
    assert!(error.contains(name), "{name}: {error}");
}

#[test]
fn the_undamaged_checkpoint_loads() {
    let weights = load_fixture("base_ok").unwrap();
    assert_eq!(weights.tensors.len(), 14);
    assert_eq!(
        (weights.tensors[0].name.as_str(), &weights.tensors[0].shape[..]),
        ("lm_head.weight", &[24, 12][..])
    );
}

#[test]
fn damaged_headers_are_refused() {
    let (q, file) = ("tensor model.layers.0.self_attn.q_proj.weight: ", "model.safetensors: ");
    check("st_empty_file", &[file, "length prefix of the header: expected 8 bytes, found 0"]);
    check("st_header_len_2pow63", &[file, "at most 16777216, found 9223372036854775808"]);
    check("st_header_len_past_eof", &[file, "end of the header: expected ", " bytes, found "]);
    check("st_truncated_header", &[file, "end of the header: expected ", " bytes, found "]);
    check(
        "st_truncated_data",
        &["tensor model.layers.0.self_attn.v_proj.weight: expected 7616 bytes of data, found 7564"],
    );
    check("st_header_not_json", &[file, "invalid JSON at line 1, column 2"]);
    check("st_header_not_utf8", &[file, "not UTF-8", "index 3"]);
    check("st_header_deep_json", &[file, "depth of nested JSON: expected at most 64, found 65"]);
    check(
        "st_overlapping_offsets",
        &["tensor model.embed_tokens.weight: expected data from offset 1152, where lm_head.weight ends"],
    );
    check(
        "st_offsets_reversed",
        &["tensor model.layers.0.input_layernorm.weight: expected 48 bytes", "offsets 2352 to 2304"],
    );
    check(
        "st_hole",
        &[
            "tensor model.layers.0.mlp.down_proj.weight: expected data from offset 2352",
            "found data from offset 2416",
        ],
    );
    check("st_size_mismatch", &[q, "expected ", " bytes for F32 of shape "]);
    check("st_shape_overflow", &[q, "size fits 64 bits"]);
    check("st_shape_float", &[file, "the number 16.5 instead of a whole number of at least 0"]);
    check("st_unknown_dtype", &[q, "expected F32, BF16 or F16, found F33"]);
    check("st_metadata_not_string", &[file, "instead of a string"]);
}

#[test]
fn damaged_indices_are_refused() {
    check("i_missing_shard", &["model-00001-of-00001.safetensors not found"]);
    check("i_path_traversal", &["index.json: ", "found \"../base_ok/model.safetensors\""]);
    check(
        "i_tensor_not_in_shard",
        &["model-00001-of-00001.safetensors: tensor model.layers.0.self_attn.q_proj.weight is missing"],
    );
    check("i_index_not_json", &["index.json: ", "text that is not JSON at line 1, column 1"]);
    check(
        "no_weights",
        &["model.safetensors not found", "model.safetensors.index.json does not exist either"],
    );
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let q = "tensor model.layers.0.self_attn.q_proj.weight";
    check("w_nan", &[q, " is NaN"]);
    check("w_missing_tensor", &[q, "is missing"]);
    check("w_missing_lm_head", &["tensor lm_head.weight is missing"]);
    check(
        "w_shape_transposed",
        &["tensor model.layers.0.mlp.down_proj.weight: expected shape [12, 20], found [20, 12]"],
    );
    check("w_vocab_rows", &["tensor model.embed_tokens.weight: expected shape [24, 12], found "]);
    check("w_dtype_i8", &[q, "expected F32, BF16 or F16, found I8"]);
    check("w_unexpected_tensor", &["tensor model.layers.7.self_attn.q_proj.weight is not part of the model"]);
    check("w_zero_size", &["expected no dimension of zero"]);
}

#[test]
fn a_config_that_is_not_json_is_refused() {
    check("c_missing", &["config.json not found"]);
    check("c_not_json", &["config.json: ", "line "]);
    check("c_not_utf8", &["config.json: not UTF-8"]);
    check("c_deep_json", &["config.json: depth of nested JSON: expected at most 64, found 65"]);
    check("c_eps_nan", &["config.json: ", "line "]);
}

#[test]
fn a_nan_is_loaded_where_it_is_allowed() {
    let options = LoadOptions { non_finite: NonFinite::Allow, ..LoadOptions::default() };
    let weights = load_weights(&RealFs, &dir("w_nan"), &options).unwrap();
    assert!(weights.tensors.iter().any(|tensor| tensor.data.iter().any(|x| x.is_nan())));
}
