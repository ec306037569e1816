//! The kernels for GPUs: `kernels.image` in `OUT_DIR`, empty where the build has none, and `XTRAIN_IMAGE`,
//! which says what it holds or why it holds nothing.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec;

use crate::nvcc::{FLAGS, Nvcc, Search, VARIABLES};
use crate::refuse;

/// The architectures of the image: Ampere to Blackwell.
pub(crate) const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90a", "100", "120"];

/// The architecture of the PTX, which drivers compile for GPUs that are none of the above.
pub(crate) const PTX: &str = "80";

/// The PTX in the repository, for builds without nvcc: a line with the hash of its sources, then the text,
/// deflated.
const PREBUILT: &str = "../kernels/prebuilt/xtrain.ptx.deflate";

/// Builds the image with nvcc; without one that will do, or where it fails, takes the checked-in PTX if that is of
/// these sources, with a warning that says why. `XTRAIN_WRITE_PTX=1` writes that PTX anew, or fails.
pub(crate) fn embed() {
    VARIABLES.iter().for_each(|variable| println!("cargo::rerun-if-env-changed={variable}"));
    println!("cargo::rerun-if-env-changed=XTRAIN_WRITE_PTX");
    println!("cargo::rerun-if-env-changed=XTRAIN_CUDA_ARCHS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kernels.image");
    let Search { nvcc, mut refused } = Nvcc::find(|name| env::var_os(name));
    if env::var_os("XTRAIN_WRITE_PTX").is_some() {
        let Some(nvcc) = &nvcc else {
            refuse(&format!("XTRAIN_WRITE_PTX needs nvcc: set CUDA_HOME {}", refused.join("; ")))
        };
        write_ptx(nvcc, &out);
    }
    let compiled = nvcc.as_ref().map(|nvcc| compile(nvcc, &out));
    let (image, says) = match compiled {
        Some(Ok(says)) => (fs::read(&out).unwrap_or_default(), says),
        Some(Err(why)) => {
            refused.push(why);
            prebuilt("nvcc that works")
        }
        None => prebuilt("nvcc"),
    };
    for line in refused.iter().flat_map(|why| why.lines()).take(12) {
        println!("cargo::warning=kernels for GPUs: {line}");
    }
    if !refused.is_empty() {
        println!("cargo::warning=kernels for GPUs: {says}");
    }
    let first = |why: &String| why.lines().next().unwrap_or_default().to_string();
    let not_used = refused.iter().map(first).collect::<Vec<_>>().join("; ");
    let says = if not_used.is_empty() { says } else { format!("{says} (not used: {not_used})") };
    if let Err(error) = fs::write(&out, image) {
        refuse(&format!("{}: {error}", out.display()));
    }
    println!("cargo::rustc-env=XTRAIN_IMAGE={says}");
}

/// Machine code for all architectures, and PTX for the others.
fn compile(nvcc: &Nvcc, out: &Path) -> Result<String, String> {
    let asked = env::var("XTRAIN_CUDA_ARCHS").ok();
    let architectures: Vec<&str> =
        asked.as_deref().map_or(ARCHITECTURES.to_vec(), |a| a.split(',').collect());
    let mut flags = vec!["-fatbin".to_string(), "-t0".to_string()];
    for a in &architectures {
        flags.push(format!("-gencode=arch=compute_{a},code=sm_{a}"));
    }
    flags.push(format!("-gencode=arch=compute_{PTX},code=compute_{PTX}"));
    nvcc.compile(&flags, out)?;
    let names: Vec<String> = architectures.iter().map(|a| format!("sm_{a}")).collect();
    Ok(format!("{} and PTX for {PTX}, by {}", names.join(" "), nvcc.path().display()))
}

/// The checked-in PTX, if it is of these sources; `missing`: what there is none of.
fn prebuilt(missing: &str) -> (Vec<u8>, String) {
    let none = |why: &str| (Vec::new(), format!("none: no {missing}, and the checked-in PTX {why}"));
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
    let made = nvcc.compile(&["-ptx".to_string(), format!("-arch=compute_{PTX}")], out);
    made.unwrap_or_else(|why| refuse(&why));
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
