//! Processes that `mpirun` or `srun` started, through the MPI library of the machine. An error of MPI, for example a
//! lost connection, ends all processes with a message of the library.
use std::time::Duration;

use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{
    Communicator as _, CommunicatorCollectives as _, Destination as _, Root as _, Source as _,
};
use mpi::{Count, Threading};

use crate::communicator::{Communicator, Error, Result};

/// Maximum number of bytes of all messages to or from a process in one call of MPI, whose counts have 31 bits. Small in
/// builds for the gates, whose messages then take several calls.
const MAX_BYTES: usize = if cfg!(feature = "faults") { 1 << 12 } else { 1 << 30 };

/// The length of the parts of a message to one process, each of which arrives by itself.
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

    /// The most bytes of one message in one call.
    fn piece(&self) -> usize {
        MAX_BYTES / self.size
    }

    /// Sends each message to the process of its number, and receives the messages whose lengths are those of `into`;
    /// not the message to this process. While it waits, other threads of this process have its core.
    fn transfer<'a>(
        &self,
        messages: impl Iterator<Item = &'a [u8]>,
        into: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let world = SimpleCommunicator::world();
        let other = |rank: usize| (rank != self.rank).then(|| world.process_at_rank(rank as i32));
        mpi::request::scope(|scope| {
            let mut pending = Vec::new();
            for (rank, message) in into.enumerate() {
                for part in other(rank).map(|_| message.chunks_mut(PART_BYTES)).into_iter().flatten() {
                    pending.push(world.process_at_rank(rank as i32).immediate_receive_into(scope, part));
                }
            }
            for (rank, message) in messages.enumerate() {
                for part in other(rank).map(|_| message.chunks(PART_BYTES)).into_iter().flatten() {
                    pending.push(world.process_at_rank(rank as i32).immediate_send(scope, part));
                }
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

    /// The number of calls that transfer messages of at most `longest` bytes here, and any number elsewhere.
    fn calls(&self, longest: usize) -> usize {
        let mut most = 0u64;
        let own = longest.div_ceil(self.piece()) as u64;
        SimpleCommunicator::world().all_reduce_into(&own, &mut most, SystemOperation::max());
        most as usize
    }
}

/// The part of a message that call `call` transfers.
fn part(message: &[u8], call: usize, piece: usize) -> &[u8] {
    let start = (call * piece).min(message.len());
    &message[start..(start + piece).min(message.len())]
}

/// The offset of each part, and the length of all.
fn offsets(counts: &[Count]) -> (Vec<Count>, usize) {
    let mut end = 0;
    let start = |count: &Count| {
        end += count;
        end - count
    };
    (counts.iter().map(start).collect(), end as usize)
}

/// Appends the received parts to the messages.
fn append(messages: &mut [Vec<u8>], buffer: &[u8], counts: &[Count]) {
    let mut rest = buffer;
    for (message, &count) in messages.iter_mut().zip(counts) {
        let (part, others) = rest.split_at(count as usize);
        message.extend_from_slice(part);
        rest = others;
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
        for part in received.chunks_mut(MAX_BYTES) {
            process.broadcast_into(part);
        }
        Ok(received)
    }

    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if messages.len() != self.size {
            return Err(Error::Messages { size: self.size, got: messages.len() });
        }
        let mut lengths = vec![[0u8; 8]; self.size];
        let own: Vec<[u8; 8]> = messages.iter().map(|message| (message.len() as u64).to_ne_bytes()).collect();
        self.transfer(own.iter().map(|length| &length[..]), lengths.iter_mut().map(|length| &mut length[..]));
        let mut received: Vec<Vec<u8>> =
            lengths.iter().map(|&length| vec![0; u64::from_ne_bytes(length) as usize]).collect();
        self.transfer(messages.iter().map(|m| &m[..]), received.iter_mut().map(|m| &mut m[..]));
        let own = messages.into_iter().nth(self.rank);
        received[self.rank] = own.expect("one message per process");
        Ok(received)
    }

    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (world, piece) = (SimpleCommunicator::world(), self.piece());
        let mut received = vec![Vec::new(); self.size];
        for call in 0..self.calls(message.len()) {
            let part = match part(message, call, piece) {
                [] => &[0u8][..0], // the address of an empty vector is that of MPI_IN_PLACE
                part => part,
            };
            let mut counts: Vec<Count> = vec![0; self.size];
            world.all_gather_into(&(part.len() as Count), &mut counts[..]);
            let (at, length) = offsets(&counts);
            let mut buffer = vec![0u8; length + 1];
            let mut into = PartitionMut::new(&mut buffer[..], &counts[..], &at[..]);
            world.all_gather_varcount_into(part, &mut into);
            append(&mut received, &buffer, &counts);
        }
        Ok(received)
    }
}
