//! Copies between emulated devices, in place of NCCL: through the processes' communicator, as late as a transfer may end.
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use xtrain_comm::Communicator;

use super::ffi;
use crate::device::gpu::peers::{Message, Peers, given_up};
use crate::lock::lock;
use crate::{Error, Result};

/// The connection of an emulated device.
pub(super) struct EmulatedPeers {
    comm: Arc<dyn Communicator>,
    /// `None`: the connection was given up.
    started: Mutex<Option<Vec<Transfer>>>,
}

/// A transfer that [`Peers::join`] executes: memory that changes before is sent changed, and memory that is read before
/// has not been received.
enum Transfer {
    Exchange { sends: Vec<Message>, receives: Vec<Message> },
    AllGather { from: u64, to: u64, bytes: usize },
}

impl EmulatedPeers {
    pub(super) fn new(comm: &Arc<dyn Communicator>) -> EmulatedPeers {
        EmulatedPeers { comm: Arc::clone(comm), started: Mutex::new(Some(Vec::new())) }
    }

    /// Starts a transfer.
    fn start(&self, transfer: Transfer) -> Result<()> {
        lock(&self.started).as_mut().ok_or_else(given_up)?.push(transfer);
        Ok(())
    }

    fn run(&self, transfer: Transfer) -> Result<()> {
        let failed = |error: xtrain_comm::Error| Error::device(format!("emulated NCCL: {error}"));
        match transfer {
            Transfer::Exchange { sends, receives } => {
                let mut messages = vec![Vec::new(); self.comm.size()];
                for Message { process, at, bytes } in sends {
                    messages[process].extend(read(at, bytes)?);
                }
                let received = self.comm.all_to_all(messages).map_err(failed)?;
                let mut rest: Vec<&[u8]> = received.iter().map(Vec::as_slice).collect();
                for Message { process, at, bytes } in receives {
                    let message = rest[process].split_off(..bytes);
                    write(at, message.ok_or_else(|| self.wrong_length(process))?)?;
                }
                match rest.iter().position(|rest| !rest.is_empty()) {
                    None => Ok(()),
                    Some(process) => Err(self.wrong_length(process)),
                }
            }
            Transfer::AllGather { from, to, bytes } => {
                let all = self.comm.all_gather(&read(from, bytes)?).map_err(failed)?;
                for (process, message) in all.iter().enumerate() {
                    if message.len() != bytes {
                        return Err(self.wrong_length(process));
                    }
                    write(to + (process * bytes) as u64, message)?;
                }
                Ok(())
            }
        }
    }

    fn wrong_length(&self, from: usize) -> Error {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let what = "the messages of both have different lengths";
        Error::device(format!(
            "emulated NCCL, receiving from process {from}, process {rank} of {size}: {what}"
        ))
    }
}

impl Peers for EmulatedPeers {
    fn exchange(&self, sends: &[Message], receives: &[Message]) -> Result<()> {
        self.start(Transfer::Exchange { sends: sends.to_vec(), receives: receives.to_vec() })
    }

    fn all_gather(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.start(Transfer::AllGather { from, to, bytes })
    }

    fn join(&self) -> Result<()> {
        let started = lock(&self.started).as_mut().map(std::mem::take).ok_or_else(given_up)?;
        started.into_iter().try_for_each(|transfer| self.run(transfer))
    }

    fn abandon(&self) {
        *lock(&self.started) = None;
    }
}

fn read(at: u64, bytes: usize) -> Result<Vec<u8>> {
    let mut values = vec![0; bytes];
    // SAFETY: the caller of the transfer keeps memory of this length at `at` until it has ended.
    let written = unsafe { ffi::xtemu_read(values.as_mut_ptr().cast(), at as *const c_void, bytes) };
    if written < bytes {
        return Err(Error::device(format!("sending {bytes} bytes: byte {written} is uninitialized")));
    }
    Ok(values)
}

fn write(at: u64, bytes: &[u8]) -> Result<()> {
    // SAFETY: the emulator refuses memory of its own that is not allocated. The caller of the transfer keeps any other
    // memory of this length at `at` until it has ended.
    let live = unsafe { ffi::xtemu_write(at as *mut c_void, bytes.as_ptr().cast(), bytes.len()) };
    if live < bytes.len() {
        let what = format!("receiving {} bytes: byte {live} is outside allocated memory", bytes.len());
        return Err(Error::device(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_outside_an_allocation_is_not_written() {
        // SAFETY: any size is valid.
        let at = unsafe { ffi::xtemu_allocate(8, 1) };
        let to = at as u64;
        write(to, &[7; 8]).unwrap();
        let outside = |bytes: &[u8]| write(to, bytes).unwrap_err().to_string();
        let odd = write(to + 1, &[1; 8]).unwrap_err().to_string();
        assert!(odd.contains("byte 7 is outside allocated memory"), "{odd}");
        assert!(outside(&[1; 12]).contains("receiving 12 bytes: byte 8 is outside allocated memory"));
        assert_eq!(read(to, 8).unwrap(), [7; 8]);
        // SAFETY: `at` came from `xtemu_allocate`.
        unsafe { ffi::xtemu_free(at) };
        assert!(outside(&[1; 8]).contains("byte 0 is outside allocated memory"));
    }
}
