//! The launch interface: everything that host code requires of a device.
use std::fmt;
use std::sync::Arc;

use xtrain_comm::Communicator;

use super::peak::Peak;
use super::peers::{Member, Peers};
use crate::Result;
use crate::tensor_core::TensorCore;

/// Launch geometry: grid size in blocks, threads per block (along x), bytes of dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads.
    pub(crate) fn blocks(blocks: [usize; 3], threads: u32) -> Grid {
        Grid { blocks: blocks.map(|n| n as u32), threads, shared: 0 }
    }

    /// One thread per element of `n`, in blocks of `threads`.
    pub(crate) fn over(n: usize, threads: u32) -> Grid {
        Grid::blocks([n.div_ceil(threads as usize), 1, 1], threads)
    }

    pub(crate) fn shared(self, bytes: usize) -> Grid {
        Grid { shared: bytes as u32, ..self }
    }
}

/// An address in device memory. The default is null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct At(pub(crate) u64);

/// A row-major bf16 matrix `[rows, columns]` and the boxes of 64 columns and `box_rows` rows that TMA reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixBoxes {
    pub(crate) at: At,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) box_rows: usize,
}

impl MatrixBoxes {
    /// Columns of a box: 128 bytes, the width of the swizzle.
    pub(crate) const COLUMNS: usize = 64;
    /// Size of a tensor map.
    pub(crate) const MAP_BYTES: usize = 4 * MAP_WORDS;

    /// Bytes from row to row.
    pub(crate) fn pitch(&self) -> usize {
        2 * self.columns
    }

    /// Whether TMA can read the matrix: its address and its rows are multiples of 16 bytes.
    pub(crate) fn is_readable(&self) -> bool {
        self.at.0.is_multiple_of(16) && self.pitch().is_multiple_of(16) && self.rows * self.columns > 0
    }
}

/// Words of a tensor map.
pub(crate) const MAP_WORDS: usize = 32;

/// A kernel argument, by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arg {
    At(u64),
    U32(u32),
    /// The bits of an f32, so that 0 and -0 are different arguments.
    F32(u32),
    U64(u64),
}

impl Arg {
    /// Address of the value, as `cuLaunchKernel` takes it.
    pub(crate) fn address(&self) -> *mut std::ffi::c_void {
        match self {
            Arg::At(x) | Arg::U64(x) => (&raw const *x).cast_mut().cast(),
            Arg::U32(x) | Arg::F32(x) => (&raw const *x).cast_mut().cast(),
        }
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grid { blocks: [x, y, z], threads, shared } = self.grid;
        let kernel = self.kernel;
        write!(
            f,
            "{kernel}, grid {x} x {y} x {z}, {threads} threads per block, {shared} bytes of shared memory"
        )
    }
}

impl From<At> for Arg {
    fn from(x: At) -> Arg {
        Arg::At(x.0)
    }
}
/// A size, which the kernels take as a u32. A tensor on a GPU has fewer than 2^32 elements.
impl From<usize> for Arg {
    fn from(x: usize) -> Arg {
        Arg::U32(u32::try_from(x).unwrap_or_else(|_| panic!("a size below 2^32, found {x}")))
    }
}
impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::U32(x)
    }
}
impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::F32(x.to_bits())
    }
}
impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg::U64(x)
    }
}

/// The arguments of a kernel, in the order of its signature.
macro_rules! args {
    ($($x:expr),* $(,)?) => { &[$($crate::device::gpu::Arg::from($x)),*] };
}
pub(crate) use args;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'static str,
    pub(crate) grid: Grid,
    pub(crate) args: &'a [Arg],
}

/// The order in which the emulator schedules CUDA threads. A correct kernel produces the same bits under every
/// schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadSchedule {
    /// Ascending thread index.
    Forward,
    /// Descending thread index.
    Backward,
    /// Random, from this seed.
    Random(u64),
    /// A random priority per warp, from this seed, so that one warp can run far ahead of another.
    Priorities(u64),
}

/// A compilation of the kernels for the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmulatorBuild {
    /// In host memory, without checks.
    Plain,
    /// Instrumented: checks every memory access, in an arena with shadow memory.
    Checked,
}

/// What the emulator emulates.
#[cfg_attr(
    not(all(feature = "emu", xtrain_emu)),
    allow(dead_code, reason = "there is no emulator to read it")
)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emulation {
    pub(crate) schedule: ThreadSchedule,
    pub(crate) build: EmulatorBuild,
    pub(crate) tensor_core: TensorCore,
    /// Whether the kernel image has `wgmma`, as machine code for sm_90a does. Without it the instruction traps.
    pub(crate) wgmma: bool,
    /// Whether the error of a kernel appears at the next synchronization, without a name, and stays, as on a device.
    pub(crate) late_errors: bool,
}

impl Emulation {
    /// A Hopper GPU with machine code for it.
    pub(crate) fn new(schedule: ThreadSchedule, build: EmulatorBuild) -> Emulation {
        Emulation { schedule, build, tensor_core: TensorCore::Hopper, wgmma: true, late_errors: false }
    }
}

/// A device backend: runs kernels and owns device memory.
pub(crate) trait Launcher: Send + Sync {
    fn name(&self) -> String;
    /// The model of the device's tensor cores. `None`: no model is known.
    fn tensor_core(&self) -> Option<TensorCore>;
    /// Number of multiprocessors: kernels whose blocks compute several tiles have at most one block on each.
    fn multiprocessors(&self) -> usize;
    /// Encodes the tensor map of a matrix, for TMA.
    fn tensor_map(&self, matrix: &MatrixBoxes) -> Result<[u32; MAP_WORDS]>;
    /// Theoretical peak throughput. `None`: unknown.
    fn peak(&self) -> Option<Peak>;
    /// Waits until everything launched before has finished.
    fn wait(&self) -> Result<()>;
    /// Whether allocations have exactly the requested size and are returned to the device when freed, without
    /// recycling, so that out-of-bounds accesses and uses after free are detected.
    fn exact(&self) -> bool {
        false
    }
    fn allocate(&self, bytes: usize) -> Result<u64>;
    /// Frees memory from [`Launcher::allocate`].
    fn free(&self, at: u64);
    /// Copies to the device. The source, which is pageable memory, may be reused when this returns.
    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()>;
    /// Copies from the device, after everything launched before.
    fn download(&self, to: &mut [u8], from: u64) -> Result<()>;
    /// Runs a kernel.
    ///
    /// # Safety
    /// The arguments match the kernel's signature and point to live memory.
    unsafe fn launch(&self, call: Call<'_>) -> Result<()>;
    /// Builds a graph that runs these calls in order. Runs nothing yet.
    ///
    /// # Safety
    /// As [`Launcher::launch`], at every run.
    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>>;
    /// The description of this device for the other processes.
    fn member(&self) -> Member;
    /// Connects the devices of all processes. Collective.
    fn connect(&self, comm: &Arc<dyn Communicator>) -> Result<Box<dyn Peers>>;
}

/// A sequence of kernel launches that is submitted as a unit.
pub(crate) trait Graph: Send {
    /// Replaces grid and arguments of node `at` for all later runs.
    ///
    /// # Safety
    /// As [`Launcher::launch`], at every run.
    unsafe fn set(&mut self, at: usize, call: Call<'_>) -> Result<()>;
    /// Runs all nodes in order.
    ///
    /// # Safety
    /// As [`Launcher::launch`], for each node.
    unsafe fn run(&self) -> Result<()>;
}
