//! Builds the GPU kernel image: `kernels.image` in `OUT_DIR` (empty if the build has no kernels) and `XTRAIN_IMAGE`,
//! a description of its contents or the reason why it is empty.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec;

use crate::fail;
use crate::nvcc::{FLAGS, Nvcc, Search, VARIABLES, architectures, code_of, writes_ptx};

/// Architecture of the PTX, which the driver compiles for all other GPUs.
pub(crate) const PTX: &str = "80";

/// The checked-in PTX for builds without nvcc: one line with the hash of its sources, then the deflated text.
const PREBUILT: &str = "../kernels/prebuilt/xtrain.ptx.deflate";

/// Builds the image with nvcc. If no usable nvcc is found or it fails, embeds the checked-in PTX, provided that it
/// was built from these sources, and prints a warning with the reason. `XTRAIN_WRITE_PTX=1` regenerates the
/// checked-in PTX.
///
/// Cargo runs the script again if a candidate for nvcc changes. It does not notice an nvcc that is installed later, unless
/// an environment variable changes, such as `XTRAIN_NVCC`: watching a path that does not exist would build everything at
/// each call.
pub(crate) fn embed() {
    VARIABLES.iter().for_each(|variable| println!("cargo::rerun-if-env-changed={variable}"));
    println!("cargo::rerun-if-env-changed=XTRAIN_WRITE_PTX");
    println!("cargo::rerun-if-env-changed=XTRAIN_CUDA_ARCHS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kernels.image");
    let Search { nvcc, mut rejected, candidates } = Nvcc::find(|name| env::var_os(name));
    candidates.iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
    if writes_ptx(env::var_os("XTRAIN_WRITE_PTX")) {
        let Some(nvcc) = &nvcc else {
            fail(&format!("XTRAIN_WRITE_PTX requires nvcc: set CUDA_HOME {}", rejected.join("; ")))
        };
        write_ptx(nvcc, &out);
    }
    let (image, description) = match nvcc.as_ref().map(|nvcc| compile(nvcc, &out)) {
        Some(Ok(description)) => match fs::read(&out) {
            Ok(image) => (image, description),
            Err(error) => fail(&format!("{}: {error}", out.display())),
        },
        Some(Err(reason)) => {
            rejected.push(reason);
            prebuilt("working nvcc")
        }
        None => prebuilt("nvcc"),
    };
    for line in rejected.iter().flat_map(|reason| reason.lines()).take(12) {
        println!("cargo::warning=kernels for GPUs: {line}");
    }
    let description = if rejected.is_empty() {
        description
    } else {
        println!("cargo::warning=kernels for GPUs: {description}");
        let not_used: Vec<&str> = rejected.iter().filter_map(|reason| reason.lines().next()).collect();
        format!("{description} (not used: {})", not_used.join("; "))
    };
    if let Err(error) = fs::write(&out, image) {
        fail(&format!("{}: {error}", out.display()));
    }
    println!("cargo::rustc-env=XTRAIN_IMAGE={description}");
}

/// Compiles machine code for all architectures, and PTX for other GPUs. Returns a description.
fn compile(nvcc: &Nvcc, out: &Path) -> Result<String, String> {
    let requested = env::var("XTRAIN_CUDA_ARCHS").ok();
    let architectures = architectures(requested.as_deref());
    let mut flags = vec!["-fatbin".to_string(), "-t0".to_string()];
    flags.extend(code_of(&architectures, PTX));
    nvcc.compile(&flags, out)?;
    let names: Vec<String> = architectures.iter().map(|a| format!("sm_{a}")).collect();
    Ok(format!("{} and PTX for {PTX}, by {}", names.join(" "), nvcc.path.display()))
}

/// The checked-in PTX if it was built from these sources. `missing` names the tool that was not found.
fn prebuilt(missing: &str) -> (Vec<u8>, String) {
    let none = |reason: &str| (Vec::new(), format!("none: no {missing}, and the checked-in PTX {reason}"));
    let Ok(file) = fs::read(PREBUILT) else { return none("is missing") };
    let Some(deflated) = file.strip_prefix(sources().as_bytes()) else {
        return none("was built from other sources");
    };
    match decompress_to_vec(deflated) {
        Ok(mut ptx) => {
            ptx.push(0); // the driver expects a terminated string
            (ptx, format!("the checked-in PTX for {PTX}, which the driver compiles"))
        }
        Err(_) => none("is damaged"),
    }
}

/// Regenerates the checked-in PTX.
fn write_ptx(nvcc: &Nvcc, out: &Path) {
    let compiled = nvcc.compile(&["-ptx".to_string(), format!("-arch=compute_{PTX}")], out);
    compiled.unwrap_or_else(|reason| fail(&reason));
    let path = Path::new(PREBUILT);
    let written = fs::create_dir_all(path.parent().expect("the path has a parent directory"))
        .and_then(|()| fs::read(out))
        .map(|ptx| [sources().into_bytes(), compress_to_vec(&ptx, 10)].concat())
        .and_then(|file| fs::write(path, file));
    if let Err(error) = written {
        fail(&format!("{PREBUILT}: {error}"));
    }
}

/// `sources 0123456789abcdef`: FNV-1a over the flags of nvcc and the names and contents of all kernel sources.
fn sources() -> String {
    let entries = fs::read_dir("../kernels").map(|entries| entries.flatten().map(|entry| entry.path()));
    let is_source = |path: &PathBuf| path.extension().is_some_and(|e| e == "cu" || e == "cuh");
    let mut sources: Vec<PathBuf> =
        entries.map(|paths| paths.filter(is_source).collect()).unwrap_or_default();
    sources.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut update = |bytes: &[u8]| {
        bytes.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    };
    FLAGS.iter().chain([&PTX]).for_each(|flag| update(flag.as_bytes()));
    for path in sources {
        update(path.file_name().unwrap_or_default().as_encoded_bytes());
        update(&fs::read(&path).unwrap_or_default());
    }
    format!("sources {hash:016x}\n")
}
