//! The error of an operation.
use crate::dtype::Dtype;

/// The result of an operation on tensors.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation rejected its operands or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shapes of the operands do not fit.
    #[error("{op}: expected {want}, found {got:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The expected shapes.
        want: &'static str,
        /// The shapes found, in the order of the arguments.
        got: Vec<Vec<usize>>,
    },
    /// An operand has an unexpected element type.
    #[error("{op}: expected {want}, found {got}")]
    Dtype {
        /// The operation.
        op: &'static str,
        /// The expected element type.
        want: &'static str,
        /// The element type found.
        got: Dtype,
    },
    /// An index is outside its table: a token id, a position, a slot, a sequence.
    #[error("{op}: {what} {got} at index {at} is not below {bound}")]
    Index {
        /// The operation.
        op: &'static str,
        /// What the index counts.
        what: &'static str,
        /// The place of the index in its list.
        at: usize,
        /// The index.
        got: u64,
        /// The smallest index that is too large.
        bound: u64,
    },
    /// A value that must be finite is not.
    #[error("{what}: row {row} holds a NaN or an infinity")]
    NotFinite {
        /// The operation or tensor.
        what: String,
        /// The row of the value.
        row: usize,
    },
    /// There is no memory for a tensor, or for a packed weight.
    #[error("out of memory: cannot allocate {bytes} bytes{}", if *on_gpu { " on the GPU" } else { "" })]
    Memory {
        /// The size.
        bytes: usize,
        /// Whether it is the memory of a GPU.
        on_gpu: bool,
    },
    /// A device is missing or failed; or an operand is on another device.
    #[error("{what}")]
    Device {
        /// What happened, and where. It includes the text of `source`.
        what: String,
        /// The error of the GPU driver. `None`: the driver did not fail.
        source: Option<DriverError>,
    },
    /// An argument is outside its range.
    #[error("{op}: expected {want}, found {got}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// The expected range.
        want: &'static str,
        /// The argument found.
        got: String,
    },
}

impl Error {
    /// An [`Error::Device`] without a driver error.
    pub(crate) fn device(what: impl Into<String>) -> Error {
        Error::Device { what: what.into(), source: None }
    }
}

/// An error that the GPU driver returned, as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverError(pub(crate) String);
