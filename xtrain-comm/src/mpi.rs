//! Processes that `mpirun` or `srun` started, through the MPI library of the machine. An error of MPI, for example a
//! lost connection, ends all processes with a message of the library.
use mpi::collective::SystemOperation;
use mpi::datatype::{Partition, PartitionMut};
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Root as _};
use mpi::{Count, Threading};

use crate::communicator::{Communicator, Error, Result};

/// Maximum number of bytes of all messages to or from a process in one call of MPI, whose counts have 31 bits. Small in
/// builds for the gates, whose messages then take several calls.
const MAX_BYTES: usize = if cfg!(feature = "faults") { 1 << 12 } else { 1 << 30 };

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
    /// [`Error::Launch`] if MPI is already initialized.
    pub fn start() -> Result<Mpi> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)
            .ok_or_else(|| Error::Launch("MPI is already initialized".into()))?;
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

    fn all_to_all(&self, messages: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        if messages.len() != self.size {
            return Err(Error::Messages { size: self.size, got: messages.len() });
        }
        let (world, piece) = (SimpleCommunicator::world(), self.piece());
        let mut received = vec![Vec::new(); self.size];
        for call in 0..self.calls(messages.iter().map(Vec::len).max().unwrap_or(0)) {
            let parts: Vec<&[u8]> = messages.iter().map(|message| part(message, call, piece)).collect();
            let counts: Vec<Count> = parts.iter().map(|part| part.len() as Count).collect();
            let mut to_receive: Vec<Count> = vec![0; self.size];
            world.all_to_all_into(&counts[..], &mut to_receive[..]);
            let mut sent = parts.concat();
            let (at, _) = offsets(&counts);
            let (receive_at, length) = offsets(&to_receive);
            // One byte more than needed: the address of an empty vector is that of MPI_IN_PLACE.
            sent.push(0);
            let mut buffer = vec![0u8; length + 1];
            let from = Partition::new(&sent[..], &counts[..], &at[..]);
            let mut into = PartitionMut::new(&mut buffer[..], &to_receive[..], &receive_at[..]);
            world.all_to_all_varcount_into(&from, &mut into);
            append(&mut received, &buffer, &to_receive);
        }
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
