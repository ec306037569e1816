//! Tells xtrain-tensor the commit it is built from. Never fails: without git or a repository the
//! commit is `unknown`.
use std::path::Path;
use std::process::Command;

/// The emulator's own sources.
const RUNTIME: [&str; 12] = [
    "api",
    "barrier",
    "check",
    "copy",
    "fiber",
    "instrumented",
    "memory",
    "shared",
    "tensor_core",
    "warp",
    "wgmma",
    "worker",
];

fn main() {
    println!("cargo::rerun-if-changed=../build.rs");
    println!("cargo::rustc-env=XTRAIN_COMMIT={}", commit().unwrap_or_else(|| "unknown".to_string()));
    println!("cargo::rustc-check-cfg=cfg(xtrain_emu)");
    println!("cargo::rerun-if-changed=../kernels");
    println!(
        "cargo::rustc-env=XTRAIN_EMULATOR=this build has no emulator: it needs the feature `emu` and a C++ compiler"
    );
    if std::env::var_os("CARGO_FEATURE_EMU").is_some() {
        emulator();
    }
}

/// Compiles the kernels for this processor; without a C++ compiler the build goes on without them.
fn emulator() {
    let dir = Path::new("../kernels/emu");
    let base = || {
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            .flag("-ffp-contract=off")
            .include("../kernels")
            .warnings(false);
        build.cargo_warnings(false);
        if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
            build.flag("-mfma").flag("-mavx2");
        }
        build
    };
    let mut plain = base();
    plain.file(dir.join("kernels.cpp")).define("XTEMU_LIST", "xtemu_plain");
    let mut checked = base();
    checked.file(dir.join("kernels.cpp")).define("XTEMU_LIST", "xtemu_checked");
    checked.flag("-g1").flag("-fsanitize=thread,alignment").flag("--param=tsan-instrument-func-entry-exit=0");
    let mut runtime = base();
    for part in RUNTIME {
        runtime.file(dir.join(part).with_extension("cpp"));
    }
    let libraries = [(plain, "xtemu_plain"), (checked, "xtemu_checked"), (runtime, "xtemu_runtime")];
    if libraries.iter().all(|(build, name)| build.try_compile(name).is_ok()) {
        println!("cargo::rustc-cfg=xtrain_emu");
    } else {
        println!("cargo::warning=no emulated GPU: the C++ compiler is missing or failed");
    }
}

/// The commit of the repository whose root is the workspace, and not of one that merely holds a copy.
fn commit() -> Option<String> {
    let root = Path::new("..").canonicalize().ok()?;
    let top = Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top != root {
        return None;
    }
    watch("HEAD");
    watch("logs/HEAD");
    watch("packed-refs");
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        watch(&branch);
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Runs this script again when a file of git's own changes. A file that is not there is left out:
/// cargo would take it for changed at every build.
fn watch(name: &str) {
    if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// The first line that git prints, or nothing where it fails.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_string())
}
