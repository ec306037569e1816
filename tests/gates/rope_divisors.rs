//! Divisors of RoPE frequencies that a converter computed in f32: runs and GGUF files keep them bit for bit.
use std::path::Path;
use std::sync::Arc;

use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::export::{self, ExportSource};
use xtrain::model::gguf::{Quant, read_header};
use xtrain::model::store::{self, LoadedModel};
use xtrain::tensor::testing::compare_bits;
use xtrain::tensor::{Device, Dtype, RopeScaling, RopeTable};

use crate::cli::{Scratch, ok, text, xtrain};
use crate::commands::parsed;
use crate::fixtures::path;

const TENSOR: &str = "rope_freqs.weight";

/// A GGUF file as other converters write it: the blended divisors are two units in the last place above the nearest
/// f32. Also returns the divisors.
fn converted(scratch: &Scratch) -> (String, Vec<f32>) {
    let mut bytes = std::fs::read(path("gguf/llama3_rope.Q4_0.gguf")).unwrap();
    let header = read_header(Path::new("base"), &bytes[..], bytes.len() as u64).unwrap();
    let entry = header.tensors.iter().find(|entry| entry.name == TENSOR).unwrap();
    let data = &mut bytes[entry.offset as usize..][..4 * entry.shape[0]];
    let mut divisors = Vec::new();
    for element in data.as_chunks_mut().0 {
        let exact = f32::from_le_bytes(*element);
        let blended = exact != 1.0 && exact != 8.0;
        divisors.push(if blended { f32::from_bits(exact.to_bits() + 2) } else { exact });
        *element = divisors.last().unwrap().to_le_bytes();
    }
    assert!(divisors.iter().any(|&x| x != 1.0 && x != 8.0), "{divisors:?}");
    let file = scratch.0.join("converted.gguf");
    std::fs::write(&file, bytes).unwrap();
    (file.display().to_string(), divisors)
}

fn open(path: &Path) -> Result<LoadedModel, String> {
    store::open(path, Dtype::F32, &Device::cpu()).map_err(|e| e.to_string())
}

/// Reads the file, saves it as a run, exports the run as GGUF, and compares frequencies and divisors. Returns the
/// number of compared values.
pub(crate) fn over() -> Result<usize, String> {
    let failed = |e: String| format!("gate divisors, seed 0: {e}");
    let scratch = Scratch::new("divisors");
    let (file, want) = converted(&scratch);
    let first = open(Path::new(&file)).map_err(failed)?;
    let source = ExportSource { model: &first.model, tokenizer: first.tokenizer.as_ref(), eos: &first.eos };
    let run = scratch.0.join("run");
    let saved = CheckpointDir::open(Arc::new(RealFs), &run, 2)
        .map_err(|e| failed(e.to_string()))
        .and_then(|dir| store::save_model(&dir, &source, 0).map_err(|e| failed(e.to_string())))?;
    let again = open(&saved.path).map_err(failed)?;
    let source = ExportSource { model: &again.model, ..source };
    let exported = scratch.0.join("exported.gguf");
    export::gguf(&exported, &source, Quant::F32).map_err(|e| failed(e.to_string()))?;
    let last = open(&exported).map_err(failed)?;
    let mut compared = 0;
    for (name, loaded) in [("the file", &first), ("the run", &again), ("the exported file", &last)] {
        let cfg = loaded.model.config();
        let table = |rule| RopeTable::scaled(cfg.rope_theta, rule, cfg.head_dim, 1).unwrap();
        let (plain, scaled) = (table(&RopeScaling::Default), table(&cfg.rope_scaling));
        let (plain, scaled) = (plain.inverse_frequencies(), scaled.inverse_frequencies());
        let expected: Vec<f64> = plain.iter().zip(&want).map(|(inv, &d)| inv / f64::from(d)).collect();
        let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(&expected) != bits(scaled) {
            return Err(failed(format!("{name}: got frequencies {scaled:?}, want {expected:?}")));
        }
        compared += expected.len();
    }
    let bytes = std::fs::read(&exported).unwrap();
    let header = read_header(&exported, &bytes[..], bytes.len() as u64).map_err(|e| failed(e.to_string()))?;
    let entry = header.tensors.iter().find(|entry| entry.name == TENSOR).unwrap();
    let got = entry.read(&exported, &mut std::io::Cursor::new(&bytes)).unwrap().data;
    compare_bits(&got, &want).map_err(|e| failed(format!("{TENSOR}: {e}")))?;
    Ok(compared + want.len())
}

#[test]
fn divisors_of_another_converter_are_kept_bit_for_bit() {
    let compared = over().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(compared, 4 * 8);
}

#[test]
fn every_command_accepts_divisors_of_another_converter() {
    let scratch = Scratch::new("divisors-commands");
    let (file, _) = converted(&scratch);
    let config = parsed(&ok(&scratch.0, &["inspect", &file, "--json"]))["config"].clone();
    assert_eq!(config["rope_parameters"]["rope_type"], "divisors");
    ok(&scratch.0, &["import", &file, "run"]);
    ok(&scratch.0, &["generate", "run", "--tokens", "1,2,3", "--max-new", "2", "--json"]);
    let output = xtrain(&scratch.0, &["export", "run", "hf"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.starts_with("note: ") && errors.contains("llama3 rule"), "{errors}");
    let config = parsed(&std::fs::read_to_string(scratch.0.join("hf/config.json")).unwrap());
    let rope = &config["rope_parameters"];
    assert_eq!((&rope["rope_type"], &rope["factor"]), (&"llama3".into(), &8.0.into()));
    assert_eq!(rope["original_max_position_embeddings"], 64);
    scratch.file("text.txt", &"a text to train on, long enough for a few windows of it. ".repeat(30));
    let train =
        ["train", "--init", &file, "--data", "text.txt", "--run", "more", "--set", "train.context=16"];
    let output = xtrain(&scratch.0, &[&train[..], &["--set", "train.steps=1"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let cfg = |run: &str| open(&scratch.0.join(run)).unwrap().model.config().clone();
    assert_eq!(cfg("more"), cfg("run"));
}
