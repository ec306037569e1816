//! The operations between processes and their error.
use std::fmt;

/// The result of an operation between processes.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation between processes failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process ended before it took part.
    #[error("process {rank} of {size} has ended; the others cannot continue without it")]
    Ended {
        /// The process.
        rank: usize,
        /// The number of processes.
        size: usize,
    },
    /// [`Communicator::all_to_all`] with a wrong number of messages.
    #[error("all-to-all: expected one message for each of {size} processes, found {got}")]
    Messages {
        /// The number of processes.
        size: usize,
        /// The number of messages.
        got: usize,
    },
    /// The operating system grants no thread for an operation beside the computation.
    #[error("no thread for the exchange with other processes: {0}")]
    Thread(String),
    /// The launcher started more than one process, and MPI did not.
    #[error("{0}")]
    Launch(String),
}

/// The processes that run one command, numbered from 0. Every operation is collective: all processes call it, in the
/// same order. Any thread may call an operation when no other one is running. Messages are bytes of any length.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// The number of this process.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// Waits until every process has called it.
    ///
    /// # Errors
    /// [`Error::Ended`].
    fn barrier(&self) -> Result<()>;

    /// Returns the message of process `root`. Those of the others are ignored.
    ///
    /// # Errors
    /// [`Error::Ended`].
    fn broadcast(&self, root: usize, message: &[u8]) -> Result<Vec<u8>>;

    /// Sends `messages[r]` to process r. Returns the messages to this process, by sender. A thread that waits for the
    /// others leaves its core to the other threads of its process.
    ///
    /// # Errors
    /// [`Error::Messages`] unless there is one message per process; [`Error::Ended`].
    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>>;

    /// Sends `message` to every process. Returns the messages of all processes.
    ///
    /// # Errors
    /// [`Error::Ended`].
    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>>;
}
