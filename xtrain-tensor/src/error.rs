//! What an operation refuses.
use std::fmt;

use crate::Dtype;

/// The result of an operation on tensors.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation refused its operands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Operands whose shapes do not fit together.
    Shape {
        /// The operation.
        op: &'static str,
        /// What it asks for.
        want: &'static str,
        /// The shapes it was given, in the order of its arguments.
        got: Vec<Vec<usize>>,
    },
    /// An operand of another element type.
    Dtype {
        /// The operation.
        op: &'static str,
        /// What it asks for.
        want: &'static str,
        /// What it was given.
        got: Dtype,
    },
    /// An index outside its table: a token id, a position, a slot, a sequence.
    Index {
        /// The operation.
        op: &'static str,
        /// What the index counts.
        what: &'static str,
        /// Where in the list of indices it stands.
        at: usize,
        /// The index.
        got: u64,
        /// The first value that is too large.
        bound: u64,
    },
    /// A value that has to be finite and is not.
    NotFinite {
        /// The operation or tensor.
        what: String,
        /// The row that holds it.
        row: usize,
    },
    /// A device that is missing, out of memory, or that failed.
    Device {
        /// What happened, and where.
        what: String,
    },
    /// An argument outside its range.
    Argument {
        /// The operation.
        op: &'static str,
        /// What it asks for.
        want: &'static str,
        /// What it was given.
        got: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Shape { op, want, got } => write!(f, "{op}: want {want}, got {got:?}"),
            Error::Dtype { op, want, got } => write!(f, "{op}: want {want}, got {got}"),
            Error::Index { op, what, at, got, bound } => {
                write!(f, "{op}: {what} {got} at index {at} is not below {bound}")
            }
            Error::NotFinite { what, row } => write!(f, "{what}: row {row} holds a NaN or an infinity"),
            Error::Device { what } => f.write_str(what),
            Error::Argument { op, want, got } => write!(f, "{op}: want {want}, got {got}"),
        }
    }
}

impl std::error::Error for Error {}
