//! Every variant of [`Error`], each from a file or a flag with one mistake.
use std::path::PathBuf;

use super::*;

/// The names of all variants.
const VARIANTS: [&str; 7] =
    ["Read", "NotText", "Syntax", "UnknownKey", "WrongType", "UnknownName", "Invalid"];

/// The name of the variant. The match has no wildcard: it does not compile if a variant is missing.
fn variant(error: &Error) -> &'static str {
    match error {
        Error::Read { .. } => "Read",
        Error::NotText(_) => "NotText",
        Error::Syntax { .. } => "Syntax",
        Error::UnknownKey { .. } => "UnknownKey",
        Error::WrongType { .. } => "WrongType",
        Error::UnknownName { .. } => "UnknownName",
        Error::Invalid { .. } => "Invalid",
    }
}

fn refused(layer: Layer) -> Error {
    RunConfig::load(&[layer]).unwrap_err()
}

fn set(text: &str) -> Error {
    refused(Layer::Set(text.to_string()))
}

/// The error of loading a file of that name with this text.
fn file(name: &str, text: impl AsRef<[u8]>) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    refused(Layer::File(path))
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let missing = refused(Layer::File(PathBuf::from("nowhere/run.toml")));
    let cases: [(&str, Error, &[&str]); 8] = [
        ("a missing file", missing, &["nowhere/run.toml: "]),
        (
            "another encoding",
            file("latin.toml", b"# \xe9"),
            &["latin.toml: expected UTF-8 text, found byte 0xe9 at byte 2"],
        ),
        ("invalid TOML", file("syntax.toml", "[train]\nsteps = \n"), &["syntax.toml:2: "]),
        ("a misspelled key", set("train.stepps=3"), &["--set train.stepps=3", "`train.steps`"]),
        (
            "a misspelled key in a file",
            file("key.toml", "[model]\ndimm = 3\n"),
            &["key.toml:2: ", "`model.dim`"],
        ),
        ("a string for a number", set("train.steps=many"), &["`train.steps`: expected ", "many"]),
        (
            "a misspelled name",
            set("train.dtype=bf61"),
            &["`train.dtype`: expected one of ", "did you mean \"bf16\"?"],
        ),
        ("zero steps", set("train.steps=0"), &["`train.steps` = 0: expected "]),
    ];
    for (name, error, parts) in &cases {
        let text = error.to_string();
        assert!(!text.contains('\n'), "{name}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{name}: {part:?} is not in: {text}");
        }
    }
    for name in VARIANTS {
        assert!(cases.iter().any(|(_, error, _)| variant(error) == name), "no case reaches {name}");
    }
}

#[test]
fn a_file_that_cannot_be_read_has_the_io_error_as_its_source() {
    use std::error::Error as _;
    let missing = refused(Layer::File(PathBuf::from("nowhere/run.toml")));
    assert!(missing.source().unwrap().is::<std::io::Error>());
    assert!(set("train.steps=0").source().is_none());
}

#[test]
fn an_invalid_value_has_the_place_in_the_file_that_sets_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    std::fs::write(&path, "[model]\nn_kv_heads = 3\nn_heads = 4\n\n[train]\nsteps = 0\n").unwrap();
    let error = |sets: &[&str]| {
        let sets = sets.iter().map(|set| Layer::Set(set.to_string()));
        let layers: Vec<Layer> = [Layer::File(path.clone())].into_iter().chain(sets).collect();
        RunConfig::load(&layers).unwrap_err().to_string()
    };
    let found = error(&["model.n_kv_heads=2"]);
    assert!(found.contains("run.toml:6: `train.steps` = 0: expected "), "{found}");
    let found = error(&["model.n_kv_heads=2", "train.steps=0"]);
    assert!(found.starts_with("`train.steps` = 0: expected "), "{found}");
    let found = error(&["train.steps=9"]);
    assert!(found.contains("run.toml:2: `model.n_kv_heads` = 3: expected "), "{found}");
    // a preset replaces the values of the file
    let found = error(&["train.steps=9", "model.preset=base-125m", "model.n_heads=5"]);
    assert!(found.starts_with('`'), "{found}");
}
