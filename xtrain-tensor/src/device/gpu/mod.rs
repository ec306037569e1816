//! A GPU: its memory, its counters, and who runs its kernels. The same Rust for a real device and for
//! the emulator; they differ behind [`Launcher`] alone.
mod counters;
mod cuda;
#[cfg(all(feature = "emu", xtrain_emu))]
mod emulated;
mod indices;
mod launch;
mod memory;
mod peak;
mod queue;
mod survey;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(all(test, feature = "emu", xtrain_emu))]
pub(crate) use emulated::{kernel_names, mma_dot16, watch, watched};
pub use launch::Schedule;
pub(crate) use launch::{Arg, At, Call, Graph, Grid, Launcher, args};
pub(crate) use memory::Buffer;
pub use peak::Peak;
pub use survey::{GpuInfo, GpuSurvey, enumerate_gpus};

use crate::Result;
use counters::Counters;
use indices::Indices;
use memory::Memory;
use queue::Queue;

/// A CUDA device, or the emulator. Cloning shares it. Threads may share it: a lock issues one operation at a time.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    /// Held while one operation is issued.
    issue: Mutex<()>,
    launcher: Box<dyn Launcher>,
    memory: Memory,
    indices: Indices,
    counters: Counters,
    queue: Queue,
    done: Done,
}

/// What it has done, beside what the queue and the memory count.
#[derive(Debug, Default)]
struct Done {
    launches: AtomicU64,
    uploaded: AtomicU64,
    downloaded: AtomicU64,
    syncs: AtomicU64,
    /// Flushes of the queue before the host last sent something.
    sent_after: AtomicU64,
    kv_read: AtomicU64,
    partials: AtomicU64,
}

/// What a GPU has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuCounters {
    /// Kernels launched, one by one or in a graph.
    pub launches: u64,
    /// Graphs run.
    pub graphs: u64,
    /// Kernels of a graph whose arguments were changed before it ran.
    pub graph_node_updates: u64,
    /// Bytes copied from the host.
    pub uploaded: u64,
    /// Bytes copied to the host.
    pub downloaded: u64,
    /// Times that the host waited for such a copy.
    pub syncs: u64,
    /// Times that kernels were handed over since the host last sent anything: steps of a loop that ran on what lay
    /// there.
    pub steps_without_upload: u64,
    /// Bytes of keys and values that the attention of single rows read: those that a row sees, once for a group of
    /// query heads.
    pub kv_read: u64,
    /// Bytes of its partial results, one for each 64 keys, that it wrote and read again.
    pub partials: u64,
    /// Times that the device itself was asked for memory.
    pub allocations: u64,
}

impl GpuCounters {
    /// What came after `before`; `steps_without_upload` counts from the last sending.
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
    /// The emulator: the kernels' own source on this processor, its threads taking turns by `schedule`.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) where this build has no emulator.
    #[cfg(all(feature = "emu", xtrain_emu))]
    pub fn emulated(schedule: Schedule) -> Result<Gpu> {
        Ok(Gpu::over(Box::new(emulated::Emulated::plain(schedule)?)))
    }

    /// As [`Gpu::emulated`], and every access to memory is checked: bounds, alignment, reads of what was
    /// never written, races. A fault ends the launch with an error that names kernel, line and thread.
    /// Several times slower.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) where this build has no emulator.
    #[cfg(all(feature = "emu", xtrain_emu))]
    pub fn checked(schedule: Schedule) -> Result<Gpu> {
        Ok(Gpu::over(Box::new(emulated::Emulated::checked(schedule)?)))
    }

    /// The GPU of that number, by way of the NVIDIA driver.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) where there is no driver, no such device, or this build has
    /// no kernels for it.
    pub fn cuda(ordinal: u32) -> Result<Gpu> {
        Ok(Gpu::over(Box::new(cuda::Cuda::open(ordinal)?)))
    }

    /// The emulator, which this build does not have.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device), with the reason.
    #[cfg(not(all(feature = "emu", xtrain_emu)))]
    pub fn emulated(_: Schedule) -> Result<Gpu> {
        Err(crate::Error::Device { what: env!("XTRAIN_EMULATOR").into() })
    }

    /// The emulator, which this build does not have.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device), with the reason.
    #[cfg(not(all(feature = "emu", xtrain_emu)))]
    pub fn checked(schedule: Schedule) -> Result<Gpu> {
        Gpu::emulated(schedule)
    }

    fn over(launcher: Box<dyn Launcher>) -> Gpu {
        Gpu {
            shared: Arc::new(Shared {
                issue: Mutex::default(),
                launcher,
                memory: Memory::default(),
                indices: Indices::default(),
                counters: Counters::default(),
                queue: Queue::default(),
                done: Done::default(),
            }),
        }
    }

    /// What the device calls itself.
    pub fn name(&self) -> String {
        self.shared.launcher.name()
    }

    /// Whether it has the warpgroup products of sm_90.
    pub fn has_wgmma(&self) -> bool {
        self.shared.launcher.has_wgmma()
    }

    /// What it could do at most; none for the emulator, and where its driver does not tell.
    pub fn peak(&self) -> Option<Peak> {
        self.shared.launcher.peak()
    }

    /// Returns when all that was asked for is done.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for a kernel that failed meanwhile.
    pub fn wait(&self) -> Result<()> {
        self.submit_step()?;
        self.shared.launcher.wait()
    }

    /// What it has done so far.
    pub fn gpu_counters(&self) -> GpuCounters {
        let Shared { memory, queue, done, .. } = &*self.shared;
        let (counts, so_far) = (queue.counts(), |n: &AtomicU64| n.load(Ordering::Relaxed));
        GpuCounters {
            launches: so_far(&done.launches),
            graphs: counts.graphs,
            graph_node_updates: counts.graph_node_updates,
            uploaded: so_far(&done.uploaded),
            downloaded: so_far(&done.downloaded),
            syncs: so_far(&done.syncs),
            steps_without_upload: counts.flushes.saturating_sub(so_far(&done.sent_after)),
            kv_read: so_far(&done.kv_read),
            partials: so_far(&done.partials),
            allocations: memory.allocations(),
        }
    }

    /// Counts bytes of keys and values that an attention reads, and of partial results.
    pub(crate) fn attended(&self, read: usize, partials: usize) {
        self.shared.done.kv_read.fetch_add(read as u64, Ordering::Relaxed);
        self.shared.done.partials.fetch_add(partials as u64, Ordering::Relaxed);
    }

    /// Whether both are one device.
    pub(crate) fn same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Runs a kernel, after all that was asked for before; an empty grid runs nothing. It may wait until the host
    /// must see what it did: an error of its own comes then.
    ///
    /// # Safety
    /// `args` are what the kernel's signature asks for, and its pointers hold what the kernel reads and
    /// writes.
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
        // SAFETY: as promised by the caller. Memory outlives what waits: a block goes back to the device, and the host
        // writes to one that it took, only when those kernels have gone that were pushed before it was freed; nobody
        // pushes another that knows of it. The host writes to a live one where its owner knows that no kernel which
        // waits uses the place ([`Gpu::bring`]). Lists of indices and counters are renewed by the one thread that
        // issues operations: places that this step has used wait for a flush.
        unsafe { queue.push(&**launcher, call) }
    }

    /// Hands the device all that waits.
    fn flush(&self) -> Result<()> {
        self.shared.queue.flush(&*self.shared.launcher)
    }

    /// Asks the device for memory; what is free but of other sizes may be what is missing.
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let Shared { launcher, memory, .. } = &*self.shared;
        memory.allocate(&**launcher, bytes).or_else(|_| {
            self.flush()?;
            // what another thread's kernels know of stays, should it have pushed some since
            memory.free_all(&**launcher, self.shared.queue.counts().flushes);
            memory.allocate(&**launcher, bytes)
        })
    }

    /// Values of the host, brought to the device.
    pub(crate) fn upload<T: bytemuck::Pod>(&self, values: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = Buffer::quiet(self, bytes.len())?;
        self.send(buffer.at(), bytes)?;
        Ok(buffer)
    }

    /// Values of the host, brought to a place that no kernel of those that wait reads or writes.
    ///
    /// # Safety
    /// `to` is in a live buffer of this device that has room for them.
    pub(crate) unsafe fn bring<T: bytemuck::Pod>(&self, to: u64, values: &[T]) -> Result<()> {
        self.send(to, bytemuck::cast_slice(values))
    }

    fn send(&self, to: u64, bytes: &[u8]) -> Result<()> {
        let Shared { launcher, queue, done, .. } = &*self.shared;
        done.uploaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        done.sent_after.store(queue.counts().flushes, Ordering::Relaxed);
        launcher.upload(to, bytes)
    }

    /// Values of the device, brought to the host.
    pub(crate) fn download<T: bytemuck::Pod>(&self, buffer: &Buffer) -> Result<Vec<T>> {
        self.download_first(buffer, buffer.bytes() / size_of::<T>())
    }

    /// The first `n` values of a buffer that has as many, brought to the host.
    pub(crate) fn download_first<T: bytemuck::Pod>(&self, buffer: &Buffer, n: usize) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); n];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        assert!(bytes.len() <= buffer.bytes(), "{} bytes of {}", bytes.len(), buffer.bytes());
        self.end_step()?;
        self.shared.launcher.download(bytes, buffer.at())?;
        self.shared.done.downloaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.shared.done.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(values)
    }

    /// Hands the device all that waits, as one step of a loop; nobody waits for it.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for a kernel that cannot be launched.
    pub fn submit_step(&self) -> Result<()> {
        let _issue = self.issue();
        self.end_step()
    }

    /// [`Gpu::submit_step`] of a thread that holds the issue lock.
    pub(crate) fn end_step(&self) -> Result<()> {
        self.flush()?;
        self.shared.indices.submit_step();
        Ok(())
    }

    /// The issue lock. A backend operation holds it from its first list of indices to its last launch, so that no
    /// other thread renews those lists, or ends the step, in between. It is not reentrant.
    pub(crate) fn issue(&self) -> MutexGuard<'_, ()> {
        self.shared.issue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of whatever values: a kernel writes all of it.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer> {
        Buffer::take(self, bytes)
    }

    /// Memory of zeros.
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
