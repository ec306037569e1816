//! The emulator backend: the kernels' source compiled for the CPU, one fiber per CUDA thread.
mod ffi;
mod kernels;
mod peers;
mod source;
mod tensor_map;
#[cfg(test)]
pub(super) mod testing;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xtrain_comm::Communicator;

use super::launch::{
    Arg, Call, Emulation, EmulatorBuild, Graph, Grid, Launcher, MAP_WORDS, MatrixBoxes, ThreadSchedule,
};
use super::peak::Peak;
use super::peers::{Member, Peers};
use crate::tensor_core::TensorCore;
use crate::{Error, Result};
use kernels::Kernels;

/// Launcher of the emulator.
#[derive(Clone)]
pub(super) struct Emulated {
    emulation: Emulation,
    kernels: &'static Kernels,
    /// Whether a kernel has failed on a device with late errors.
    failed: Arc<AtomicBool>,
}

impl Emulated {
    /// Opens a build of the kernels. The checked one is instrumented: it checks every memory access.
    ///
    /// # Errors
    /// [`Error::Device`] if this CPU lacks AVX2 or FMA (x86-64).
    pub(super) fn new(emulation: Emulation) -> Result<Emulated> {
        if emulation.build == EmulatorBuild::Checked {
            source::capture_faults();
        }
        #[cfg(target_arch = "x86_64")]
        if !(std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx2")) {
            return Err(Error::device("the emulator requires a CPU with AVX2 and FMA"));
        }
        Ok(Emulated { emulation, kernels: Kernels::of(emulation.build), failed: Arc::default() })
    }

    fn checks(&self) -> bool {
        self.emulation.build == EmulatorBuild::Checked
    }

    fn config(&self, grid: Grid) -> ffi::Config {
        let (order, seed) = match self.emulation.schedule {
            ThreadSchedule::Forward => (0, 1),
            ThreadSchedule::Backward => (1, 1),
            ThreadSchedule::Random(seed) => (2, seed),
            ThreadSchedule::Priorities(seed) => (3, seed),
        };
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        ffi::Config {
            grid: grid.blocks,
            block: [grid.threads, 1, 1],
            shared: grid.shared,
            order,
            seed,
            fault: ffi::fault(),
            workers,
            checked: c_int::from(self.checks()),
            tensor_core: match self.emulation.tensor_core {
                TensorCore::Ampere => 0,
                TensorCore::Hopper => 1,
            },
            wgmma: c_int::from(self.emulation.wgmma),
        }
    }
}

impl Launcher for Emulated {
    fn name(&self) -> String {
        let checked = if self.checks() { ", checked" } else { "" };
        let Emulation { schedule, tensor_core, wgmma, .. } = self.emulation;
        let image = match (tensor_core, wgmma) {
            (TensorCore::Hopper, true) => "",
            (TensorCore::Hopper, false) => ", Hopper without wgmma",
            (TensorCore::Ampere, _) => ", Ampere",
        };
        format!("emulated{checked}{image}, schedule {schedule:?}")
    }

    fn tensor_core(&self) -> Option<TensorCore> {
        Some(self.emulation.tensor_core)
    }

    /// Few, so that a block computes several tiles of a small product.
    fn multiprocessors(&self) -> usize {
        2
    }

    fn tensor_map(&self, matrix: &MatrixBoxes) -> Result<[u32; MAP_WORDS]> {
        tensor_map::encode(matrix)
    }

    fn peak(&self) -> Option<Peak> {
        None
    }

    fn wait(&self) -> Result<()> {
        match self.failed.load(Ordering::Relaxed) {
            true => Err(Error::device("unspecified launch failure")),
            false => Ok(()),
        }
    }

    fn exact(&self) -> bool {
        self.checks()
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.wait()?;
        // SAFETY: any size is valid.
        let at = unsafe { ffi::xtemu_allocate(bytes, c_int::from(self.checks())) };
        if at.is_null() {
            return Err(Error::Memory { bytes, on_gpu: true });
        }
        Ok(at as u64)
    }

    fn free(&self, at: u64) {
        // SAFETY: `at` came from `allocate`.
        unsafe { ffi::xtemu_free(at as *mut c_void) };
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.wait()?;
        // SAFETY: the caller's buffer has at least this many bytes.
        let live = unsafe { ffi::xtemu_write(to as *mut c_void, bytes.as_ptr().cast(), bytes.len()) };
        if live < bytes.len() {
            let what = format!("upload of {} bytes: byte {live} is outside allocated memory", bytes.len());
            return Err(Error::device(what));
        }
        Ok(())
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.wait()?;
        // SAFETY: the caller's buffer has at least this many bytes.
        let written = unsafe { ffi::xtemu_read(to.as_mut_ptr().cast(), from as *const c_void, to.len()) };
        if written < to.len() {
            let what = format!("download of {} bytes: byte {written} is uninitialized", to.len());
            return Err(Error::device(what));
        }
        Ok(())
    }

    unsafe fn launch(&self, Call { kernel, grid, args }: Call<'_>) -> Result<()> {
        self.wait()?;
        let entry = self.kernels.find(kernel, args)?;
        let mut addresses: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
        let config = self.config(grid);
        let mut text = [0u8; 1024];
        // SAFETY: `find` checked the arguments against the signature; the caller promises that their pointers are
        // valid. The error text is truncated to the size of `text`.
        let failed = unsafe {
            let text: *mut c_char = text.as_mut_ptr().cast();
            ffi::xtemu_launch(entry, &config, addresses.as_mut_ptr(), text, 1024)
        };
        if failed == 0 {
            return Ok(());
        }
        if self.emulation.late_errors {
            self.failed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&text).expect("snprintf terminates the string");
        Err(Error::device(source::with_location(&text.to_string_lossy())))
    }

    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>> {
        let calls = calls.iter().map(|call| (call.kernel, call.grid, call.args.to_vec())).collect();
        Ok(Box::new(Chain { device: self.clone(), calls }))
    }

    fn member(&self) -> Member {
        let id = format!("{}:{:p}", std::process::id(), Arc::as_ptr(&self.failed));
        Member { name: self.name(), id, library: Ok("emulated NCCL".to_string()) }
    }

    fn connect(&self, comm: &Arc<dyn Communicator>) -> Result<Box<dyn Peers>> {
        Ok(Box::new(peers::EmulatedPeers::new(comm)))
    }
}

/// A sequence of calls that owns its arguments, as a CUDA graph does.
struct Chain {
    device: Emulated,
    calls: Vec<(&'static str, Grid, Vec<Arg>)>,
}

impl Graph for Chain {
    unsafe fn set(&mut self, at: usize, call: Call<'_>) -> Result<()> {
        self.calls[at] = (call.kernel, call.grid, call.args.to_vec());
        Ok(())
    }

    unsafe fn run(&self) -> Result<()> {
        for &(kernel, grid, ref args) in &self.calls {
            // SAFETY: as promised by the caller for each call.
            unsafe { self.device.launch(Call { kernel, grid, args })? };
        }
        Ok(())
    }
}
