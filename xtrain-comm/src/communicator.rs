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
    /// [`Communicator::all_to_all`] or [`Communicator::transfer`] with a wrong number of messages.
    #[error("expected one message for each of {size} processes, found {got}")]
    Messages {
        /// The number of processes.
        size: usize,
        /// The number of messages.
        got: usize,
    },
    /// [`Communicator::transfer`] with pieces of other lengths than those that a process sends.
    #[error("message of process {from} of {size}: expected {want} bytes, found {got}")]
    Length {
        /// The process that sends.
        from: usize,
        /// The number of processes.
        size: usize,
        /// The number of bytes that this process expects.
        want: usize,
        /// The number of bytes that arrived.
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

    /// Sends the pieces `send[r]` to process r, and receives those of each process r into `receive[r]`, without a copy
    /// in between. The pieces from one process to another have the same lengths at both ends. Those of this process to
    /// itself are ignored. MPI itself reports other lengths only in part: it ends the run if a piece is too long, and
    /// waits if one is missing. A thread that waits leaves its core as in [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// [`Error::Messages`] unless `send` and `receive` have an entry per process; [`Error::Length`]; [`Error::Ended`].
    fn transfer(&self, send: &[Vec<&[u8]>], receive: Vec<Vec<&mut [u8]>>) -> Result<()>;

    /// Sends `message` to every process. Returns the messages of all processes.
    ///
    /// # Errors
    /// [`Error::Ended`].
    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>>;
}

/// For implementations of [`Communicator`]: checks that there is a message for each of `size` processes.
///
/// # Errors
/// [`Error::Messages`].
pub fn one_per_process<const N: usize>(size: usize, messages: [usize; N]) -> Result<()> {
    match messages.into_iter().find(|&got| got != size) {
        None => Ok(()),
        Some(got) => Err(Error::Messages { size, got }),
    }
}
