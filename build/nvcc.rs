//! Finds a usable nvcc and runs it.
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags of every compilation. `-fmad=false`: multiplications and additions are not contracted, so the machine code
/// performs the operations of docs/numerics.md.
pub(crate) const FLAGS: [&str; 3] = ["-std=c++17", "-O3", "-fmad=false"];

/// Architectures with machine code in the image: Ampere to Blackwell.
pub(crate) const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90a", "100", "120"];

/// The architecture whose PTX is assembled for another one. The sources are the same for both (`__CUDA_ARCH__` in
/// kernels/xt.cuh), so the PTX is, too, and is compiled once.
const PTX_OF: [[&str; 2]; 3] = [["86", "80"], ["89", "80"], ["120", "100"]];

/// The options of nvcc for machine code of these architectures, and for PTX of `ptx`.
pub(crate) fn code_of(architectures: &[&str], ptx: &str) -> Vec<String> {
    let code = architectures.iter().map(|&name| {
        let of = PTX_OF.iter().find(|pair| pair[0] == name).map_or(name, |pair| pair[1]);
        (of, format!("sm_{name}"))
    });
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for (of, code) in code.chain([(ptx, format!("compute_{ptx}"))]) {
        match groups.iter_mut().find(|group| group.0 == of) {
            Some(group) => group.1.push(code),
            None => groups.push((of, vec![code])),
        }
    }
    let options =
        groups.iter().map(|(of, code)| format!("-gencode=arch=compute_{of},code=[{}]", code.join(",")));
    options.collect()
}

/// Those of `XTRAIN_CUDA_ARCHS`, a list with commas, or all if it names none.
pub(crate) fn architectures(requested: Option<&str>) -> Vec<&str> {
    let named = requested.into_iter().flat_map(|list| list.split(',')).map(str::trim);
    let named: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
    if named.is_empty() { ARCHITECTURES.to_vec() } else { named }
}

/// Whether the build writes the checked-in PTX: `XTRAIN_WRITE_PTX=1`.
pub(crate) fn writes_ptx(value: Option<OsString>) -> bool {
    value.is_some_and(|value| value == "1")
}

/// Environment variables that locate nvcc.
pub(crate) const VARIABLES: [&str; 4] = ["XTRAIN_NVCC", "CUDA_HOME", "CUDA_PATH", "PATH"];

/// Minimum major release; older ones do not support the newer architectures.
const MIN_MAJOR: u32 = 13;

/// A usable nvcc.
pub(crate) struct Nvcc {
    /// Canonical path of the executable.
    pub(crate) path: PathBuf,
}

/// Result of the search for nvcc.
pub(crate) struct Search {
    /// The first usable nvcc.
    pub(crate) nvcc: Option<Nvcc>,
    /// Reasons why other candidates were rejected, one per entry.
    pub(crate) rejected: Vec<String>,
    /// All candidates: a change of one may change the result. One that `XTRAIN_NVCC` names may be missing.
    pub(crate) candidates: Vec<PathBuf>,
}

impl Nvcc {
    /// Searches for nvcc. If `XTRAIN_NVCC` is set, only that path is tried (`off`: none). Otherwise the first nvcc in
    /// `CUDA_HOME`, `CUDA_PATH`, `PATH` and /usr/local/cuda that runs and is new enough. `variable` reads the
    /// environment.
    pub(crate) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Search {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let (source, candidates): (_, Vec<PathBuf>) = match set("XTRAIN_NVCC") {
            Some(path) if path == "off" => ("", Vec::new()),
            Some(path) => ("XTRAIN_NVCC=", vec![path.into()]),
            None => {
                let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&set);
                let homes = homes.map(|home| Path::new(&home).join("bin"));
                let path = set("PATH").unwrap_or_default();
                let all = homes.chain(std::env::split_paths(&path)).chain(["/usr/local/cuda/bin".into()]);
                ("", all.map(|directory| directory.join("nvcc")).filter(|path| path.is_file()).collect())
            }
        };
        let mut rejected = Vec::new();
        for path in &candidates {
            match probe(path) {
                Ok(nvcc) => return Search { nvcc: Some(nvcc), rejected, candidates },
                Err(why) => rejected.push(format!("{source}{}: {why}", path.display())),
            }
        }
        Search { nvcc: None, rejected, candidates }
    }

    /// Compiles all kernels with additional flags into `out`.
    ///
    /// # Errors
    /// The output of nvcc if it fails.
    pub(crate) fn compile(&self, flags: &[String], out: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.args(FLAGS).args(flags).arg("-o").arg(out).arg("../kernels/all.cu");
        let failure = |text: &str| format!("{} failed: {}", self.path.display(), text.trim());
        let output = command.output().map_err(|error| failure(&error.to_string()))?;
        match output.status.success() && out.is_file() {
            true => Ok(()),
            false if output.stderr.is_empty() => Err(failure(&output.status.to_string())),
            false => Err(failure(&String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// Checks that the compiler at `path` runs and is new enough. The path is canonicalized, because nvcc locates its
/// components relative to its own path and fails when it is run through a symbolic link.
fn probe(path: &Path) -> Result<Nvcc, String> {
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    let output = Command::new(&path).arg("--version").output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("does not run ({})", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    match release(&text) {
        Some((major, _)) if major >= MIN_MAJOR => Ok(Nvcc { path }),
        Some((major, minor)) => Err(format!("found CUDA {major}.{minor}, expected {MIN_MAJOR} or newer")),
        None => Err("does not print its release".to_string()),
    }
}

/// Parses (13, 0) from `Cuda compilation tools, release 13.0, V13.0.88`.
fn release(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("release ")?;
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}
