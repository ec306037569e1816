//! The error of models and training.
use xtrain_tensor::faults::{self, Fault};

#[cfg(test)]
mod every_variant;

/// The result of an operation on a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a model failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed.
    #[error("{0}")]
    Tensor(#[from] xtrain_tensor::Error),
    /// An invalid field of a config.
    #[error("config: {field} must be {want}, found {got}")]
    Config {
        /// The field.
        field: &'static str,
        /// The valid values.
        want: &'static str,
        /// The value found.
        got: String,
    },
    /// A named tensor that does not match the config.
    #[error("tensor {name}: expected {want}, found {got}")]
    Parameter {
        /// The tensor.
        name: String,
        /// What was expected.
        want: String,
        /// What was found.
        got: String,
    },
    /// The f32 master weights of a matrix were requested, but the model holds only packed weights.
    #[error(
        "tensor {name}: the model was opened for inference and has no f32 master weights; store::open keeps them, \
         for training and export"
    )]
    NoMasterWeights {
        /// The tensor.
        name: String,
    },
    /// The KV cache is full.
    #[error("KV cache full at position {pos} of sequence {seq}")]
    CacheFull {
        /// The sequence.
        seq: u32,
        /// The position in the sequence.
        pos: u32,
    },
    /// A row whose position does not follow the content of the KV cache.
    #[error("KV cache: layer {layer}, sequence {seq}: expected position {want}, found {got}")]
    CachePosition {
        /// The layer.
        layer: usize,
        /// The sequence.
        seq: u32,
        /// The next position.
        want: u32,
        /// The position of the row.
        got: u32,
    },
    /// The layers of a KV cache were written out of order.
    #[error("KV cache: expected layer {want}, found layer {got}")]
    CacheLayer {
        /// The next layer.
        want: usize,
        /// The layer found.
        got: usize,
    },
    /// A layer of a KV cache outside the memory of the device cannot be read or written.
    #[error("KV cache: layer {layer} in the offload file: {what}")]
    OffloadedLayer {
        /// The layer.
        layer: usize,
        /// What went wrong.
        what: String,
    },
    /// Document starts of a training example that are not increasing offsets inside it.
    #[error(
        "a training example of {tokens} tokens: document starts must be increasing and inside it, found {starts:?}"
    )]
    Documents {
        /// The document starts.
        starts: Vec<usize>,
        /// The number of tokens of the example.
        tokens: usize,
    },
    /// The number of kept sets of a training example differs from its number of tokens.
    #[error(
        "a training example of {tokens} tokens: expected no kept sets or one entry per token, found {sets}"
    )]
    KeptSets {
        /// The number of entries.
        sets: usize,
        /// The number of tokens of the example.
        tokens: usize,
    },
    /// A loss weight other than 1 in a step that takes the mean over its targets.
    #[error(
        "Trainer::step takes the mean over all targets: expected loss weights of 1, found {got}; \
         Trainer::step_weighted uses the weights of the examples"
    )]
    LossWeight {
        /// The loss weight.
        got: String,
    },
    /// A training example whose branches do not fit together.
    #[error("a training example with {branches} branches: expected {want}, found {got}")]
    Branches {
        /// The number of branches.
        branches: usize,
        /// What was expected.
        want: &'static str,
        /// What was found.
        got: String,
    },
    /// Shards or processes that cannot train the model.
    #[error("expected {want}, found {got}")]
    Processes {
        /// What was expected.
        want: String,
        /// What was found.
        got: String,
    },
    /// An operation between the processes that train the model failed.
    #[error(transparent)]
    Communication(#[from] xtrain_comm::Error),
    /// A value that is NaN or infinite.
    #[error("step {step}: {what} is not finite")]
    NotFinite {
        /// The optimizer step.
        step: u64,
        /// The loss, or the first tensor or row with a non-finite value.
        what: String,
    },
}

impl Error {
    /// This error of optimizer step `step`: a non-finite value of a forward pass becomes [`Error::NotFinite`], others
    /// stay as they are.
    #[must_use]
    pub fn at_step(self, step: u64) -> Error {
        match self {
            Error::Tensor(xtrain_tensor::Error::NotFinite { what, row })
                if !faults::on(Fault::DivergedForwardUnnamed) =>
            {
                Error::NotFinite { step, what: format!("row {row} of the {what}") }
            }
            other => other,
        }
    }
}
