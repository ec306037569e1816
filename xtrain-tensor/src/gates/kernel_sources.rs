//! Gate: rules for the source of every kernel.
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the kernels.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels")
}

/// A source, without its comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_kernel_tests_whether_it_is_emulated() {
    let mut seen = 0;
    for entry in fs::read_dir(kernels()).unwrap().chain(fs::read_dir(kernels().join("emu")).unwrap()) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !(name.ends_with(".cu") || name.ends_with(".cuh") && name != "xt.cuh") {
            continue;
        }
        seen += 1;
        let code = code(&fs::read_to_string(&path).unwrap());
        for word in ["#if", "#elif", "defined(", "__CUDA", "__NVCC", "__GNUC", "__clang", "XTEMU", "xtemu"] {
            assert!(!code.contains(word), "{name} contains {word}: only xt.cuh may depend on the compiler");
        }
    }
    assert!(seen > 3, "{seen} files in {:?}", kernels());
}

/// The names in `XT_FAULT(name)` in a source, without those of the macro itself.
#[cfg(feature = "faults")]
fn planted(code: &str) -> impl Iterator<Item = &str> {
    let names = code.split("XT_FAULT(").skip(1).filter_map(|rest| rest.split(')').next());
    names.filter(|name| *name != "name")
}

#[test]
#[cfg(feature = "faults")]
fn the_kernels_contain_every_fault_of_kernels_and_no_other() {
    let mut found: Vec<String> = Vec::new();
    for entry in fs::read_dir(kernels()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
            found.extend(planted(&code(&fs::read_to_string(&path).unwrap())).map(str::to_string));
        }
    }
    found.sort();
    found.dedup();
    let mut want: Vec<String> = crate::faults::Fault::IN_KERNELS.iter().map(|f| format!("{f:?}")).collect();
    want.sort();
    assert_eq!(found, want, "left: XT_FAULT(..) in kernels/; right: Fault::IN_KERNELS");
    assert!(found.len() >= 8, "{found:?}");
}

#[test]
fn kernels_for_a_gpu_contain_no_fault() {
    let text = fs::read_to_string(kernels().join("xt.cuh")).unwrap();
    let device = text.split("#else  // ---").next().unwrap();
    assert!(device.contains("#ifdef __CUDACC__") && !device.contains("cuda.hpp"));
    assert_eq!(device.matches("XT_FAULT").count(), 1, "{device}");
    assert!(device.contains("\n#define XT_FAULT(name) false\n"), "{device}");
}

/// A kernel's name without dtypes, tiles and head sizes.
#[cfg(all(feature = "emu", xtrain_emu))]
fn operation(kernel: &str) -> &str {
    match kernel.rsplit_once('_') {
        Some((rest, last))
            if last == "f32"
                || last == "bf16"
                || last == "wgmma" && rest.ends_with("_bf16")
                || last.trim_start_matches("hd").parse::<u32>().is_ok() =>
        {
            operation(rest)
        }
        _ => kernel,
    }
}

#[test]
#[cfg(all(feature = "emu", xtrain_emu))]
fn every_kernel_is_in_the_index() {
    let index = fs::read_to_string(kernels().join("README.md")).unwrap();
    let names = crate::gpu::kernel_names();
    assert!(names.contains(&"add_f32") && operation("linear_dw_f32_64") == "linear_dw");
    for name in names.into_iter().filter(|name| !name.starts_with("fault_")) {
        let listed = index.contains(&format!("`{}`", operation(name)));
        assert!(listed, "kernels/README.md does not list {name}");
    }
}
