//! The search for nvcc, as the build does it: one that is old, broken or silent is passed over with a reason.
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::Scratch;

#[path = "../../build/nvcc.rs"]
mod build;

use build::{Nvcc, Search, VARIABLES};

/// A program named nvcc in `directory/bin` that does this.
fn fake(directory: &Path, does: &str) -> PathBuf {
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let path = bin.join("nvcc");
    // written by another process: a program that this one has open, if only for a fork beside it, cannot be run
    let text = format!("#!/bin/sh\n{does}\n");
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", &text]);
    assert!(write.arg(&path).status().unwrap().success());
    path
}

fn version(release: &str) -> String {
    format!("echo 'Cuda compilation tools, release {release}, V{release}.88'")
}

fn find(set: &[(&str, &Path)]) -> Search {
    Nvcc::find(|name| {
        assert!(VARIABLES.contains(&name), "{name} is not watched by cargo");
        set.iter().find(|(n, _)| *n == name).map(|(_, path)| OsString::from(path))
    })
}

#[test]
fn an_nvcc_that_is_old_or_broken_is_passed_over_with_the_reason() {
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
        let Search { nvcc, rejected } = find(&[("CUDA_HOME", &at(home)), ("PATH", &path)]);
        assert_eq!(nvcc.unwrap().path(), good.canonicalize().unwrap(), "after {home}");
        assert_eq!(rejected, [format!("{}/bin/nvcc: {why}", at(home).display())]);
        // named by hand it is the only one
        let named = at(home).join("bin/nvcc");
        let Search { nvcc, rejected } = find(&[("XTRAIN_NVCC", &named), ("PATH", &path)]);
        assert!(nvcc.is_none());
        assert_eq!(rejected, [format!("XTRAIN_NVCC={}: {why}", named.display())]);
    }
    let Search { nvcc, rejected } = find(&[("XTRAIN_NVCC", Path::new("off")), ("CUDA_HOME", &at("new"))]);
    assert!(nvcc.is_none() && rejected.is_empty());
    let Search { rejected, .. } = find(&[("XTRAIN_NVCC", &at("nothing"))]);
    assert_eq!(rejected.len(), 1, "{rejected:?}");
}

#[test]
fn an_nvcc_that_fails_says_what_it_said() {
    let scratch = Scratch::new("nvcc-fails");
    let does = format!(
        "case $1 in --version) {};; *) echo 'all.cu(3): error: no' >&2; exit 2;; esac",
        version("13.1")
    );
    let path = fake(&scratch.0, &does);
    let nvcc = find(&[("XTRAIN_NVCC", &path)]).nvcc.unwrap();
    let why = nvcc.compile(&["-ptx".to_string()], &scratch.0.join("out")).unwrap_err();
    assert_eq!(why, format!("{} failed: all.cu(3): error: no", path.canonicalize().unwrap().display()));
    // one that says nothing and writes nothing
    let path = fake(&scratch.0, &format!("case $1 in --version) {};; esac", version("13.0")));
    let nvcc = find(&[("XTRAIN_NVCC", &path)]).nvcc.unwrap();
    assert!(nvcc.compile(&[], &scratch.0.join("out")).is_err());
}
