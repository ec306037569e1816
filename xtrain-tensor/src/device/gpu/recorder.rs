//! A device without memory and arithmetic: it records the kernel launches of the host code. A model of any size can
//! be traced in the time that the host code takes.
use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};

use xtrain_comm::Communicator;

use super::launch::{Arg, At, Call, Graph, Grid, Launcher, MAP_WORDS, MatrixBoxes};
use super::peak::Peak;
use super::peers::{Member, Peers};
use crate::error::{Error, Result};
use crate::faults::{self, Fault};
use crate::lock::lock;
use crate::tensor_core::TensorCore;

/// Largest upload whose content is kept: more than any index list.
const MAX_KEPT: usize = 1 << 22;

/// Marks a recorded tensor map.
const TENSOR_MAP: u32 = 0x7061_6d74;

/// A recorded kernel launch.
#[derive(Debug, Clone)]
pub(crate) struct RecordedLaunch {
    pub(crate) kernel: &'static str,
    pub(crate) grid: Grid,
    /// The scalar arguments of type u32, in order.
    pub(crate) numbers: Vec<u32>,
    /// The pointer arguments that are not null, in order; those of tensor maps are the matrices that the maps describe.
    pub(crate) operands: Vec<RecordedOperand>,
}

/// A pointer argument.
#[derive(Debug, Clone)]
pub(crate) struct RecordedOperand {
    /// Start of its allocation. The addresses are fictitious.
    pub(crate) allocation: u64,
    /// Size of its allocation in bytes.
    pub(crate) bytes: u64,
    /// The words that the host uploaded to this address.
    pub(crate) list: Option<Arc<[u32]>>,
}

/// The launches of a recorder, shared with its device.
pub(crate) type Recording = Arc<Mutex<Vec<RecordedLaunch>>>;

/// Launcher that records. Reads from the device return zeros.
#[derive(Default)]
pub(super) struct Recorder {
    memory: Mutex<FictitiousMemory>,
    recording: Recording,
}

/// Allocations, of which only address and size exist.
#[derive(Default)]
struct FictitiousMemory {
    end: u64,
    sizes: BTreeMap<u64, u64>,
    lists: BTreeMap<u64, Arc<[u32]>>,
}

impl FictitiousMemory {
    fn operand(&self, at: u64) -> RecordedOperand {
        let (&allocation, &bytes) = self.sizes.range(..=at).next_back().unwrap_or((&at, &0));
        RecordedOperand { allocation, bytes, list: self.lists.get(&at).cloned() }
    }

    /// A pointer argument, or the matrices of the tensor maps that it points to.
    fn operands(&self, at: u64) -> Vec<RecordedOperand> {
        match self.lists.get(&at) {
            Some(list) if list.first() == Some(&TENSOR_MAP) => {
                let maps = list.chunks_exact(MAP_WORDS).filter(|map| map[0] == TENSOR_MAP);
                maps.map(|map| self.operand(u64::from(map[1]) | u64::from(map[2]) << 32)).collect()
            }
            _ => vec![self.operand(at)],
        }
    }

    /// Drops the kept uploads to `at..end`.
    fn forget(&mut self, at: u64, end: u64) {
        let mut later = self.lists.split_off(&at);
        self.lists.append(&mut later.split_off(&end));
    }
}

impl Recorder {
    pub(super) fn recording(&self) -> Recording {
        self.recording.clone()
    }
}

impl Launcher for Recorder {
    fn name(&self) -> String {
        "launch recorder".into()
    }

    fn tensor_core(&self) -> Option<TensorCore> {
        None
    }

    /// Those of an H200.
    fn multiprocessors(&self) -> usize {
        132
    }

    /// The address of the matrix.
    fn tensor_map(&self, matrix: &MatrixBoxes) -> Result<[u32; MAP_WORDS]> {
        let At(at) = matrix.at;
        let mut words = [0; MAP_WORDS];
        words[..3].copy_from_slice(&[TENSOR_MAP, at as u32, (at >> 32) as u32]);
        Ok(words)
    }

    fn peak(&self) -> Option<Peak> {
        None
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    /// Allocations have the requested size, so that it can be recorded.
    fn exact(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut memory = lock(&self.memory);
        let at = memory.end + 256;
        memory.end = (at + bytes as u64).next_multiple_of(256);
        memory.sizes.insert(at, bytes as u64);
        Ok(at)
    }

    fn free(&self, at: u64) {
        let mut memory = lock(&self.memory);
        let bytes = memory.sizes.remove(&at).unwrap_or(0);
        memory.forget(at, at + bytes.max(1));
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        let mut memory = lock(&self.memory);
        memory.forget(to, to + (bytes.len() as u64).max(1));
        if bytes.len() <= MAX_KEPT && bytes.len().is_multiple_of(4) {
            let words =
                bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            memory.lists.insert(to, words.collect());
        }
        Ok(())
    }

    fn download(&self, to: &mut [u8], _: u64) -> Result<()> {
        to.fill(0);
        Ok(())
    }

    unsafe fn launch(&self, Call { kernel, grid, args }: Call<'_>) -> Result<()> {
        let memory = lock(&self.memory);
        let (mut numbers, mut operands) = (Vec::new(), Vec::new());
        for &arg in args {
            match arg {
                Arg::At(0) | Arg::F32(_) | Arg::U64(_) => (),
                Arg::At(at) => operands.extend(memory.operands(at)),
                Arg::U32(n) => numbers.push(n),
            }
        }
        if faults::on(Fault::LaunchNotRecorded) && grid.blocks == [1; 3] {
            return Ok(());
        }
        lock(&self.recording).push(RecordedLaunch { kernel, grid, numbers, operands });
        Ok(())
    }

    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>> {
        unreachable!("exact launchers submit {} kernels one by one", calls.len())
    }

    fn member(&self) -> Member {
        Member::without(self.name(), "a launch recorder has no memory to copy".to_string())
    }

    fn connect(&self, _: &Arc<dyn Communicator>) -> Result<Box<dyn Peers>> {
        Err(Error::device("a launch recorder has no memory to copy"))
    }
}

/// Removes and returns the recorded launches.
pub(crate) fn take(recording: &Recording) -> Vec<RecordedLaunch> {
    mem::take(&mut lock(recording))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that a launch finds at `at`.
    fn list(recorder: &Recorder, at: u64) -> Option<Vec<u32>> {
        lock(&recorder.memory).operand(at).list.map(|list| list.to_vec())
    }

    #[test]
    fn an_upload_replaces_what_was_uploaded_to_its_range() {
        let recorder = Recorder::default();
        let at = recorder.allocate(2 * MAX_KEPT).unwrap();
        let upload = |to: u64, words: &[u32]| recorder.upload(to, bytemuck::cast_slice(words)).unwrap();
        let found = |offset: u64| list(&recorder, at + offset);
        upload(at, &[1, 2]);
        upload(at + 8, &[3]);
        upload(at + 12, &[4]);
        assert_eq!([0, 8, 12].map(found), [Some(vec![1, 2]), Some(vec![3]), Some(vec![4])]);
        upload(at, &[5, 6, 7]);
        assert_eq!([0, 8, 12].map(found), [Some(vec![5, 6, 7]), None, Some(vec![4])]);
        // neither is a list of words that is kept
        recorder.upload(at, &[0; 3]).unwrap();
        assert_eq!([0, 12].map(found), [None, Some(vec![4])]);
        upload(at, &vec![8; MAX_KEPT / 4]);
        assert_eq!(found(0).map(|list| list.len()), Some(MAX_KEPT / 4));
        upload(at, &vec![9; MAX_KEPT / 4 + 1]);
        assert_eq!([0, 12].map(found), [None, None]);
    }
}
