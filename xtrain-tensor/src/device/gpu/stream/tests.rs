//! Free blocks return to a full device.
use std::collections::HashMap;
use std::sync::Arc;

use xtrain_comm::Communicator;

use super::super::launch::{Graph, MAP_WORDS, MatrixBoxes};
use super::super::peak::Peak;
use super::super::peers::{Member, Peers};
use super::*;
use crate::error::Error;
use crate::tensor_core::TensorCore;

const MIB: usize = 1 << 20;

/// The blocks of a [`SmallDevice`].
#[derive(Default)]
struct Blocks {
    allocations: u64,
    /// Sizes by address.
    live: HashMap<u64, usize>,
    freed: Vec<u64>,
}

/// A device with 2 MiB of memory. It runs no kernels.
#[derive(Default)]
struct SmallDevice {
    blocks: Arc<Mutex<Blocks>>,
}

impl Launcher for SmallDevice {
    fn name(&self) -> String {
        "small device".into()
    }

    fn tensor_core(&self) -> Option<TensorCore> {
        None
    }

    fn multiprocessors(&self) -> usize {
        1
    }

    fn tensor_map(&self, _: &MatrixBoxes) -> Result<[u32; MAP_WORDS]> {
        Ok([0; MAP_WORDS])
    }

    fn peak(&self) -> Option<Peak> {
        None
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut blocks = lock(&self.blocks);
        if blocks.live.values().sum::<usize>() + bytes > 2 * MIB {
            return Err(Error::device("out of memory"));
        }
        blocks.allocations += 1;
        let at = blocks.allocations << 32;
        blocks.live.insert(at, bytes);
        Ok(at)
    }

    fn free(&self, at: u64) {
        let mut blocks = lock(&self.blocks);
        blocks.live.remove(&at).expect("a live block");
        blocks.freed.push(at);
    }

    fn upload(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn download(&self, to: &mut [u8], _: u64) -> Result<()> {
        to.fill(0);
        Ok(())
    }

    unsafe fn launch(&self, _: Call<'_>) -> Result<()> {
        Ok(())
    }

    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>> {
        unreachable!("{} kernels are queued", calls.len())
    }

    fn member(&self) -> Member {
        Member::without(self.name(), "a small device cannot copy to others".to_string())
    }

    fn connect(&self, _: &Arc<dyn Communicator>) -> Result<Box<dyn Peers>> {
        Err(Error::device("a small device cannot copy to others"))
    }
}

#[test]
fn an_allocation_that_fails_returns_the_free_blocks_to_the_device_and_tries_again() {
    let device = SmallDevice::default();
    let blocks = Arc::clone(&device.blocks);
    let stream = Stream::new(Box::new(device), LaunchOptions::default());
    let first = stream.acquire(MIB, false).unwrap();
    assert!(stream.acquire(2 * MIB, false).is_err());
    assert!(lock(&blocks).freed.is_empty());
    stream.release(first, MIB);
    assert!(lock(&blocks).freed.is_empty());
    let second = stream.acquire(2 * MIB, false).unwrap();
    assert_eq!(lock(&blocks).freed, [first]);
    assert_eq!(lock(&blocks).live, HashMap::from([(second, 2 * MIB)]));
}

#[cfg(feature = "faults")]
#[test]
fn free_blocks_that_are_kept_are_detected() {
    let test = an_allocation_that_fails_returns_the_free_blocks_to_the_device_and_tries_again;
    let found = crate::faults::with(crate::faults::Fault::FreeBlocksKept, || crate::testing::failure(test));
    assert!(found.is_some_and(|text| text.contains("out of memory")));
}
