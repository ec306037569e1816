//! The kernels for GPUs: `kernels.image` in `OUT_DIR`, empty where the build has none, and `XTRAIN_IMAGE`,
//! which says what it holds or why it holds nothing.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec;

use crate::nvcc::{ARCHITECTURES, FLAGS, Nvcc, PTX};
use crate::refuse;

/// The PTX in the repository, for builds without nvcc: a line with the hash of its sources, then the text,
/// deflated.
const PREBUILT: &str = "../kernels/prebuilt/xtrain.ptx.deflate";

/// Builds the image with nvcc; without it takes the checked-in PTX if that is of these sources.
/// `XTRAIN_WRITE_PTX=1` writes that PTX anew.
pub(crate) fn embed() {
    println!("cargo::rerun-if-env-changed=XTRAIN_WRITE_PTX");
    println!("cargo::rerun-if-env-changed=XTRAIN_CUDA_ARCHS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kernels.image");
    let nvcc = Nvcc::find();
    if env::var_os("XTRAIN_WRITE_PTX").is_some() {
        let Some(nvcc) = &nvcc else { refuse("XTRAIN_WRITE_PTX needs nvcc: set CUDA_HOME") };
        write_ptx(nvcc, &out);
    }
    let (image, says) = match nvcc {
        Some(nvcc) => {
            let says = compile(&nvcc, &out);
            (fs::read(&out).unwrap_or_default(), says)
        }
        None => prebuilt(),
    };
    if let Err(error) = fs::write(&out, image) {
        refuse(&format!("{}: {error}", out.display()));
    }
    println!("cargo::rustc-env=XTRAIN_IMAGE={says}");
}

/// Machine code for all architectures, and PTX for the others.
fn compile(nvcc: &Nvcc, out: &Path) -> String {
    let asked = env::var("XTRAIN_CUDA_ARCHS").ok();
    let architectures: Vec<&str> =
        asked.as_deref().map_or(ARCHITECTURES.to_vec(), |a| a.split(',').collect());
    let mut flags = vec!["-fatbin".to_string(), "-t0".to_string()];
    for a in &architectures {
        flags.push(format!("-gencode=arch=compute_{a},code=sm_{a}"));
    }
    flags.push(format!("-gencode=arch=compute_{PTX},code=compute_{PTX}"));
    nvcc.compile(&flags, out);
    let names: Vec<String> = architectures.iter().map(|a| format!("sm_{a}")).collect();
    format!("{} and PTX for {PTX}, by {}", names.join(" "), nvcc.path().display())
}

/// The checked-in PTX, if it is of these sources.
fn prebuilt() -> (Vec<u8>, String) {
    let none = |why: &str| (Vec::new(), format!("none: no nvcc, and the checked-in PTX {why}"));
    let Ok(file) = fs::read(PREBUILT) else { return none("is not there") };
    let Some(deflated) = file.strip_prefix(first_line().as_bytes()) else {
        return none("is of other sources");
    };
    match decompress_to_vec(deflated) {
        Ok(mut ptx) => {
            ptx.push(0); // as the driver wants it
            (ptx, format!("the checked-in PTX for {PTX}, which the driver compiles"))
        }
        Err(_) => none("is damaged"),
    }
}

/// `sources 0123456789abcdef`
fn first_line() -> String {
    format!("sources {:016x}\n", hash())
}

/// Writes the PTX that is checked in.
fn write_ptx(nvcc: &Nvcc, out: &Path) {
    nvcc.compile(&["-ptx".to_string(), format!("-arch=compute_{PTX}")], out);
    let path = Path::new(PREBUILT);
    let written = fs::create_dir_all(path.parent().expect("it lies in a folder"))
        .and_then(|()| fs::read(out))
        .map(|ptx| [first_line().into_bytes(), compress_to_vec(&ptx, 10)].concat())
        .and_then(|file| fs::write(path, file));
    if let Err(error) = written {
        refuse(&format!("{PREBUILT}: {error}"));
    }
}

/// FNV-1a over the flags of nvcc, and the names and contents of all that it reads.
fn hash() -> u64 {
    let entries = fs::read_dir("../kernels").map(|entries| entries.flatten().map(|entry| entry.path()));
    let is_source = |path: &PathBuf| path.extension().is_some_and(|e| e == "cu" || e == "cuh");
    let mut sources: Vec<PathBuf> =
        entries.map(|paths| paths.filter(is_source).collect()).unwrap_or_default();
    sources.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |bytes: &[u8]| {
        bytes.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    };
    FLAGS.iter().chain([&PTX]).for_each(|flag| take(flag.as_bytes()));
    for path in sources {
        take(path.file_name().unwrap_or_default().as_encoded_bytes());
        take(&fs::read(&path).unwrap_or_default());
    }
    hash
}
