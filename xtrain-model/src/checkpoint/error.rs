//! What a checkpoint, a weights file or a run directory refuses.
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::Refused;

/// The result of saving or loading.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Why a checkpoint was not written or not loaded. Every message names the file, and the tensor where one
/// is concerned.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused an operation.
    Io {
        /// The operation: create, write, sync, rename, ...
        op: &'static str,
        /// Its file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process writes to this run directory.
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A file that has to be there is not.
    Missing {
        /// The file or directory.
        path: PathBuf,
        /// What it would hold.
        what: &'static str,
    },
    /// A directory, a pipe or a device stands where a file is expected.
    NotAFile {
        /// What was to be read.
        path: PathBuf,
    },
    /// A length, count or depth above its cap.
    Limit {
        /// The file.
        file: PathBuf,
        /// What is counted.
        what: &'static str,
        /// The cap.
        most: u64,
        /// The value found.
        got: u64,
    },
    /// A file of another length than its header or the manifest says.
    Length {
        /// The file.
        file: PathBuf,
        /// What the length is compared with.
        what: &'static str,
        /// The bytes expected.
        want: u64,
        /// The bytes found.
        got: u64,
    },
    /// Bytes that are not those that were saved.
    Checksum {
        /// The file.
        file: PathBuf,
        /// The tensor that the bytes belong to, if they belong to one.
        tensor: Option<String>,
        /// The checksum in the manifest.
        want: u32,
        /// The checksum of the bytes found.
        got: u32,
    },
    /// Text that is not the JSON that is expected.
    Json {
        /// The file.
        file: PathBuf,
        /// What is wrong, with line and column.
        detail: String,
    },
    /// A format version that this program does not know.
    Version {
        /// The file.
        file: PathBuf,
        /// The version that this program reads.
        want: u32,
        /// The version found.
        got: u32,
    },
    /// A name that occurs twice.
    Duplicate {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// An entry of a header that contradicts itself, its neighbours or the file.
    Entry {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What its entry has to say.
        want: String,
        /// What it says.
        got: String,
    },
    /// An element type that is not read.
    Dtype {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type found.
        got: String,
    },
    /// A value of a file's metadata that is missing, or is not what it has to be.
    Key {
        /// The file.
        file: PathBuf,
        /// The name of the value.
        key: String,
        /// What it has to be.
        want: String,
        /// What it is.
        got: String,
    },
    /// A tensor of another shape than the model's.
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape expected.
        want: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor that the model, the index or the manifest names and the file lacks.
    MissingTensor {
        /// The file or directory searched.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that nobody asked for.
    UnexpectedTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A weight that is NaN or infinite.
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The element, counted in row-major order.
        at: usize,
        /// Its value.
        got: f32,
    },
    /// A shard whose name leads out of the directory of its index.
    OutsideDirectory {
        /// The index.
        file: PathBuf,
        /// The name found.
        got: String,
    },
    /// A control record that does not decode.
    Control {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// Two files of one checkpoint that contradict each other.
    Inconsistent {
        /// The file.
        file: PathBuf,
        /// The field.
        what: &'static str,
        /// The value expected.
        want: String,
        /// The value found.
        got: String,
    },
    /// A snapshot or an option that is not served.
    Argument {
        /// The field.
        what: &'static str,
        /// What it has to be.
        want: &'static str,
        /// What it is.
        got: String,
    },
    /// No checkpoint of a run can be loaded.
    NoneGood {
        /// The run directory.
        path: PathBuf,
        /// Every checkpoint there, with the reason why it was refused.
        refused: Vec<Refused>,
    },
}

impl CheckpointError {
    /// Turns what the system said about `op` on `path` into an error.
    pub(crate) fn io(
        op: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> CheckpointError {
        let path = path.into();
        move |source| CheckpointError::Io { op, path, source }
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CheckpointError::*;
        match self {
            Io { op, path, source } => write!(f, "cannot {op} {}: {source}", path.display()),
            Locked { path } => write!(f, "{} is held by another run", path.display()),
            Missing { path, what } => write!(f, "{} not found ({what})", path.display()),
            NotAFile { path } => write!(f, "{} is not a regular file", path.display()),
            Limit { file, what, most, got } => {
                write!(f, "{}: {what}: want at most {most}, got {got}", file.display())
            }
            Length { file, what, want, got } => {
                write!(f, "{}: {what}: want {want} bytes, got {got}", file.display())
            }
            Checksum { file, tensor: Some(tensor), want, got } => {
                write!(f, "{}: tensor {tensor}: want crc32c {want:08x}, got {got:08x}", file.display())
            }
            Checksum { file, tensor: None, want, got } => {
                write!(f, "{}: want crc32c {want:08x}, got {got:08x}", file.display())
            }
            Json { file, detail } => write!(f, "{}: {detail}", file.display()),
            Version { file, want, got } => {
                write!(f, "{}: want format version {want}, got {got}", file.display())
            }
            Duplicate { file, name } => write!(f, "{}: {name} is there twice", file.display()),
            Entry { file, tensor, want, got } => {
                write!(f, "{}: tensor {tensor}: want {want}, got {got}", file.display())
            }
            Dtype { file, tensor, got } => {
                write!(f, "{}: tensor {tensor}: want F32, BF16 or F16, got {got}", file.display())
            }
            Key { file, key, want, got } => write!(f, "{}: {key}: want {want}, got {got}", file.display()),
            Shape { file, tensor, want, got } => {
                write!(f, "{}: tensor {tensor}: want shape {want:?}, got {got:?}", file.display())
            }
            MissingTensor { file, tensor } => write!(f, "{}: tensor {tensor} is missing", file.display()),
            UnexpectedTensor { file, tensor } => {
                write!(f, "{}: tensor {tensor} is not part of the model", file.display())
            }
            NotFinite { file, tensor, at, got } => {
                write!(f, "{}: tensor {tensor}: element {at} is {got}", file.display())
            }
            OutsideDirectory { file, got } => {
                write!(f, "{}: want the name of a file beside it, got {got:?}", file.display())
            }
            Control { file, detail } => write!(f, "{}: {detail}", file.display()),
            Inconsistent { file, what, want, got } => {
                write!(f, "{}: {what}: want {want}, got {got}", file.display())
            }
            Argument { what, want, got } => write!(f, "{what}: want {want}, got {got}"),
            NoneGood { path, refused } => {
                write!(f, "{}: no checkpoint can be loaded", path.display())?;
                refused.iter().try_for_each(|refused| write!(f, "; {refused}"))
            }
        }
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CheckpointError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
