//! Build script of the root crate: sets `XTRAIN_COMMIT` to the commit that is built, or to `unknown` without git or a
//! repository, and `cfg(xtrain_emu)` if xtrain-tensor has the emulator.
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build/commit.rs");
    println!("cargo::rustc-env=XTRAIN_COMMIT={}", commit().unwrap_or_else(|| "unknown".to_string()));
    println!("cargo::rustc-check-cfg=cfg(xtrain_emu)");
    if std::env::var("DEP_XTRAIN_KERNELS_EMULATOR").is_ok_and(|built| built == "true") {
        println!("cargo::rustc-cfg=xtrain_emu");
    }
}

/// The commit of the repository whose root is the workspace. A repository that merely contains a copy does not count.
fn commit() -> Option<String> {
    let root = Path::new(".").canonicalize().ok()?;
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

/// Reruns this script when a git metadata file changes. Missing files are skipped, because cargo would treat them as
/// changed at every build.
fn watch(name: &str) {
    if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// The first line of git's output. `None`: git failed or printed nothing.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_string())
}
