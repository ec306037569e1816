//! What can go wrong in a model.
#[cfg(test)]
mod every_variant;

use std::fmt;

/// The result of a call on a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// An operation refused its operands.
    Tensor(xtrain_tensor::Error),
    /// A field of a config that no model can have.
    Config {
        /// The field.
        field: &'static str,
        /// What it must be.
        want: &'static str,
        /// What it is.
        got: String,
    },
    /// Named tensors that are not those of the config.
    Parameter {
        /// The tensor.
        name: String,
        /// What was expected.
        want: String,
        /// What was found.
        got: String,
    },
    /// The f32 values of a matrix that is there in its packed form alone.
    NoMasterWeights {
        /// The tensor.
        name: String,
    },
    /// A store of keys and values has no room for a position.
    CacheFull {
        /// The sequence.
        seq: u32,
        /// The position in it.
        pos: u32,
    },
    /// A row that does not follow what its store holds.
    CachePosition {
        /// The layer.
        layer: usize,
        /// The sequence.
        seq: u32,
        /// The position that is due.
        want: u32,
        /// The position of the row.
        got: u32,
    },
    /// A layer of a store out of turn.
    CacheLayer {
        /// The layer whose turn it is.
        want: usize,
        /// The layer.
        got: usize,
    },
    /// Documents of a sample that do not begin at rising places inside it.
    Documents {
        /// Where they begin.
        starts: Vec<usize>,
        /// The tokens of the sample.
        tokens: usize,
    },
    /// A value that has to be finite and is not.
    NotFinite {
        /// The optimizer step.
        step: u64,
        /// The loss, or the first bad tensor.
        what: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tensor(e) => e.fmt(f),
            Error::Config { field, want, got } => write!(f, "config: {field} must be {want}, got {got}"),
            Error::Parameter { name, want, got } => write!(f, "tensor {name}: want {want}, got {got}"),
            Error::NoMasterWeights { name } => write!(
                f,
                "tensor {name}: its f32 values were not kept, the model was opened to be run alone; \
                 store::open keeps them, to train or to write it"
            ),
            Error::CacheFull { seq, pos } => write!(f, "cache full at position {pos} of sequence {seq}"),
            Error::CachePosition { layer, seq, want, got } => {
                write!(f, "cache: layer {layer} of sequence {seq} is at position {want}, the row at {got}")
            }
            Error::CacheLayer { want, got } => {
                write!(f, "cache: it is layer {want}'s turn, not layer {got}'s")
            }
            Error::Documents { starts, tokens } => {
                write!(
                    f,
                    "a sample of {tokens} tokens: documents must begin at rising places in it, got {starts:?}"
                )
            }
            Error::NotFinite { step, what } => write!(f, "step {step}: {what} is not finite"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Tensor(e) => Some(e),
            _ => None,
        }
    }
}

impl From<xtrain_tensor::Error> for Error {
    fn from(e: xtrain_tensor::Error) -> Error {
        Error::Tensor(e)
    }
}
