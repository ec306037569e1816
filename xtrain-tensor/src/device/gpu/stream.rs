//! The stream of a device: kernels and copies in order, their memory, and the activity counters.
#[cfg(all(test, xtrain_emu))]
use std::collections::BTreeMap;
use std::sync::Mutex;

use super::launch::{Arg, Call, Grid, Launcher};
use super::launch_options::LaunchOptions;
use super::memory::{Memory, size_class};
use super::queue::Queue;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::lock::lock;

/// A launcher with its queue and its memory pool.
pub(super) struct Stream {
    launcher: Box<dyn Launcher>,
    memory: Mutex<Memory>,
    queue: Mutex<Queue>,
    activity: Mutex<Activity>,
}

#[derive(Debug, Default)]
struct Activity {
    /// Those that neither the queue nor the memory pool keeps; the others are zero.
    counters: GpuCounters,
    /// Number of queue flushes before the last upload.
    flushes_at_upload: u64,
}

/// Activity counters of a GPU since it was opened. Subtract two snapshots with [`GpuCounters::since`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// Submissions of queued kernels since the last host-to-device copy: steps of a rollout that ran entirely on data
    /// already on the device.
    pub steps_without_upload: u64,
    /// Bytes of keys and values read by decode attention: the visible keys of each row, once per group of query
    /// heads.
    pub kv_read: u64,
    /// Bytes of partial results (one per chunk of 64 keys) that decode attention wrote and read back.
    pub partials: u64,
    /// Device memory allocations that the free lists could not serve.
    pub allocations: u64,
}

impl GpuCounters {
    /// Returns the difference from an earlier snapshot. `steps_without_upload` is not a difference: it counts from
    /// the last upload.
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

impl Stream {
    pub(super) fn new(launcher: Box<dyn Launcher>, options: LaunchOptions) -> Stream {
        let queue = Mutex::new(Queue::new(options));
        Stream { launcher, memory: Mutex::default(), queue, activity: Mutex::default() }
    }

    pub(super) fn launcher(&self) -> &dyn Launcher {
        &*self.launcher
    }

    #[cfg(all(test, xtrain_emu))]
    pub(super) fn launched_kernels(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.queue).launched.clone()
    }

    pub(super) fn counters(&self) -> GpuCounters {
        let allocations = lock(&self.memory).allocations;
        let (queue, activity) = (lock(&self.queue), lock(&self.activity));
        GpuCounters {
            graphs: queue.graphs,
            graph_node_updates: queue.graph_node_updates,
            steps_without_upload: queue.flushes.saturating_sub(activity.flushes_at_upload),
            allocations,
            ..activity.counters
        }
    }

    /// See [`Gpu::count_attention_bytes`](super::Gpu::count_attention_bytes).
    pub(super) fn count_attention_bytes(&self, read: usize, partials: usize) {
        let mut activity = lock(&self.activity);
        activity.counters.kv_read += read as u64;
        activity.counters.partials += partials as u64;
    }

    /// See [`Gpu::launch`](super::Gpu::launch).
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn launch(&self, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        lock(&self.activity).counters.launches += 1;
        let call = Call { kernel, grid, args };
        if self.launcher.exact() {
            // SAFETY: as promised by the caller.
            return unsafe { self.launcher.launch(call) };
        }
        // SAFETY: as promised by the caller. Memory outlives queued kernels: a freed block is returned to the device,
        // or written by the host, only after all kernels that were queued before it was freed have been submitted,
        // and no later kernel refers to it. The host writes to a live block only if no queued kernel uses that range
        // ([`Gpu::upload_into`](super::Gpu::upload_into)). Index lists and counters are replaced by the one thread
        // that issues operations; memory that the current step uses is overwritten only after a flush.
        unsafe { lock(&self.queue).push(&*self.launcher, call) }
    }

    pub(super) fn flush(&self) -> Result<()> {
        lock(&self.queue).flush(&*self.launcher)
    }

    /// Allocates device memory. On failure, returns all free blocks to the device and tries again.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64> {
        let launcher = self.launcher();
        let first = lock(&self.memory).allocate(launcher, bytes);
        first.or_else(|_| {
            self.flush()?;
            // blocks that kernels queued since the flush (by another thread) may use are kept
            let flushes = self.flushes();
            let mut memory = lock(&self.memory);
            if !faults::on(Fault::FreeBlocksKept) {
                memory.free_all(launcher, flushes);
            }
            memory.allocate(launcher, bytes)
        })
    }

    /// A block of at least `bytes` bytes. With `idle`, one that no queued kernel uses.
    pub(super) fn acquire(&self, bytes: usize, idle: bool) -> Result<u64> {
        if self.launcher.exact() {
            return self.allocate(bytes);
        }
        let block = size_class(bytes);
        let flushes = if idle { self.flushes() } else { u64::MAX };
        let found = lock(&self.memory).find(block, flushes);
        found.map_or_else(|| self.allocate(block), Ok)
    }

    /// The size of the block that [`Stream::acquire`] allocates.
    pub(super) fn allocated_bytes(&self, bytes: usize) -> usize {
        if self.launcher.exact() { bytes } else { size_class(bytes) }
    }

    pub(super) fn release(&self, at: u64, bytes: usize) {
        if self.launcher.exact() {
            return self.launcher.free(at);
        }
        let from = lock(&self.queue).idle_from_flush();
        lock(&self.memory).insert(size_class(bytes), at, from);
    }

    pub(super) fn copy_to_device(&self, to: u64, bytes: &[u8]) -> Result<()> {
        let flushes = self.flushes();
        let mut activity = lock(&self.activity);
        activity.counters.uploaded += bytes.len() as u64;
        activity.flushes_at_upload = flushes;
        drop(activity);
        self.launcher.upload(to, bytes)
    }

    fn flushes(&self) -> u64 {
        lock(&self.queue).flushes
    }

    /// Copies from the device after all queued kernels, which have been submitted.
    pub(super) fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.launcher.download(to, from)?;
        let mut activity = lock(&self.activity);
        activity.counters.downloaded += to.len() as u64;
        activity.counters.syncs += 1;
        Ok(())
    }

    /// Drops all queued kernels and cached graphs.
    pub(super) fn close(&self) {
        lock(&self.queue).close();
    }

    pub(super) fn free_all(&self) {
        lock(&self.memory).free_all(self.launcher(), u64::MAX);
    }
}

#[cfg(test)]
mod tests;
