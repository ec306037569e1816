//! Every variant of [`CheckpointError`], each from a file with one defect.
use std::io::ErrorKind;

use super::fixtures::load_fixture;
use super::refusals::{forged, forged_manifest};
use super::*;
use crate::gguf;
use crate::store::StoreError;
use xtrain_tensor::testing::named_cases::{check, variants};

/// The error for a damaged directory of tests/data/corrupt.
fn fixture(name: &str) -> CheckpointError {
    load_fixture(name).expect_err(name)
}

/// The error for a damaged GGUF file.
fn gguf_fixture(name: &str) -> CheckpointError {
    let corrupt = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/corrupt");
    match gguf::read(&corrupt.join(name).join("model.gguf"), &NamedTensor::begin).expect_err(name) {
        StoreError::Checkpoint(error) => error,
        other => panic!("{name}: {other}"),
    }
}

/// The error for a checkpoint that `damage` has modified. `damage` gets its file system and path.
fn damaged(damage: impl FnOnce(&SimulatedFs, &Path)) -> CheckpointError {
    let (fs, dir) = saved(&Sample::small(1, 0));
    damage(&fs, &dir);
    load(&fs, &dir, &LoadOptions::default()).unwrap_err()
}

fn broken_disk() -> CheckpointError {
    damaged(|fs, _| fs.inject(Some(Injected::Once(fs.calls() + 1, ErrorKind::Other))))
}

fn flipped_bit() -> CheckpointError {
    damaged(|fs, dir| {
        let flip = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
        fs.damage(&dir.join("model.safetensors"), flip).unwrap();
    })
}

fn directory_for_a_file() -> CheckpointError {
    damaged(|fs, dir| {
        fs.remove_file(&dir.join("config.json")).unwrap();
        fs.create_dir(&dir.join("config.json")).unwrap();
    })
}

fn long_name() -> CheckpointError {
    let entry = r#"{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#;
    let text = format!(r#"{{"{}":{entry}}}"#, "x".repeat(513));
    forged("model.safetensors", |bytes| {
        *bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    })
}

fn other_head() -> CheckpointError {
    let (fs, dir) = (SimulatedFs::default(), Path::new("m"));
    let (source, path) = saved(&Sample::small(1, 0));
    let weights = bytes(&source, &path.join("model.safetensors"));
    fs.create_dir(dir).unwrap();
    fs.create(&dir.join("config.json")).unwrap().write(br#"{"tie_word_embeddings": true}"#).unwrap();
    fs.create(&dir.join("model.safetensors")).unwrap().write(&weights).unwrap();
    load_weights(&fs, dir, &LoadOptions::default()).unwrap_err()
}

fn second_writer() -> CheckpointError {
    let fs = SimulatedFs::default();
    let _first = opened(&fs);
    CheckpointDir::open(Arc::new(fs.clone()), run(), 2).err().unwrap()
}

fn nan_to_save() -> CheckpointError {
    let mut sample = Sample::small(1, 0);
    sample.model[1].2[3] = f32::NAN;
    sample.with(|snapshot| opened(&SimulatedFs::default()).save(snapshot)).unwrap_err()
}

fn run_of_damaged_checkpoints() -> CheckpointError {
    let (fs, dir) = saved(&Sample::small(1, 0));
    fs.damage(&dir.join("config.json"), Vec::clear).unwrap();
    newest(&fs).unwrap_err()
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(CheckpointError:
        Io Locked Missing NotAFile Limit Length Checksum Malformed Version Duplicate Entry Field Shape MissingTensor
        UnexpectedTensor TiedHead NotFinite OutsideDirectory Argument NoneGood);
    let step = "run/checkpoints/step_000001/";
    let q = "tensor model.layers.0.self_attn.q_proj.weight";
    let file = |name: &str| format!("{step}{name}: ");
    let (weights, manifest) = (file("model.safetensors"), file("manifest.json"));
    let hole = "st_hole/model.safetensors: tensor model.layers.0.mlp.down_proj.weight";
    let transposed = "w_shape_transposed/model.safetensors: tensor model.layers.0.mlp.down_proj.weight";
    check(
        &variants,
        &[
            ("a disk that fails", broken_disk(), &["cannot open", step, "manifest.json: "]),
            ("a second writer", second_writer(), &["run/lock is held by another process"]),
            ("no shard", fixture("i_missing_shard"), &["model-00001-of-00001.safetensors not found"]),
            ("no file at all", fixture("c_missing"), &["c_missing/config.json not found"]),
            ("a directory for a file", directory_for_a_file(), &[step, "config.json is not a regular file"]),
            (
                "a name of 513 bytes",
                long_name(),
                &[&weights, "bytes of a tensor's name: expected at most 512"],
            ),
            (
                "a length of 2^63",
                fixture("st_header_len_2pow63"),
                &["model.safetensors: length of the header in the first 8 bytes"],
            ),
            ("an empty file", fixture("st_empty_file"), &["st_empty_file/model.safetensors: ", "found 0"]),
            (
                "a GGUF file cut",
                gguf_fixture("g_truncated_header"),
                &["model.gguf: ", "truncated: expected "],
            ),
            ("a flipped bit", flipped_bit(), &[&weights, "tensor lm_head.weight: expected crc32c "]),
            (
                "invalid JSON",
                fixture("c_not_json"),
                &["c_not_json/config.json: not the expected JSON", "line "],
            ),
            ("invalid JSON in a header", fixture("st_header_not_json"), &["model.safetensors: ", "column 2"]),
            (
                "a later manifest",
                forged_manifest(|m| m.format_version = 2),
                &[&manifest, "version 1, found 2"],
            ),
            ("a later GGUF", gguf_fixture("g_version_99"), &["g_version_99/model.gguf: ", "found 99"]),
            ("a tensor twice", gguf_fixture("g_duplicate_tensor"), &["model.gguf: ", " occurs twice"]),
            ("a hole", fixture("st_hole"), &[hole, "expected data from offset 2352"]),
            ("an unknown type", fixture("st_unknown_dtype"), &[q, ": expected F32, BF16 or F16, found F33"]),
            ("another magic", gguf_fixture("g_bad_magic"), &["g_bad_magic/model.gguf: magic: expected GGUF"]),
            (
                "no heads",
                gguf_fixture("g_heads_zero"),
                &["model.gguf: ", "attention.head_count: expected at least 1"],
            ),
            ("a transposed matrix", fixture("w_shape_transposed"), &[transposed, "expected shape [12, 20]"]),
            (
                "no head",
                fixture("w_missing_lm_head"),
                &["model.safetensors: tensor lm_head.weight is missing"],
            ),
            (
                "one layer too many",
                fixture("w_unexpected_tensor"),
                &["model.safetensors: tensor model.layers.7."],
            ),
            (
                "a head that is not the table of its tied model",
                other_head(),
                &[
                    "m/model.safetensors: tensor lm_head.weight: expected the bytes of model.embed_tokens.weight",
                ],
            ),
            ("a NaN", fixture("w_nan"), &["w_nan/model.safetensors: ", q, "is NaN"]),
            ("a path as a shard name", fixture("i_path_traversal"), &["index.json: ", "\"../base_ok/model"]),
            (
                "a truncated control record",
                forged("trainer/control.bin", |b| b.truncate(9)),
                &[&file("trainer/control.bin")],
            ),
            (
                "another config",
                forged("config.json", |b| *b = b"{}".to_vec()),
                &[step, "config.json: sha-256: expected"],
            ),
            (
                "another step",
                forged_manifest(|m| m.step = 2),
                &["trainer/control.bin: step: expected 2, found 1"],
            ),
            ("a NaN to save", nan_to_save(), &["model tensors: ", "NaN at element 3 of lm_head.weight"]),
            (
                "no loadable checkpoint",
                run_of_damaged_checkpoints(),
                &["run: no checkpoint can be loaded; ", step],
            ),
        ],
    );
}
