//! GPU runtime: device memory, counters and kernel submission. The same Rust code serves a CUDA device and the
//! emulator; they differ only behind [`Launcher`].
pub(crate) mod attention;
mod counters;
mod cuda;
mod embedding;
#[cfg(all(feature = "emu", xtrain_emu))]
mod emulated;
mod finite;
mod fused;
mod indices;
mod kv;
mod launch;
mod linear;
mod loss;
mod memory;
mod norm;
mod optim;
mod peak;
mod pointwise;
mod queue;
mod rope;
mod rows;
mod sample;
mod survey;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use embedding::{embedding, embedding_backward};
#[cfg(all(test, feature = "emu", xtrain_emu))]
pub(crate) use emulated::{kernel_names, mma_dot16, watch, watched};
pub(crate) use finite::first_non_finite;
pub(crate) use fused::{add_rms_norm, write_heads};
pub(crate) use kv::{cat_seq, repeat_kv, repeat_kv_backward};
pub use launch::Schedule;
pub(crate) use launch::{Arg, At, Call, Graph, Grid, Launcher, args};
pub(crate) use linear::{
    After, NORMED_INSIDE, Source, bias_gradient, input_gradient, linear, linear_add_norm, linears, swiglu,
    takes, weight_gradient,
};
pub(crate) use loss::{log_prob, loss};
pub(crate) use memory::Buffer;
pub(crate) use norm::{rms_norm, rms_norm_backward};
pub(crate) use optim::{adamw, adamw_all, squares};
pub use peak::Peak;
pub(crate) use pointwise::{accumulate, add, cast, silu_mul, silu_mul_backward};
pub(crate) use rope::{RopeArgs, rope};
pub(crate) use rows::{copy_slots, copy_slots_within, gather_rows, scatter_rows};
pub(crate) use sample::{DeviceSampler, LISTS, sample_rows};
pub use survey::{GpuInfo, GpuSurvey, enumerate_gpus};

use crate::Result;
use counters::Counters;
use indices::Indices;
use memory::Memory;
use queue::Queue;

/// A GPU or the emulator. Clones share the device. Operations must be issued by one thread at a time: index lists that
/// are staged for a kernel are not protected against other threads.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    launcher: Box<dyn Launcher>,
    memory: Memory,
    indices: Indices,
    counters: Counters,
    queue: Queue,
    done: Done,
}

/// Counters that neither the queue nor the memory pool keeps.
#[derive(Debug, Default)]
struct Done {
    launches: AtomicU64,
    uploaded: AtomicU64,
    downloaded: AtomicU64,
    syncs: AtomicU64,
    /// Number of queue flushes before the last upload.
    flushes_at_upload: AtomicU64,
    kv_read: AtomicU64,
    partials: AtomicU64,
}

/// Activity counters of a GPU since it was opened. Subtract two snapshots with [`GpuCounters::since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuCounters {
    /// Kernels launched, individually or as graph nodes.
    pub launches: u64,
    /// CUDA graphs launched.
    pub graphs: u64,
    /// Graph nodes whose launch parameters were updated before a graph launch.
    pub graph_node_updates: u64,
    /// Bytes copied from host to device.
    pub uploaded: u64,
    /// Bytes copied from device to host.
    pub downloaded: u64,
    /// Number of device-to-host copies, each of which synchronizes.
    pub syncs: u64,
    /// Submissions of queued kernels since the last host-to-device copy: steps that ran entirely on data already on the
    /// device.
    pub steps_without_upload: u64,
    /// Bytes of keys and values read by decode attention: the visible keys of each row, once per group of query heads.
    pub kv_read: u64,
    /// Bytes of partial results (one per chunk of 64 keys) that decode attention wrote and read back.
    pub partials: u64,
    /// Device memory allocations that the free lists could not serve.
    pub allocations: u64,
}

impl GpuCounters {
    /// Returns the difference to an earlier snapshot. `steps_without_upload` is not a difference: it counts from the
    /// last upload.
    pub fn since(self, before: GpuCounters) -> GpuCounters {
        GpuCounters {
            launches: self.launches - before.launches,
            graphs: self.graphs - before.graphs,
            graph_node_updates: self.graph_node_updates - before.graph_node_updates,
            uploaded: self.uploaded - before.uploaded,
            downloaded: self.downloaded - before.downloaded,
            syncs: self.syncs - before.syncs,
            steps_without_upload: self.steps_without_upload,
            kv_read: self.kv_read - before.kv_read,
            partials: self.partials - before.partials,
            allocations: self.allocations - before.allocations,
        }
    }
}

impl Gpu {
    /// Opens the emulator: the kernels' source compiled for the CPU. `schedule` is the order in which CUDA threads run.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if this build has no emulator.
    #[cfg(all(feature = "emu", xtrain_emu))]
    pub fn emulated(schedule: Schedule) -> Result<Gpu> {
        Ok(Gpu::with_launcher(Box::new(emulated::Emulated::plain(schedule)?)))
    }

    /// As [`Gpu::emulated`], with every memory access checked: bounds, alignment, uninitialized reads and data races.
    /// A fault ends the launch with an error that names kernel, source line and thread. Several times slower.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if this build has no emulator.
    #[cfg(all(feature = "emu", xtrain_emu))]
    pub fn checked(schedule: Schedule) -> Result<Gpu> {
        Ok(Gpu::with_launcher(Box::new(emulated::Emulated::checked(schedule)?)))
    }

    /// Opens the CUDA device with this ordinal.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is no driver, no such device, or no kernel image for it in this
    /// build.
    pub fn cuda(ordinal: u32) -> Result<Gpu> {
        Ok(Gpu::with_launcher(Box::new(cuda::Cuda::open(ordinal)?)))
    }

    /// This build has no emulator: always fails.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device), with the reason.
    #[cfg(not(all(feature = "emu", xtrain_emu)))]
    pub fn emulated(_: Schedule) -> Result<Gpu> {
        Err(crate::Error::Device { what: env!("XTRAIN_EMULATOR").into() })
    }

    /// This build has no emulator: always fails.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device), with the reason.
    #[cfg(not(all(feature = "emu", xtrain_emu)))]
    pub fn checked(schedule: Schedule) -> Result<Gpu> {
        Gpu::emulated(schedule)
    }

    fn with_launcher(launcher: Box<dyn Launcher>) -> Gpu {
        Gpu {
            shared: Arc::new(Shared {
                launcher,
                memory: Memory::default(),
                indices: Indices::default(),
                counters: Counters::default(),
                queue: Queue::default(),
                done: Done::default(),
            }),
        }
    }

    /// Returns the device name.
    pub fn name(&self) -> String {
        self.shared.launcher.name()
    }

    /// Whether the device has the `wgmma` instructions of sm_90.
    pub fn has_wgmma(&self) -> bool {
        self.shared.launcher.has_wgmma()
    }

    /// Theoretical peak throughput. `None`: the emulator, or a device whose driver does not report clocks and widths.
    pub fn peak(&self) -> Option<Peak> {
        self.shared.launcher.peak()
    }

    /// Submits the queued kernels and waits until the device has finished.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a kernel failed.
    pub fn wait(&self) -> Result<()> {
        self.submit_step()?;
        self.shared.launcher.wait()
    }

    /// Returns a snapshot of the activity counters.
    pub fn gpu_counters(&self) -> GpuCounters {
        let Shared { memory, queue, done, .. } = &*self.shared;
        let (counts, load) = (queue.counts(), |n: &AtomicU64| n.load(Ordering::Relaxed));
        GpuCounters {
            launches: load(&done.launches),
            graphs: counts.graphs,
            graph_node_updates: counts.graph_node_updates,
            uploaded: load(&done.uploaded),
            downloaded: load(&done.downloaded),
            syncs: load(&done.syncs),
            steps_without_upload: counts.flushes.saturating_sub(load(&done.flushes_at_upload)),
            kv_read: load(&done.kv_read),
            partials: load(&done.partials),
            allocations: memory.allocations(),
        }
    }

    /// Adds to the counters of decode attention: bytes of keys and values read, and of partial results.
    pub(crate) fn count_attention_bytes(&self, read: usize, partials: usize) {
        self.shared.done.kv_read.fetch_add(read as u64, Ordering::Relaxed);
        self.shared.done.partials.fetch_add(partials as u64, Ordering::Relaxed);
    }

    /// Whether both handles are the same device.
    pub(crate) fn same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Queues a kernel after everything queued before. An empty grid launches nothing. The kernel may run as late as the
    /// next submission or synchronization; its errors are reported then.
    ///
    /// # Safety
    /// `args` match the kernel's signature, and its pointers are valid for what the kernel reads and writes.
    pub(crate) unsafe fn launch(&self, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let Shared { launcher, queue, done, .. } = &*self.shared;
        done.launches.fetch_add(1, Ordering::Relaxed);
        let call = Call { kernel, grid, args };
        if launcher.exact() {
            // SAFETY: as promised by the caller.
            return unsafe { launcher.launch(call) };
        }
        // SAFETY: as promised by the caller. Memory outlives queued kernels: a freed block is returned to the device, or
        // written by the host, only after all kernels that were queued before it was freed have been submitted, and no
        // later kernel refers to it. The host writes to a live block only if no queued kernel uses that range
        // ([`Gpu::upload_into`]). Index lists and counters are replaced by the one thread that issues operations; memory
        // that the current step uses is overwritten only after a flush.
        unsafe { queue.push(&**launcher, call) }
    }

    /// Submits the queued kernels.
    fn flush(&self) -> Result<()> {
        self.shared.queue.flush(&*self.shared.launcher)
    }

    /// Allocates device memory. On failure, returns all free blocks to the device and tries again.
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let Shared { launcher, memory, .. } = &*self.shared;
        memory.allocate(&**launcher, bytes).or_else(|_| {
            self.flush()?;
            // blocks that kernels queued since the flush (by another thread) may use are kept
            memory.free_all(&**launcher, self.shared.queue.counts().flushes);
            memory.allocate(&**launcher, bytes)
        })
    }

    /// Copies host values to a new device buffer.
    pub(crate) fn upload<T: bytemuck::Pod>(&self, values: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = Buffer::acquire_idle(self, bytes.len())?;
        self.copy_to_device(buffer.at(), bytes)?;
        Ok(buffer)
    }

    /// Copies host values to an existing allocation.
    ///
    /// # Safety
    /// `to` is inside a live buffer of this device with enough room, and no queued kernel reads or writes that range.
    pub(crate) unsafe fn upload_into<T: bytemuck::Pod>(&self, to: u64, values: &[T]) -> Result<()> {
        self.copy_to_device(to, bytemuck::cast_slice(values))
    }

    fn copy_to_device(&self, to: u64, bytes: &[u8]) -> Result<()> {
        let Shared { launcher, queue, done, .. } = &*self.shared;
        done.uploaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        done.flushes_at_upload.store(queue.counts().flushes, Ordering::Relaxed);
        launcher.upload(to, bytes)
    }

    /// Copies a buffer to the host. Synchronizes.
    pub(crate) fn download<T: bytemuck::Pod>(&self, buffer: &Buffer) -> Result<Vec<T>> {
        self.download_first(buffer, buffer.bytes() / size_of::<T>())
    }

    /// Copies the first `n` values of a buffer to the host. Synchronizes.
    pub(crate) fn download_first<T: bytemuck::Pod>(&self, buffer: &Buffer, n: usize) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); n];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        assert!(bytes.len() <= buffer.bytes(), "{} bytes of {}", bytes.len(), buffer.bytes());
        self.submit_step()?;
        self.shared.launcher.download(bytes, buffer.at())?;
        self.shared.done.downloaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.shared.done.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(values)
    }

    /// Submits the queued kernels as one step without synchronizing. A sequence of kernels that repeats is submitted as a
    /// CUDA graph.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a kernel cannot be launched.
    pub fn submit_step(&self) -> Result<()> {
        self.flush()?;
        self.shared.indices.submit_step();
        Ok(())
    }

    /// Returns uninitialized device memory; a kernel must write all of it before it is read.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer> {
        Buffer::acquire(self, bytes)
    }

    /// Returns zeroed device memory.
    pub(crate) fn zeros(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.buffer(bytes)?;
        buffer.clear()?;
        Ok(buffer)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
        self.indices.free_all(&*self.launcher);
        self.counters.free_all(&*self.launcher);
        self.memory.free_all(&*self.launcher, u64::MAX);
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name()).finish()
    }
}
