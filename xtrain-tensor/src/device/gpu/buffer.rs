//! Allocations in device memory, copies to and from them, and the deferred operations that write them.
use std::any::Any;
use std::fmt::Debug;
use std::sync::Mutex;

use super::handle::Gpu;
use super::launch::{At, Grid, args};
use crate::error::Result;
use crate::lock::lock;

/// Grid of a kernel that strides over `bytes` bytes, 16 bytes per thread and iteration. Empty for 0 bytes.
fn grid_over(bytes: usize) -> Grid {
    Grid::blocks([bytes.div_ceil(16 * 256).min(4096), 1, 1], 256)
}

/// An operation whose kernel is not queued yet.
///
/// The kernel is queued when the buffer's address is first read. An operation whose input is deferred may queue a
/// fused kernel instead; the result is bit-identical. The deferred operation holds clones of its inputs. A tensor
/// that shares its buffer is copied before it is changed in place, so these inputs keep their values.
pub(crate) trait Deferred: Any + Debug + Send + Sync {
    /// Queues the kernel that writes the buffer at `to`.
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()>;
}

/// Zeros in a whole buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zeros {
    bytes: usize,
}

impl Deferred for Zeros {
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()> {
        // SAFETY: a buffer of `bytes` bytes; blocks begin at multiples of 16.
        unsafe { gpu.launch("zero_bytes", grid_over(self.bytes), args![to, self.bytes as u64]) }
    }
}

/// An allocation in device memory. Dropping it returns the block to the pool.
#[derive(Debug)]
pub(crate) struct Buffer {
    at: u64,
    bytes: usize,
    home: Gpu,
    /// The deferred operation that writes the buffer. `None`: its kernel has been queued.
    deferred: Mutex<Option<Box<dyn Deferred>>>,
}

impl Buffer {
    fn new(home: &Gpu, bytes: usize, idle: bool) -> Result<Buffer> {
        let at = home.stream().acquire(bytes, idle)?;
        Ok(Buffer { at, bytes, home: home.clone(), deferred: Mutex::default() })
    }

    /// Acquires a block that no queued kernel uses, so the host may write to it immediately. Work queued by other
    /// threads cannot use a free block: only its owner can pass its address to a kernel.
    pub(crate) fn acquire_idle(home: &Gpu, bytes: usize) -> Result<Buffer> {
        Buffer::new(home, bytes, true)
    }

    /// The device address.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The device address as a kernel argument.
    pub(crate) fn arg(&self) -> At {
        At(self.at)
    }

    /// Sets the operation that writes the buffer when it is first read.
    pub(crate) fn defer(&self, op: impl Deferred) {
        *lock(&self.deferred) = Some(Box::new(op));
    }

    pub(crate) fn run_deferred(&self) -> Result<()> {
        let mut deferred = lock(&self.deferred);
        if let Some(op) = &*deferred {
            op.launch(&self.home, self.arg())?;
            *deferred = None;
        }
        Ok(())
    }

    /// Returns the deferred operation if it is a `T`.
    pub(crate) fn deferred<T: Deferred + Clone>(&self) -> Option<T> {
        let deferred = lock(&self.deferred);
        let op: &dyn Any = &**deferred.as_ref()?;
        op.downcast_ref::<T>().cloned()
    }

    /// Drops the deferred operation: a fused kernel that writes the buffer has been queued.
    pub(crate) fn written(&self) {
        *lock(&self.deferred) = None;
    }

    pub(crate) fn home(&self) -> &Gpu {
        &self.home
    }

    pub(crate) fn duplicate(&self) -> Result<Buffer> {
        let copy = self.home.buffer(self.bytes)?;
        let args = args![copy.arg(), self.arg(), self.bytes as u64];
        // SAFETY: two buffers of `bytes` bytes each; blocks begin at multiples of 16.
        unsafe { self.home.launch("copy_bytes", grid_over(self.bytes), args)? };
        Ok(copy)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.stream().release(self.at, self.bytes);
    }
}

impl Gpu {
    /// Copies host values to a new device buffer.
    pub(crate) fn upload<T: bytemuck::Pod>(&self, values: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = Buffer::acquire_idle(self, bytes.len())?;
        self.stream().copy_to_device(buffer.at(), bytes)?;
        Ok(buffer)
    }

    /// Copies host values to an existing allocation.
    ///
    /// # Safety
    /// `to` is inside a live buffer of this device with enough room, and no queued kernel reads or writes that range.
    pub(crate) unsafe fn upload_into<T: bytemuck::Pod>(&self, to: u64, values: &[T]) -> Result<()> {
        self.stream().copy_to_device(to, bytemuck::cast_slice(values))
    }

    /// Copies a buffer to the host. Synchronizes.
    pub(crate) fn download<T: bytemuck::Pod>(&self, buffer: &Buffer) -> Result<Vec<T>> {
        self.download_first(buffer, buffer.bytes / size_of::<T>())
    }

    /// Copies the first `n` values of a buffer to the host. Synchronizes.
    pub(crate) fn download_first<T: bytemuck::Pod>(&self, buffer: &Buffer, n: usize) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); n];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        assert!(bytes.len() <= buffer.bytes, "{} bytes of {}", bytes.len(), buffer.bytes);
        self.end_step()?;
        self.stream().download(bytes, buffer.at())?;
        Ok(values)
    }

    /// Returns uninitialized device memory; a kernel must write all of it before it is read.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer> {
        Buffer::new(self, bytes, false)
    }

    /// Zeros. Their kernel is queued at once.
    pub(crate) fn zeros(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.deferred_zeros(bytes)?;
        buffer.run_deferred()?;
        Ok(buffer)
    }

    /// Zeros, whose kernel is queued when they are first read, unless an accumulation writes the buffer before.
    pub(crate) fn deferred_zeros(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.buffer(bytes)?;
        buffer.defer(Zeros { bytes });
        Ok(buffer)
    }
}
