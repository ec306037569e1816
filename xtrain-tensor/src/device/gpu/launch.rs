//! The launch seam: all that host code asks of a device.
use std::fmt;

use super::Peak;
use crate::Result;

/// The shape of a launch: blocks, threads of a block (along x), bytes of dynamic shared memory.
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

    /// A thread for each of `n` elements, in blocks of `threads`.
    pub(crate) fn over(n: usize, threads: u32) -> Grid {
        Grid::blocks([n.div_ceil(threads as usize), 1, 1], threads)
    }

    /// With `bytes` of dynamic shared memory.
    pub(crate) fn shared(self, bytes: usize) -> Grid {
        Grid { shared: bytes as u32, ..self }
    }
}

/// An address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At(pub(crate) u64);

/// An argument of a kernel, by value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg {
    At(u64),
    U32(u32),
    F32(f32),
    U64(u64),
}

impl Arg {
    /// Where the value lies, as `cuLaunchKernel` takes it.
    pub(crate) fn address(&self) -> *mut std::ffi::c_void {
        match self {
            Arg::At(x) | Arg::U64(x) => (&raw const *x).cast_mut().cast(),
            Arg::U32(x) => (&raw const *x).cast_mut().cast(),
            Arg::F32(x) => (&raw const *x).cast_mut().cast(),
        }
    }
}

/// By bits: 0 and -0 are two arguments.
impl PartialEq for Arg {
    fn eq(&self, other: &Arg) -> bool {
        match (self, other) {
            (Arg::At(a), Arg::At(b)) | (Arg::U64(a), Arg::U64(b)) => a == b,
            (Arg::U32(a), Arg::U32(b)) => a == b,
            (Arg::F32(a), Arg::F32(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl From<At> for Arg {
    fn from(x: At) -> Arg {
        Arg::At(x.0)
    }
}
impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::U32(x)
    }
}
impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::F32(x)
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

/// A kernel with its arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'static str,
    pub(crate) grid: Grid,
    pub(crate) args: &'a [Arg],
}

/// In which order the emulator lets threads run. No order changes a bit of any result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// Threads in rising order.
    Forward,
    /// In falling order.
    Backward,
    /// At random, from a seed.
    Random(u64),
    /// By a random priority for each warp, from a seed: one warp runs far ahead of another.
    Priorities(u64),
}

/// Who runs kernels and owns memory.
pub(crate) trait Launcher: fmt::Debug + Send + Sync {
    fn name(&self) -> String;
    /// Whether it has the warpgroup products of sm_90.
    fn has_wgmma(&self) -> bool;
    /// What it could do at most, if that is known.
    fn peak(&self) -> Option<Peak>;
    /// Waits for everything launched before.
    fn wait(&self) -> Result<()>;
    /// Whether blocks have exactly the bytes asked for and go back to the device when they are freed, so
    /// that an access past one or after its end is noticed.
    fn exact(&self) -> bool {
        false
    }
    fn allocate(&self, bytes: usize) -> Result<u64>;
    /// Frees what [`Launcher::allocate`] gave.
    fn free(&self, at: u64);
    /// Copies to the device; the bytes may be changed when this returns.
    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()>;
    /// Copies from the device, after everything launched before.
    fn download(&self, to: &mut [u8], from: u64) -> Result<()>;
    fn zero(&self, at: u64, bytes: usize) -> Result<()>;
    /// Runs a kernel.
    ///
    /// # Safety
    /// The arguments match the kernel's signature and point to live memory.
    unsafe fn launch(&self, call: Call<'_>) -> Result<()>;
    /// Calls that run one after another whenever they are asked to; none runs now.
    ///
    /// # Safety
    /// As [`Launcher::launch`], whenever it runs.
    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>>;
}

/// Calls that run as one.
pub(crate) trait Graph: fmt::Debug + Send {
    /// Gives the call at this place another grid and other arguments, for all runs to come.
    ///
    /// # Safety
    /// As [`Launcher::launch`], whenever it runs.
    unsafe fn set(&mut self, at: usize, call: Call<'_>) -> Result<()>;
    /// Runs all calls in order.
    ///
    /// # Safety
    /// As [`Launcher::launch`], for each.
    unsafe fn run(&self) -> Result<()>;
}
