//! The build's search for nvcc. An nvcc that is old, broken or prints no release is skipped with a reason.
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::Scratch;

// a build script's module cannot be imported: a path is the only way to test it
#[path = "../../build/nvcc.rs"]
mod build;

use build::{ARCHITECTURES, Nvcc, Search, VARIABLES, architectures, code_of, writes_ptx};

/// Writes a shell script `directory/bin/nvcc` with the body `body`.
fn fake(directory: &Path, body: &str) -> PathBuf {
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let path = bin.join("nvcc");
    // another process writes the file: a file that this process has open for writing, even in the fork of another
    // thread, cannot be executed
    let text = format!("#!/bin/sh\n{body}\n");
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", &text]);
    assert!(write.arg(&path).status().unwrap().success());
    path
}

/// A script body that prints the release as nvcc does.
fn version(release: &str) -> String {
    format!("echo 'Cuda compilation tools, release {release}, V{release}.88'")
}

/// Runs the search with these environment variables.
fn find(set: &[(&str, &Path)]) -> Search {
    Nvcc::find(|name| {
        assert!(VARIABLES.contains(&name), "{name} is not watched by cargo");
        set.iter().find(|(n, _)| *n == name).map(|(_, path)| OsString::from(path))
    })
}

#[test]
fn an_nvcc_that_is_old_or_broken_is_skipped_with_the_reason() {
    let scratch = Scratch::new("nvcc");
    let at = |name: &str| scratch.0.join(name);
    fake(&at("old"), &version("12.8"));
    fake(&at("broken"), "exit 1");
    fake(&at("silent"), "echo hello");
    let good = fake(&at("new"), &version("13.0"));
    let path = at("new").join("bin");
    for (home, why) in [
        ("old", "found CUDA 12.8, expected 13 or newer"),
        ("broken", "does not run (exit status: 1)"),
        ("silent", "does not print its release"),
    ] {
        let Search { nvcc, rejected, candidates } = find(&[("CUDA_HOME", &at(home)), ("PATH", &path)]);
        assert_eq!(candidates[..2], [at(home).join("bin/nvcc"), path.join("nvcc")], "watched by cargo");
        assert_eq!(nvcc.unwrap().path, good.canonicalize().unwrap(), "after {home}");
        assert_eq!(rejected, [format!("{}/bin/nvcc: {why}", at(home).display())]);
        // an explicitly named nvcc is the only candidate
        let named = at(home).join("bin/nvcc");
        let Search { nvcc, rejected, candidates } = find(&[("XTRAIN_NVCC", &named), ("PATH", &path)]);
        assert!(nvcc.is_none());
        assert_eq!(candidates, std::slice::from_ref(&named));
        assert_eq!(rejected, [format!("XTRAIN_NVCC={}: {why}", named.display())]);
    }
    let Search { nvcc, rejected, candidates } =
        find(&[("XTRAIN_NVCC", Path::new("off")), ("CUDA_HOME", &at("new"))]);
    assert!(nvcc.is_none() && rejected.is_empty() && candidates.is_empty());
    // a path that does not exist yet is watched, so that cargo builds again until it does
    let Search { rejected, candidates, .. } = find(&[("XTRAIN_NVCC", &at("nothing"))]);
    assert_eq!((rejected.len(), candidates), (1, vec![at("nothing")]), "{rejected:?}");
}

#[test]
fn the_architectures_of_the_image_are_those_that_are_named_or_all() {
    for (requested, want) in [
        (None, &ARCHITECTURES[..]),
        (Some(""), &ARCHITECTURES),
        (Some(" ,"), &ARCHITECTURES),
        (Some("90a"), &["90a"]),
        (Some("80,, 90a,"), &["80", "90a"]),
    ] {
        assert_eq!(architectures(requested), want, "{requested:?}");
    }
}

#[test]
fn the_checked_in_ptx_is_written_for_one_only() {
    let writes = |value: Option<&str>| writes_ptx(value.map(OsString::from));
    assert_eq!([None, Some(""), Some("0"), Some("1")].map(writes), [false, false, false, true]);
}

#[test]
fn the_error_of_a_failing_nvcc_is_reported() {
    let scratch = Scratch::new("nvcc-fails");
    let body = format!(
        "case $1 in --version) {};; *) echo 'all.cu(3): error: no' >&2; exit 2;; esac",
        version("13.1")
    );
    let path = fake(&scratch.0, &body);
    let nvcc = find(&[("XTRAIN_NVCC", &path)]).nvcc.unwrap();
    let why = nvcc.compile(&["-ptx".to_string()], &scratch.0.join("out")).unwrap_err();
    assert_eq!(why, format!("{} failed: all.cu(3): error: no", path.canonicalize().unwrap().display()));
    // an nvcc that prints nothing and writes nothing
    let path = fake(&scratch.0, &format!("case $1 in --version) {};; esac", version("13.0")));
    let nvcc = find(&[("XTRAIN_NVCC", &path)]).nvcc.unwrap();
    assert!(nvcc.compile(&[], &scratch.0.join("out")).is_err());
}

#[test]
fn ptx_that_is_the_same_for_several_architectures_is_compiled_once() {
    let want = [
        "-gencode=arch=compute_80,code=[sm_80,sm_86,sm_89,compute_80]",
        "-gencode=arch=compute_90a,code=[sm_90a]",
        "-gencode=arch=compute_100,code=[sm_100,sm_120]",
    ];
    assert_eq!(code_of(&ARCHITECTURES, "80"), want);
    let want = ["-gencode=arch=compute_90a,code=[sm_90a]", "-gencode=arch=compute_80,code=[compute_80]"];
    assert_eq!(code_of(&["90a"], "80"), want);
}

/// A build without nvcc embeds the checked-in PTX only if its hash is that of the sources.
#[test]
fn every_build_has_kernels() {
    let survey = xtrain_tensor::enumerate_gpus();
    assert!(survey.has_kernels, "{}", survey.kernels);
}
