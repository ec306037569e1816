//! Processes that `mpirun` or `srun` started, through the MPI library of the machine. An error of MPI, for example a
//! lost connection, ends all processes with a message of the library.
use std::time::Duration;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{
    Communicator as _, CommunicatorCollectives as _, Destination as _, Root as _, Source as _,
};

use crate::communicator::{Communicator, Error, Result};

/// The length of the parts of a message to one process, each of which arrives by itself. Small in builds for the gates,
/// whose messages then have several parts.
const PART_BYTES: usize = if cfg!(feature = "faults") { 1 << 12 } else { 1 << 20 };

/// How often a transfer is polled in vain before the thread sleeps, and how long it then sleeps between two polls. The
/// library would use the core until the last message has arrived, and a training step computes meanwhile.
const BUSY_POLLS: u32 = 50;
const POLL_EVERY: Duration = Duration::from_micros(100);

/// The exit code of a process that panics.
const BUG: i32 = 70;

/// The processes of `MPI_COMM_WORLD`. One per process. The end of its lifetime is the end of MPI: it waits until every
/// process has reached it.
pub struct Mpi {
    rank: usize,
    size: usize,
    /// Finalizes MPI when it is dropped.
    _universe: Universe,
}

impl Mpi {
    /// Initializes MPI.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is already initialized, or if only one thread may call it.
    pub fn start() -> Result<Mpi> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Multiple)
            .ok_or_else(|| Error::Launch("MPI is already initialized".into()))?;
        if threading < Threading::Serialized {
            let want = "expected an MPI library that several threads may call (MPI_THREAD_SERIALIZED)";
            return Err(Error::Launch(format!("{want}, found {threading:?}")));
        }
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        Ok(Mpi { rank, size, _universe: universe })
    }

    /// Ends all processes. The launcher reports `code`.
    pub fn abort(code: i32) -> ! {
        SimpleCommunicator::world().abort(code)
    }

    /// Sends each message to the process of its number, and returns those of the others to this one, by sender; of this
    /// process an empty one.
    fn exchange(&self, messages: &[&[u8]]) -> Vec<Vec<u8>> {
        let lengths: Vec<[u8; 8]> =
            messages.iter().map(|message| (message.len() as u64).to_ne_bytes()).collect();
        let lengths: Vec<&[u8]> = lengths.iter().map(|length| &length[..]).collect();
        let mut received = vec![[0u8; 8]; self.size];
        self.transfer(&lengths, received.iter_mut().map(|length| &mut length[..]));
        let length = |&length: &[u8; 8]| u64::from_ne_bytes(length) as usize;
        let mut received: Vec<Vec<u8>> = received.iter().map(|bytes| vec![0; length(bytes)]).collect();
        self.transfer(messages, received.iter_mut().map(|message| &mut message[..]));
        received
    }

    /// Sends each message to the process of its number, and receives the messages whose lengths are those of `into`;
    /// not the message to this process. While it waits, other threads of this process have its core.
    fn transfer<'a>(&self, messages: &[&[u8]], into: impl Iterator<Item = &'a mut [u8]>) {
        let world = SimpleCommunicator::world();
        mpi::request::scope(|scope| {
            let mut pending = Vec::new();
            for (rank, message) in into.enumerate().filter(|(rank, _)| *rank != self.rank) {
                let process = world.process_at_rank(rank as i32);
                pending.extend(
                    message.chunks_mut(PART_BYTES).map(|part| process.immediate_receive_into(scope, part)),
                );
            }
            for (rank, message) in messages.iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
                let process = world.process_at_rank(rank as i32);
                pending.extend(message.chunks(PART_BYTES).map(|part| process.immediate_send(scope, part)));
            }
            let mut idle_polls = 0;
            while !pending.is_empty() {
                let before = pending.len();
                pending = pending.into_iter().filter_map(|request| request.test().err()).collect();
                idle_polls = if pending.len() < before { 0 } else { idle_polls + 1 };
                match idle_polls {
                    0..BUSY_POLLS => std::thread::yield_now(),
                    _ => std::thread::sleep(POLL_EVERY),
                }
            }
        });
    }
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MPI process {} of {}", self.rank, self.size)
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            Mpi::abort(BUG); // the others may wait for this process
        }
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn barrier(&self) -> Result<()> {
        SimpleCommunicator::world().barrier();
        Ok(())
    }

    fn broadcast(&self, root: usize, message: &[u8]) -> Result<Vec<u8>> {
        let world = SimpleCommunicator::world();
        let process = world.process_at_rank(root as i32);
        let mut length = message.len() as u64;
        process.broadcast_into(&mut length);
        let mut received = if root == self.rank { message.to_vec() } else { vec![0; length as usize] };
        for part in received.chunks_mut(PART_BYTES) {
            process.broadcast_into(part);
        }
        Ok(received)
    }

    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if messages.len() != self.size {
            return Err(Error::Messages { size: self.size, got: messages.len() });
        }
        let parts: Vec<&[u8]> = messages.iter().map(|message| &message[..]).collect();
        let mut received = self.exchange(&parts);
        received[self.rank] = messages.into_iter().nth(self.rank).expect("one message per process");
        Ok(received)
    }

    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut received = self.exchange(&vec![message; self.size]);
        received[self.rank] = message.to_vec();
        Ok(received)
    }
}
