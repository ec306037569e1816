//! Builds the emulator: the kernels compiled for the CPU, twice (plain and checked), and their runtime. Sets
//! `cfg(xtrain_emu)` if the build has it; `XTRAIN_EMULATOR` is `built` or the reason why not.
use std::env::var;
use std::path::Path;
use std::process::Command;

use crate::fail;

/// Sources of the runtime.
const RUNTIME: [&str; 14] = [
    "api",
    "barrier",
    "bulk_copy",
    "check",
    "copy",
    "fiber",
    "instrumented",
    "mbarrier",
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
        if !is_clippy() {
            compile();
        }
        println!("cargo::rustc-cfg=xtrain_emu");
    }
    println!("cargo::rustc-env=XTRAIN_EMULATOR={}", missing.as_deref().unwrap_or("built"));
    // for the build script of the root crate (the key `links` of the manifest)
    println!("cargo::metadata=EMULATOR={}", missing.is_none());
    if missing.is_some() {
        record_skipped_gates();
    }
}

/// Writes `skipped_gates.rs`: a documentation test that is ignored and whose name says that no kernel ran.
/// Documentation tests run last, and those of this crate after all others, so the name is in the last lines of the test
/// command.
fn record_skipped_gates() {
    let name = match var("CARGO_FEATURE_EMU") {
        Ok(_) => format!(
            "no_kernel_ran_and_{}_gates_were_skipped_without_a_compiler_for_the_emulator",
            skipped_gates()
        ),
        Err(_) => "no_kernel_ran_without_the_feature_emu".to_string(),
    };
    let module = format!("/// ```ignore\n/// ```\npub mod {name} {{}}\n");
    let path = Path::new(&var("OUT_DIR").expect("cargo sets OUT_DIR")).join("skipped_gates.rs");
    if let Err(error) = std::fs::write(&path, module) {
        fail(&format!("{}: {error}", path.display()));
    }
}

/// The number of tests in the workspace that need the emulator: the ignored ones, and all of a file that is compiled
/// with the emulator only.
fn skipped_gates() -> usize {
    let count = |text: &str| match text.contains("\n#![cfg(xtrain_emu)]") {
        true => text.matches("#[test]").count(),
        false => text.matches("not(xtrain_emu), ignore").count(),
    };
    let (mut skipped, mut paths) = (0, vec!["src".into(), "../tests/gates".into()]);
    while let Some(path) = paths.pop() {
        let path: std::path::PathBuf = path;
        if let Ok(entries) = std::fs::read_dir(&path) {
            paths.extend(entries.flatten().map(|entry| entry.path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            println!("cargo::rerun-if-changed={}", path.display());
            skipped += std::fs::read_to_string(&path).map_or(0, |text| count(&text));
        }
    }
    skipped
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
        let reason = match base().try_get_compiler() {
            Ok(compiler) if works(compiler.path()) => return None,
            Ok(compiler) => format!("the C++ compiler {} does not run", compiler.path().display()),
            Err(error) => format!("no C++ compiler: {error}"),
        };
        // a compiler that is installed later changes one of these directories
        let directories = std::env::var_os("PATH").unwrap_or_default();
        for directory in std::env::split_paths(&directories).filter(|path| path.is_dir()) {
            println!("cargo::rerun-if-changed={}", directory.display());
        }
        reason
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

/// Whether clippy runs this build, which links nothing. Cargo keeps its results apart from those of other builds.
fn is_clippy() -> bool {
    println!("cargo::rerun-if-env-changed=RUSTC_WORKSPACE_WRAPPER");
    var("RUSTC_WORKSPACE_WRAPPER")
        .is_ok_and(|wrapper| Path::new(&wrapper).file_stem().is_some_and(|name| name == "clippy-driver"))
}

fn compile() {
    let [mut plain, mut checked, mut runtime] = [base(), base(), base()];
    // XTEMU_LIST is the name of the C function that returns the list of the kernels
    plain.file("../kernels/emu/kernels.cpp").define("XTEMU_LIST", "xtemu_plain");
    checked.file("../kernels/emu/kernels.cpp").define("XTEMU_LIST", "xtemu_checked");
    // compiles in half of the time and is not slower: the checks take most of its time
    checked.opt_level(1).flag("-fsanitize=thread,alignment").flag("-g1");
    checked.flag_if_supported("--param=tsan-instrument-func-entry-exit=0");
    runtime.files(RUNTIME.map(|part| format!("../kernels/emu/{part}.cpp")));
    println!("cargo::rerun-if-env-changed=XTRAIN_KERNEL_COVERAGE");
    let coverage = var("XTRAIN_KERNEL_COVERAGE").is_ok_and(|value| value == "1");
    if coverage {
        // counts the branches that kernels take (scripts/kernel_coverage.py); without optimization, each is one of the
        // source
        plain.opt_level(0).flag("--coverage").flag("-fprofile-update=atomic").flag("-fno-exceptions");
        checked.opt_level(0); // not used
    }
    if var("CARGO_FEATURE_FAULTS").is_ok() {
        plain.define("XTEMU_FAULTS", None);
        checked.define("XTEMU_FAULTS", None);
    }
    for (build, name) in [(plain, "xtemu_plain"), (checked, "xtemu_checked"), (runtime, "xtemu_runtime")] {
        if let Err(error) = build.try_compile(name) {
            fail(&format!("the emulator does not compile: {error}"));
        }
    }
    if coverage {
        println!("cargo::rustc-link-lib=gcov");
    }
}
