//! Every variant of [`Error`], from a file or a flag that is wrong in one way.
use std::path::PathBuf;

use super::*;
use xtrain_tensor::testing::named_cases::{check, variants};

fn refused(layer: Layer) -> Error {
    RunConfig::load(&[layer]).unwrap_err()
}

fn set(text: &str) -> Error {
    refused(Layer::Set(text.to_string()))
}

/// The refusal of a file of this text.
fn file(name: &str, text: &str) -> Error {
    let path = std::env::temp_dir().join(format!("xtrain-variant-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let error = refused(Layer::File(path.clone()));
    std::fs::remove_file(path).unwrap();
    error
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(Error: Read Syntax UnknownKey WrongType UnknownName Invalid);
    let nowhere = refused(Layer::File(PathBuf::from("nowhere/run.toml")));
    check(
        &variants,
        &[
            ("no file", nowhere, &["nowhere/run.toml: "]),
            ("no TOML", file("syntax", "[train]\nsteps = \n"), &["-syntax.toml:2: "]),
            ("a misspelt key", set("train.stepps=3"), &["--set train.stepps=3", "`train.steps`"]),
            (
                "a misspelt key in a file",
                file("key", "[model]\ndimm = 3\n"),
                &["-key.toml:2: ", "`model.dim`"],
            ),
            ("a text for a number", set("train.steps=many"), &["`train.steps` expects ", "many"]),
            (
                "a misspelt name",
                set("train.dtype=bf61"),
                &["`train.dtype` is one of ", "the nearest is \"bf16\""],
            ),
            ("no steps", set("train.steps=0"), &["`train.steps` = 0: expected "]),
        ],
    );
}
