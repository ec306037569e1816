//! One process.
use crate::communicator::{Communicator, Result, one_per_process};

/// A process without others. Messages to itself are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SingleProcess;

impl Communicator for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn broadcast(&self, _root: usize, message: &[u8]) -> Result<Vec<u8>> {
        Ok(message.to_vec())
    }

    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        one_per_process(1, [messages.len()])?;
        Ok(messages)
    }

    fn transfer(&self, send: &[Vec<&[u8]>], receive: Vec<Vec<&mut [u8]>>) -> Result<()> {
        one_per_process(1, [send.len(), receive.len()])
    }

    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![message.to_vec()])
    }
}
