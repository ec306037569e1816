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

/// A kernel's name without dtypes, tiles and head sizes.
#[cfg(all(feature = "emu", xtrain_emu))]
fn operation(kernel: &str) -> &str {
    match kernel.rsplit_once('_') {
        Some((rest, last))
            if last == "f32" || last == "bf16" || last.trim_start_matches("hd").parse::<u32>().is_ok() =>
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
