//! Where nvcc is, and what it is called with.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::refuse;

/// The flags of every compilation: fast, but no multiplication and addition are contracted, so that the
/// order of docs/numerics.md is the order of the machine code.
pub(crate) const FLAGS: [&str; 3] = ["-std=c++17", "-O3", "-fmad=false"];

/// The architectures of the image: Ampere to Blackwell.
pub(crate) const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90a", "100", "120"];

/// The architecture of the PTX, which drivers compile for GPUs that are none of the above.
pub(crate) const PTX: &str = "80";

/// A compiler for GPUs.
pub(crate) struct Nvcc {
    path: PathBuf,
}

impl Nvcc {
    /// `XTRAIN_NVCC` if it is set (`off`: none), else the first of `CUDA_HOME`, `CUDA_PATH`, `PATH` and
    /// /usr/local/cuda that has one that runs.
    pub(crate) fn find() -> Option<Nvcc> {
        for variable in ["XTRAIN_NVCC", "CUDA_HOME", "CUDA_PATH", "PATH"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        if let Some(path) = env::var_os("XTRAIN_NVCC").filter(|path| !path.is_empty()) {
            if path == "off" {
                return None;
            }
            let found = runs(Path::new(&path));
            return Some(
                found.unwrap_or_else(|| refuse(&format!("XTRAIN_NVCC={} does not run", path.display()))),
            );
        }
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
        let homes = homes.map(|home| Path::new(&home).join("bin"));
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = homes.chain(env::split_paths(&path)).chain([PathBuf::from("/usr/local/cuda/bin")]);
        directories.map(|directory| directory.join("nvcc")).find_map(|path| runs(&path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All kernels compiled with `more` flags into `out`.
    pub(crate) fn compile(&self, more: &[String], out: &Path) {
        let mut command = Command::new(&self.path);
        command.args(FLAGS).args(more).arg("-o").arg(out).arg("../kernels/all.cu");
        let output =
            command.output().unwrap_or_else(|error| refuse(&format!("{}: {error}", self.path.display())));
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            refuse(&format!("{} fails (XTRAIN_NVCC=off builds without it):\n{text}", self.path.display()));
        }
    }
}

/// The compiler at `path`, if it runs. It finds its own parts from where it really is, not from a link.
fn runs(path: &Path) -> Option<Nvcc> {
    let path = path.canonicalize().ok()?;
    let output = Command::new(&path).arg("--version").output().ok()?;
    output.status.success().then_some(Nvcc { path })
}
