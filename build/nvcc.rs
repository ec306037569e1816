//! Where nvcc is, whether it will do, and what it is called with.
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The flags of every compilation: fast, but no multiplication and addition are contracted, so that the
/// order of docs/numerics.md is the order of the machine code.
pub(crate) const FLAGS: [&str; 3] = ["-std=c++17", "-O3", "-fmad=false"];

/// The variables that say where nvcc is.
pub(crate) const VARIABLES: [&str; 4] = ["XTRAIN_NVCC", "CUDA_HOME", "CUDA_PATH", "PATH"];

/// The first release that will do: older ones do not know the newer architectures.
const OLDEST: u32 = 13;

/// A compiler for GPUs.
pub(crate) struct Nvcc {
    path: PathBuf,
}

/// What was found.
pub(crate) struct Search {
    /// The first that will do.
    pub(crate) nvcc: Option<Nvcc>,
    /// Why others are not used, one a line.
    pub(crate) refused: Vec<String>,
}

impl Nvcc {
    /// `XTRAIN_NVCC` alone if it is set (`off`: none), else the first of `CUDA_HOME`, `CUDA_PATH`, `PATH` and
    /// /usr/local/cuda that has one that runs and is new enough. `variable` reads the environment.
    pub(crate) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Search {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        if let Some(path) = set("XTRAIN_NVCC") {
            if path == "off" {
                return Search { nvcc: None, refused: Vec::new() };
            }
            let (nvcc, refused) = match runs(Path::new(&path)) {
                Ok(nvcc) => (Some(nvcc), Vec::new()),
                Err(why) => (None, vec![format!("XTRAIN_NVCC={}: {why}", path.display())]),
            };
            return Search { nvcc, refused };
        }
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&set);
        let homes = homes.map(|home| Path::new(&home).join("bin"));
        let path = set("PATH").unwrap_or_default();
        let directories =
            homes.chain(std::env::split_paths(&path)).chain([PathBuf::from("/usr/local/cuda/bin")]);
        let mut refused = Vec::new();
        for path in directories.map(|directory| directory.join("nvcc")).filter(|path| path.is_file()) {
            match runs(&path) {
                Ok(nvcc) => return Search { nvcc: Some(nvcc), refused },
                Err(why) => refused.push(format!("{}: {why}", path.display())),
            }
        }
        Search { nvcc: None, refused }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All kernels compiled with `more` flags into `out`.
    ///
    /// # Errors
    /// What it says where it fails.
    pub(crate) fn compile(&self, more: &[String], out: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.args(FLAGS).args(more).arg("-o").arg(out).arg("../kernels/all.cu");
        let fails = |text: &str| format!("{} fails: {}", self.path.display(), text.trim());
        let output = command.output().map_err(|error| fails(&error.to_string()))?;
        match output.status.success() && out.is_file() {
            true => Ok(()),
            false if output.stderr.is_empty() => Err(fails(&output.status.to_string())),
            false => Err(fails(&String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// The compiler at `path`, if it runs and is new enough. It finds its own parts from where it really is, not from a
/// link.
fn runs(path: &Path) -> Result<Nvcc, String> {
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    let output = Command::new(&path).arg("--version").output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("it does not run ({})", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    match release(&text) {
        Some((major, _)) if major >= OLDEST => Ok(Nvcc { path }),
        Some((major, minor)) => Err(format!("it is of CUDA {major}.{minor}, want {OLDEST} or newer")),
        None => Err("it does not say its release".to_string()),
    }
}

/// 13 and 0 of `Cuda compilation tools, release 13.0, V13.0.88`.
fn release(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("release ")?;
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}
