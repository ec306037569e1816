//! The handle of a GPU.
use std::any::Any;
#[cfg(all(test, xtrain_emu))]
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use xtrain_comm::Communicator;

use super::counters::Counters;
#[cfg(all(feature = "emu", xtrain_emu))]
use super::emulated::Emulated;
use super::indices::Indices;
use super::launch::{Arg, At, Emulation, Grid, Launcher, MatrixBoxes, args};
use super::launch_options::{LaunchOptions, WgmmaUse};
use super::peak::Peak;
use super::peers::{Member, Peers};
use super::recorder::{Recorder, Recording};
use super::stream::{GpuCounters, Stream};
use super::tensor_maps::TensorMaps;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::lock::lock;
use crate::tensor_core::TensorCore;

/// A CUDA device, or the emulator. Cloning shares it. Threads may share it: a lock issues one operation at a time.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    /// Held while one operation is issued.
    issue: Mutex<()>,
    stream: Stream,
    indices: Mutex<Indices>,
    counters: Mutex<Counters>,
    tensor_maps: Mutex<TensorMaps>,
    /// Bins of histograms, which are zero between launches, too.
    bins: Mutex<Counters>,
    /// See [`Gpu::open_group`].
    open_group: Mutex<Weak<dyn Any + Send + Sync>>,
    /// See [`Gpu::wgmma`]. Unset: never.
    wgmma: OnceLock<WgmmaUse>,
}

impl Gpu {
    /// Opens the emulator; see [`Device::emulated`](crate::Device::emulated).
    #[cfg(all(feature = "emu", xtrain_emu))]
    pub(crate) fn emulated(emulation: Emulation) -> Result<Gpu> {
        Gpu::emulated_with(emulation, LaunchOptions::from_env()?)
    }

    /// As [`Gpu::emulated`], with launch options.
    #[cfg(all(feature = "emu", xtrain_emu))]
    pub(crate) fn emulated_with(emulation: Emulation, options: LaunchOptions) -> Result<Gpu> {
        let gpu = Gpu::with_launcher(Box::new(Emulated::new(emulation)?), options);
        if emulation.wgmma {
            gpu.allow_wgmma(options.wgmma);
        }
        Ok(gpu)
    }

    /// This build has no emulator: always fails.
    #[cfg(not(all(feature = "emu", xtrain_emu)))]
    pub(crate) fn emulated(_: Emulation) -> Result<Gpu> {
        Err(crate::Error::device(env!("XTRAIN_EMULATOR")))
    }

    /// A device that records launches and computes nothing, and its recording. `wgmma`: products of tiles use it.
    pub(crate) fn recorder(wgmma: bool) -> (Gpu, Recording) {
        let recorder = Recorder::default();
        let recording = recorder.recording();
        let gpu = Gpu::with_launcher(Box::new(recorder), LaunchOptions::default());
        if wgmma {
            gpu.allow_wgmma(WgmmaUse::TiledProducts);
        }
        (gpu, recording)
    }

    pub(super) fn with_launcher(launcher: Box<dyn Launcher>, options: LaunchOptions) -> Gpu {
        let (indices, counters, bins) = (Mutex::default(), Mutex::default(), Mutex::default());
        let tensor_maps = Mutex::default();
        let stream = Stream::new(launcher, options);
        let open_group = Mutex::new(Weak::<()>::new() as Weak<dyn Any + Send + Sync>);
        let (issue, wgmma) = (Mutex::default(), OnceLock::new());
        Gpu {
            shared: Arc::new(Shared {
                issue,
                stream,
                indices,
                counters,
                tensor_maps,
                bins,
                open_group,
                wgmma,
            }),
        }
    }

    /// Sets the products that use `wgmma`, when the device is opened.
    pub(super) fn allow_wgmma(&self, products: WgmmaUse) {
        self.shared.wgmma.get_or_init(|| products);
    }

    /// The products that use `wgmma`: none unless it has the bits of `mma.sync` on this device.
    pub(crate) fn wgmma(&self) -> WgmmaUse {
        self.shared.wgmma.get().copied().unwrap_or_default()
    }

    /// Returns the device name.
    pub fn name(&self) -> String {
        self.shared.stream.launcher().name()
    }

    /// Whether the kernel image that was loaded has `wgmma`: machine code for sm_90a. PTX and machine code for sm_90 do
    /// not have it, also on a Hopper GPU. Runs a kernel and waits for it.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the kernel fails.
    pub fn has_wgmma(&self) -> Result<bool> {
        let _issue = self.issue();
        let has = self.buffer(4)?;
        // SAFETY: the kernel writes one u32.
        unsafe { self.launch("tensor_core_has_wgmma", Grid::blocks([1, 1, 1], 1), args![has.arg()])? };
        Ok(self.download::<u32>(&has)? == [1])
    }

    /// The model of the device's tensor cores. `None`: no model is known, so there are no bits that bf16 products must
    /// have.
    pub fn tensor_core(&self) -> Option<TensorCore> {
        self.shared.stream.launcher().tensor_core()
    }

    pub(crate) fn peak(&self) -> Option<Peak> {
        self.shared.stream.launcher().peak()
    }

    pub(crate) fn member(&self) -> Member {
        self.shared.stream.launcher().member()
    }

    /// Connects this device with those of the other processes. Collective.
    pub(crate) fn connect(&self, comm: &Arc<dyn Communicator>) -> Result<Box<dyn Peers>> {
        self.shared.stream.launcher().connect(comm)
    }

    /// The number of bytes that a new buffer of `bytes` bytes allocates.
    pub(crate) fn allocated_bytes(&self, bytes: usize) -> usize {
        self.shared.stream.allocated_bytes(bytes)
    }

    /// See [`Device::wait`](crate::Device::wait).
    pub(crate) fn wait(&self) -> Result<()> {
        self.submit_step()?;
        self.shared.stream.launcher().wait()
    }

    /// Returns a snapshot of the activity counters.
    pub fn gpu_counters(&self) -> GpuCounters {
        self.shared.stream.counters()
    }

    /// How often each kernel was launched, with `XTRAIN_CUDA_SYNC=1`. Otherwise empty.
    #[cfg(all(test, xtrain_emu))]
    pub(crate) fn launched_kernels(&self) -> BTreeMap<&'static str, u64> {
        self.shared.stream.launched_kernels()
    }

    /// Adds to the counters of decode attention: bytes of keys and values read, and of partial results.
    pub(crate) fn count_attention_bytes(&self, read: usize, partials: usize) {
        self.shared.stream.count_attention_bytes(read, partials);
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.shared.stream
    }

    /// Returns the device address of `values`, uploading them if necessary. Valid for the calling operation only.
    pub(crate) fn indices(&self, values: &[u32]) -> Result<At> {
        lock(&self.shared.indices).address(&self.shared.stream, values)
    }

    /// The device address of the tensor maps of these matrices, one after another; that of an absent one is zero. Valid
    /// for the calling operation only.
    pub(crate) fn tensor_maps(&self, matrices: &[Option<MatrixBoxes>]) -> Result<At> {
        lock(&self.shared.tensor_maps).address(&self.shared.stream, matrices)
    }

    /// Declares the lists that an already queued kernel writes to these addresses. Replaces those declared before.
    /// Valid until the step ends.
    pub(crate) fn stage_indices(&self, lists: impl Iterator<Item = (Vec<u32>, At)>) {
        lock(&self.shared.indices).staged = lists.collect();
    }

    /// Returns at least `n` counters, all zero at the beginning of a launch.
    pub(crate) fn counters(&self, n: usize) -> Result<At> {
        lock(&self.shared.counters).address(&self.shared.stream, n)
    }

    /// Returns at least `n` bins of 64 bits, all zero at the beginning of a launch. The kernel that reads them resets
    /// them.
    pub(crate) fn bins(&self, n: usize) -> Result<At> {
        lock(&self.shared.bins).address(&self.shared.stream, 2 * n)
    }

    /// The group of deferred operations that later operations may join. It lives as long as a buffer that it writes.
    /// Only the backend knows its type.
    pub(crate) fn open_group(&self) -> &Mutex<Weak<dyn Any + Send + Sync>> {
        &self.shared.open_group
    }

    /// Whether both handles are the same device.
    pub(crate) fn same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// See [`Device::submit`](crate::Device::submit).
    pub(crate) fn submit(&self) -> Result<()> {
        let _issue = self.issue();
        if faults::on(Fault::TrainingNotSubmitted) { Ok(()) } else { self.shared.stream.flush() }
    }

    /// See [`Device::submit_step`](crate::Device::submit_step).
    pub(crate) fn submit_step(&self) -> Result<()> {
        let _issue = self.issue();
        self.end_step()
    }

    /// [`Gpu::submit_step`] of a thread that holds the issue lock.
    pub(crate) fn end_step(&self) -> Result<()> {
        self.shared.stream.flush()?;
        lock(&self.shared.indices).submit_step();
        lock(&self.shared.tensor_maps).end_step(self.stream().launcher());
        Ok(())
    }

    /// Queues a kernel after everything queued before. An empty grid launches nothing. The kernel may run as late as
    /// the next submission or synchronization; its errors are reported then.
    ///
    /// # Safety
    /// `args` match the kernel's signature, and its pointers are valid for what the kernel reads and writes.
    pub(crate) unsafe fn launch(&self, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.shared.stream.launch(kernel, grid, args) }
    }

    /// The issue lock. A backend operation holds it from its first index list to its last launch, so that no other
    /// thread replaces those lists, or ends the step, in between. It is not reentrant.
    pub(crate) fn issue(&self) -> MutexGuard<'_, ()> {
        lock(&self.shared.issue)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stream.close();
        lock(&self.indices).free_all(self.stream.launcher());
        lock(&self.tensor_maps).free_all(self.stream.launcher());
        lock(&self.counters).free_all(self.stream.launcher());
        lock(&self.bins).free_all(self.stream.launcher());
        self.stream.free_all();
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name()).finish()
    }
}
