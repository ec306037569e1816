//! Every variant of [`StoreError`], each from a directory with one defect.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::tempdir;
use xtrain_tensor::{Device, Dtype};

use super::*;
use crate::checkpoint::{CheckpointDir, RealFs};
use crate::config::Config;
use crate::export_source::ExportSource;
use crate::gguf;
use crate::gguf::Quant;
use crate::model::Model;
use crate::optim::OptimConfig;
use crate::schedule::Schedule;
use xtrain_tensor::testing::named_cases::{check, variants};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/qwen3_tied")
}

fn opened() -> LoadedModel {
    open(&fixture(), Dtype::F32, &Device::cpu()).unwrap()
}

/// The error for a copy of a model whose file `name` contains `text`.
fn with_file(name: &str, text: &str) -> StoreError {
    let dir = tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture().join(file), dir.path().join(file)).unwrap();
    }
    std::fs::write(dir.path().join(name), text).unwrap();
    open(dir.path(), Dtype::F32, &Device::cpu()).unwrap_err()
}

fn window_in_a_gguf_file() -> StoreError {
    let model = opened().model;
    let windows = vec![Some(4); model.config().n_layers];
    let model = Model::new(Config { windows, ..model.config().clone() }, model.params).unwrap();
    let subject = ExportSource { model: &model, tokenizer: None, eos: &[] };
    gguf::write(&mut Vec::new(), &subject, "out.gguf", Quant::F32).unwrap_err()
}

fn run_without_a_trainer() -> StoreError {
    let (run, model) = (tempdir().unwrap(), opened().model);
    let dir = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    let _ = save_model(&dir, &ExportSource { model: &model, tokenizer: None, eos: &[] }, 0).unwrap();
    resume(run.path(), Dtype::F32, &Device::cpu(), OptimConfig::default(), Schedule::constant(1e-3))
        .unwrap_err()
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(StoreError: Checkpoint Model Tokenizer NotATrainer);
    let nowhere = open(Path::new("nowhere"), Dtype::F32, &Device::cpu()).unwrap_err();
    check(
        &variants,
        &[
            ("no directory", nowhere, &["nowhere/config.json not found"]),
            (
                "a damaged tokenizer",
                with_file("tokenizer.json", "{"),
                &["/tokenizer.json: expected ", "line 1"],
            ),
            (
                "end-of-text ids that are not ids",
                with_file("generation_config.json", r#"{"eos_token_id": "</s>"}"#),
                &["/generation_config.json: ", "eos_token_id must be an id or a list of ids", "</s>"],
            ),
            (
                "a window in a GGUF file",
                window_in_a_gguf_file(),
                &["sliding_window must be none in a GGUF file"],
            ),
            (
                "no trainer",
                run_without_a_trainer(),
                &["checkpoints/step_000000: cannot be resumed: ", "without a trainer"],
            ),
        ],
    );
}

#[test]
fn wrapped_errors_are_sources() {
    use std::error::Error;
    let missing = open(Path::new("nowhere"), Dtype::F32, &Device::cpu()).unwrap_err();
    assert!(missing.source().is_some_and(|source| source.to_string().contains("nowhere")));
    let invalid = with_file("config.json", r#"{"model_type": "gpt2"}"#);
    let checkpoint = invalid.source().expect("the checkpoint error");
    let config = checkpoint.source().expect("the config error");
    assert!(config.to_string().contains("model_type"), "{config}");
}
