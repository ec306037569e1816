//! The emulator: the kernels compiled for this processor, twice, and the runtime under them. `xtrain_emu` is
//! set where the build has it; `XTRAIN_EMULATOR` says why not.
use std::env::var;
use std::path::Path;
use std::process::Command;

use crate::refuse;

/// The runtime's sources.
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

/// Builds the emulator if the feature `emu` is on and there is a C++ compiler.
pub(crate) fn embed() {
    println!("cargo::rustc-check-cfg=cfg(xtrain_emu)");
    let reason = match missing() {
        None => {
            compile();
            println!("cargo::rustc-cfg=xtrain_emu");
            "built".to_string()
        }
        Some(reason) => reason,
    };
    println!("cargo::rustc-env=XTRAIN_EMULATOR={reason}");
}

/// What the build lacks, if anything.
fn missing() -> Option<String> {
    if var("CARGO_FEATURE_EMU").is_err() {
        return Some("this build has no emulator: it is without the feature `emu`".into());
    }
    let reason = if var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        "the emulator needs Linux".to_string()
    } else {
        let compiler = base().try_get_compiler();
        let works =
            |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success());
        match compiler {
            Ok(compiler) if works(compiler.path()) => return None,
            Ok(compiler) => format!("the C++ compiler {} does not run", compiler.path().display()),
            Err(error) => format!("no C++ compiler: {error}"),
        }
    };
    let reason = format!("this build has no emulator: {}", reason.replace('\n', " "));
    println!("cargo::warning={reason}; tests will not run the kernels");
    Some(reason)
}

/// What all parts are compiled with. One rounding an operation: `fmaf` is an instruction where it is
/// written, and nothing is contracted where it is not.
fn base() -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).flag("-ffp-contract=off").include("../kernels");
    build.warnings(false).cargo_warnings(false);
    if var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build.flag("-mfma").flag("-mavx2");
    }
    build
}

/// The kernels, whose list is the function `list`.
fn kernels(list: &str) -> cc::Build {
    let mut build = base();
    build.file("../kernels/emu/kernels.cpp").define("XTEMU_LIST", list);
    build
}

fn compile() {
    let mut checked = kernels("xtemu_checked");
    checked.flag("-fsanitize=thread,alignment").flag("-g1");
    checked.flag_if_supported("--param=tsan-instrument-func-entry-exit=0");
    let mut runtime = base();
    for part in RUNTIME {
        runtime.file(Path::new("../kernels/emu").join(part).with_extension("cpp"));
    }
    let parts =
        [(kernels("xtemu_plain"), "xtemu_plain"), (checked, "xtemu_checked"), (runtime, "xtemu_runtime")];
    for (build, name) in parts {
        if let Err(error) = build.try_compile(name) {
            refuse(&format!("the emulator does not compile: {error}"));
        }
    }
}
