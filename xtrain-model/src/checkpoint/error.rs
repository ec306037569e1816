//! Errors of checkpoints, weight files and run directories.
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result of saving or loading.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// The parser error behind a [`CheckpointError`].
pub type ParseError = Box<dyn Error + Send + Sync>;

/// A checkpoint that was not loaded, and the reason.
#[derive(Debug)]
pub struct Refused {
    /// The checkpoint directory.
    pub path: PathBuf,
    /// The reason.
    pub why: CheckpointError,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused: {}", self.path.display(), self.why)
    }
}

/// Why a checkpoint was not written or not loaded. Every message names the file and, where one is involved, the
/// tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// An operating system call failed.
    #[error("cannot {op} {path}: {source}", path = path.display())]
    Io {
        /// The operation: create, write, sync, rename, ...
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process writes to this run directory.
    #[error("{} is held by another process that writes to this run", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A required file is missing.
    #[error("{} not found ({what})", path.display())]
    Missing {
        /// The file or directory.
        path: PathBuf,
        /// What the file would contain.
        what: &'static str,
    },
    /// A directory, a pipe or a device where a regular file is required.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A length, count or depth above its limit.
    #[error("{}: {what}: expected at most {max}, found {got}", file.display())]
    Limit {
        /// The file.
        file: PathBuf,
        /// What is limited.
        what: &'static str,
        /// The limit.
        max: u64,
        /// The value found.
        got: u64,
    },
    /// A file whose length contradicts its header or the manifest.
    #[error("{}: {what}: expected {want} bytes, found {got}", file.display())]
    Length {
        /// The file.
        file: PathBuf,
        /// What the length is compared with.
        what: &'static str,
        /// The expected number of bytes.
        want: u64,
        /// The number of bytes found.
        got: u64,
    },
    /// Bytes that differ from those that were saved.
    #[error("{}: {}expected crc32c {want:08x}, found {got:08x}", file.display(),
        tensor.as_ref().map(|tensor| format!("tensor {tensor}: ")).unwrap_or_default())]
    Checksum {
        /// The file.
        file: PathBuf,
        /// The tensor that the bytes belong to. `None`: the whole file.
        tensor: Option<String>,
        /// The checksum in the manifest.
        want: u32,
        /// The checksum of the bytes found.
        got: u32,
    },
    /// Text that is not the expected JSON, or a control record that does not decode.
    #[error("{}: {detail}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, in JSON with line and column.
        detail: String,
        /// The parser's error. `None`: the file can be parsed, its content is invalid.
        source: Option<ParseError>,
    },
    /// An unsupported format version.
    #[error("{}: expected format version {want}, found {got}", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// The supported version.
        want: u32,
        /// The version found.
        got: u32,
    },
    /// A name that occurs twice.
    #[error("{}: {name} occurs twice", file.display())]
    Duplicate {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// A header entry of an unsupported type, or one that contradicts itself, its neighbors or the file.
    #[error("{}: tensor {tensor}: expected {want}, found {got}", file.display())]
    Entry {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the entry must contain.
        want: String,
        /// What it contains.
        got: String,
    },
    /// A field that is missing, invalid or contradicts another file of the checkpoint.
    #[error("{}: {field}: expected {want}, found {got}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The field, or the metadata key of a GGUF file.
        field: String,
        /// The valid values.
        want: String,
        /// The value found.
        got: String,
    },
    /// A tensor whose shape differs from the model's.
    #[error("{}: tensor {tensor}: expected shape {want:?}, found {got:?}", file.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The expected shape.
        want: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor that the model, the index or the manifest lists and the file does not contain.
    #[error("{}: tensor {tensor} is missing", file.display())]
    MissingTensor {
        /// The file or directory searched.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the model does not have.
    #[error("{}: tensor {tensor} is not part of the model", file.display())]
    UnexpectedTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The output head of a tied model is not its embedding table.
    #[error(
        "{}: tensor lm_head.weight: expected the bytes of model.embed_tokens.weight, because config.json has \
         \"tie_word_embeddings\": true, found others", file.display()
    )]
    TiedHead {
        /// The file.
        file: PathBuf,
    },
    /// A weight that is NaN or infinite.
    #[error("{}: tensor {tensor}: element {at} is {got}", file.display())]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The index of the element in row-major order.
        at: usize,
        /// Its value.
        got: f32,
    },
    /// A shard name that points outside the directory of its index.
    #[error("{}: expected the name of a file in the same directory, found {got:?}", file.display())]
    OutsideDirectory {
        /// The index.
        file: PathBuf,
        /// The name found.
        got: String,
    },
    /// An unsupported snapshot or option.
    #[error("{what}: expected {want}, found {got}")]
    Argument {
        /// The field.
        what: &'static str,
        /// The valid values.
        want: &'static str,
        /// The value found.
        got: String,
    },
    /// No checkpoint of a run can be loaded.
    #[error("{}: no checkpoint can be loaded{}", path.display(),
        refused.iter().fold(String::new(), |all, refused| format!("{all}; {refused}")))]
    NoneGood {
        /// The run directory.
        path: PathBuf,
        /// Every checkpoint of the run, with the reason why it was refused.
        refused: Vec<Refused>,
    },
}

impl CheckpointError {
    /// Converts an I/O error of operation `op` on `path`.
    pub(crate) fn io(
        op: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> CheckpointError {
        let path = path.into();
        move |source| CheckpointError::Io { op, path, source }
    }

    /// Invalid JSON text: `prefix` and the parser's message.
    pub(crate) fn json(
        file: impl Into<PathBuf>,
        prefix: &str,
        source: impl Error + Send + Sync + 'static,
    ) -> CheckpointError {
        let detail = format!("{prefix}{source}");
        CheckpointError::Malformed { file: file.into(), detail, source: Some(Box::new(source)) }
    }

    pub(crate) fn field(
        file: impl Into<PathBuf>,
        field: &str,
        want: impl Into<String>,
        got: impl fmt::Display,
    ) -> CheckpointError {
        let (file, field, want) = (file.into(), field.into(), want.into());
        CheckpointError::Field { file, field, want, got: got.to_string() }
    }

    pub(crate) fn argument(
        what: &'static str,
        want: &'static str,
        got: impl fmt::Display,
    ) -> CheckpointError {
        CheckpointError::Argument { what, want, got: got.to_string() }
    }
}
