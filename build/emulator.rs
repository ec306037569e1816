//! Builds the emulator: the kernels compiled for the CPU, twice (plain and checked), and their runtime. Sets
//! `cfg(xtrain_emu)` if the build has it; `XTRAIN_EMULATOR` is `built` or the reason why not.
use std::env::var;
use std::path::Path;
use std::process::Command;

use crate::fail;

/// Sources of the runtime.
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

/// Builds the emulator if the feature `emu` is enabled and a C++ compiler works.
pub(crate) fn embed() {
    println!("cargo::rustc-check-cfg=cfg(xtrain_emu)");
    let missing = missing();
    if missing.is_none() {
        compile();
        println!("cargo::rustc-cfg=xtrain_emu");
    }
    println!("cargo::rustc-env=XTRAIN_EMULATOR={}", missing.as_deref().unwrap_or("built"));
}

/// The reason why the emulator cannot be built. `None`: it can.
fn missing() -> Option<String> {
    if var("CARGO_FEATURE_EMU").is_err() {
        return Some("this build has no emulator: it was built without the feature `emu`".into());
    }
    let reason = if var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        "the emulator requires Linux".to_string()
    } else {
        let works =
            |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success());
        match base().try_get_compiler() {
            Ok(compiler) if works(compiler.path()) => return None,
            Ok(compiler) => format!("the C++ compiler {} does not run", compiler.path().display()),
            Err(error) => format!("no C++ compiler: {error}"),
        }
    };
    let reason = format!("this build has no emulator: {}", reason.replace('\n', " "));
    println!("cargo::warning={reason}; tests do not run the kernels");
    Some(reason)
}

/// Common compiler flags. One rounding per operation: an explicit `fmaf` compiles to an fma instruction, and nothing
/// else is contracted.
fn base() -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).flag("-ffp-contract=off").include("../kernels");
    build.warnings(false).cargo_warnings(false);
    if var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build.flag("-mfma").flag("-mavx2");
    }
    build
}

fn compile() {
    let [mut plain, mut checked, mut runtime] = [base(), base(), base()];
    // XTEMU_LIST is the name of the C function that returns the list of the kernels
    plain.file("../kernels/emu/kernels.cpp").define("XTEMU_LIST", "xtemu_plain");
    checked.file("../kernels/emu/kernels.cpp").define("XTEMU_LIST", "xtemu_checked");
    checked.flag("-fsanitize=thread,alignment").flag("-g1");
    checked.flag_if_supported("--param=tsan-instrument-func-entry-exit=0");
    runtime.files(RUNTIME.map(|part| format!("../kernels/emu/{part}.cpp")));
    if var("CARGO_FEATURE_FAULTS").is_ok() {
        plain.define("XTEMU_FAULTS", None);
        checked.define("XTEMU_FAULTS", None);
    }
    for (build, name) in [(plain, "xtemu_plain"), (checked, "xtemu_checked"), (runtime, "xtemu_runtime")] {
        if let Err(error) = build.try_compile(name) {
            fail(&format!("the emulator does not compile: {error}"));
        }
    }
}
