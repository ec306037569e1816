//! Processes that `mpirun` or `srun` started, through the MPI library of the machine. An error of MPI, for example a
//! lost connection, ends all processes with a message of the library.
use std::time::Duration;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{
    Communicator as _, CommunicatorCollectives as _, Destination as _, Equivalence as _, Root as _,
    Source as _,
};

use crate::model::comm::{Communicator, Error, Result, one_per_process};

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
    fn exchange(&self, messages: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let lengths: Vec<[u8; 8]> =
            messages.iter().map(|message| (message.len() as u64).to_ne_bytes()).collect();
        let lengths: Vec<Vec<&[u8]>> = lengths.iter().map(|length| vec![&length[..]]).collect();
        let mut received = vec![[0u8; 8]; self.size];
        self.transfer(&lengths, received.iter_mut().map(|length| vec![&mut length[..]]).collect())?;
        let length = |&length: &[u8; 8]| u64::from_ne_bytes(length) as usize;
        let mut received: Vec<Vec<u8>> = received.iter().map(|bytes| vec![0; length(bytes)]).collect();
        let messages: Vec<Vec<&[u8]>> = messages.iter().map(|&message| vec![message]).collect();
        self.transfer(&messages, received.iter_mut().map(|message| vec![&mut message[..]]).collect())?;
        Ok(received)
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
        one_per_process(self.size, [messages.len()])?;
        let parts: Vec<&[u8]> = messages.iter().map(|message| &message[..]).collect();
        let mut received = self.exchange(&parts)?;
        received[self.rank] = messages.into_iter().nth(self.rank).expect("one message per process");
        Ok(received)
    }

    fn transfer(&self, send: &[Vec<&[u8]>], receive: Vec<Vec<&mut [u8]>>) -> Result<()> {
        one_per_process(self.size, [send.len(), receive.len()])?;
        let world = SimpleCommunicator::world();
        mpi::request::multiple_scope(0, |scope, requests| {
            // the sender of each request that receives; they are the first ones
            let mut senders = Vec::new();
            for (from, pieces) in receive.into_iter().enumerate().filter(|(from, _)| *from != self.rank) {
                let process = world.process_at_rank(from as i32);
                for part in pieces.into_iter().flat_map(|piece| piece.chunks_mut(PART_BYTES)) {
                    requests.add(process.immediate_receive_into(scope, part));
                    senders.push(from);
                }
            }
            let mut pending = senders.len();
            for (to, pieces) in send.iter().enumerate().filter(|(to, _)| *to != self.rank) {
                let process = world.process_at_rank(to as i32);
                for part in pieces.iter().flat_map(|piece| piece.chunks(PART_BYTES)) {
                    requests.add(process.immediate_send(scope, part));
                    pending += 1;
                }
            }
            let (mut idle_polls, mut result) = (0, Ok(()));
            while pending > 0 {
                // not test_some, which pairs requests with the statuses of others
                if let Some((request, status, part)) = requests.test_any() {
                    (pending, idle_polls) = (pending - 1, 0);
                    let got = status.count(u8::equivalent_datatype()) as usize;
                    if let Some(&from) = senders.get(request).filter(|_| got != part.len()) {
                        result = Err(Error::Length { from, size: self.size, want: part.len(), got });
                    }
                    continue;
                }
                idle_polls += 1;
                match idle_polls {
                    0..BUSY_POLLS => std::thread::yield_now(),
                    _ => std::thread::sleep(POLL_EVERY),
                }
            }
            result
        })
    }

    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut received = self.exchange(&vec![message; self.size])?;
        received[self.rank] = message.to_vec();
        Ok(received)
    }
}
