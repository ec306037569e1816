//! Devices: where tensors are stored and which backend computes on them.
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod cpu;
pub(crate) mod gpu;
pub(crate) mod packed_buffer;
pub(crate) mod pool;
pub(crate) mod recycle;
pub(crate) mod simd;
#[cfg(target_arch = "x86_64")]
mod vendor;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use cpu::{Cpu, Reference};
pub(crate) use gpu::Gpu;

use crate::dtype::Dtype;
use crate::error::Result;
use crate::tensor_core::TensorCore;
use gpu::{Emulation, EmulatorBuild, GpuCounters, Peak, ThreadSchedule};
use simd::Simd;

/// A device. Cloning shares it.
#[derive(Clone)]
#[non_exhaustive]
pub enum Device {
    /// The CPU with the reference backend: slow, and bit-identical to all other backends by definition.
    Reference(Reference),
    /// The CPU with SIMD kernels and worker threads.
    Cpu(Cpu),
    /// A CUDA device, or the emulator.
    Gpu(Gpu),
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Reference(Reference { tensor_core: Some(core), .. }) => {
                write!(f, "reference of {core:?}")
            }
            Device::Reference(_) => f.write_str("reference"),
            Device::Cpu(cpu) if cpu.pool.threads() == 1 => write!(f, "{}, 1 thread", cpu.simd),
            Device::Cpu(cpu) => write!(f, "{}, {} threads", cpu.simd, cpu.pool.threads()),
            Device::Gpu(gpu) => f.write_str(&gpu.name()),
        }
    }
}

impl Device {
    /// The CPU with the reference backend.
    pub fn reference() -> Device {
        Device::Reference(Reference::default())
    }

    /// The reference backend with bf16 products in the order of a GPU with this tensor core, and otherwise as
    /// [`Device::reference`]. Its results are those of the GPU backend, bit for bit.
    pub fn reference_of(tensor_core: TensorCore) -> Device {
        Device::Reference(Reference { tensor_core: Some(tensor_core), ..Reference::default() })
    }

    /// The CPU with one thread and the widest instruction set of this machine. [`Device::cpu_all_cores`] is faster for
    /// all but the smallest models.
    pub fn cpu() -> Device {
        Device::cpu_with(1, Simd::detect())
    }

    /// The CPU with one thread for each core that this process may use, and the widest instruction set of this machine.
    pub fn cpu_all_cores() -> Device {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Device::cpu_with(cores, Simd::detect())
    }

    /// The CPU with `threads` threads (at least one, including the caller's) and the instruction set `simd`.
    ///
    /// If the system cannot start that many threads, fewer are used. If this machine lacks the instruction set, the
    /// widest narrower one is used. No result depends on either.
    pub fn cpu_with(threads: usize, simd: Simd) -> Device {
        Device::Cpu(Cpu::new(threads, simd))
    }

    /// The CUDA device with this ordinal.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is no driver, no such device, or no kernel image for it in
    /// this build.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        Gpu::cuda(ordinal).map(Device::Gpu)
    }

    /// The emulated GPU: the kernels' source compiled for the CPU. `schedule` is the order in which CUDA threads run.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if this build has no emulator, or the CPU (x86-64) lacks AVX2 or FMA.
    pub fn emulated(schedule: ThreadSchedule) -> Result<Device> {
        Device::emulating(Emulation::new(schedule, EmulatorBuild::Plain))
    }

    /// As [`Device::emulated`], with every memory access checked: bounds, alignment, uninitialized reads and data
    /// races. A fault ends the launch with an error that names kernel, source line and thread. Several times slower.
    ///
    /// # Errors
    /// As [`Device::emulated`].
    pub fn checked(schedule: ThreadSchedule) -> Result<Device> {
        Device::emulating(Emulation::new(schedule, EmulatorBuild::Checked))
    }

    pub(crate) fn emulating(emulation: Emulation) -> Result<Device> {
        Gpu::emulated(emulation).map(Device::Gpu)
    }

    /// The number of host threads that compute, including the caller's. 1 for the reference and on a GPU.
    pub fn threads(&self) -> usize {
        self.as_cpu().map_or(1, |cpu| cpu.pool.threads())
    }

    /// The number of bytes that a new tensor of `len` elements allocates. On the CPU `len` is rounded up to one of eight
    /// sizes per power of two, so that later tensors of similar lengths can use the memory; on a GPU the number of bytes
    /// is, and to a multiple of 256.
    pub fn allocated_bytes(&self, len: usize, dtype: Dtype) -> usize {
        match self {
            Device::Gpu(gpu) => gpu.allocated_bytes(len.saturating_mul(dtype.bytes())),
            Device::Reference(_) | Device::Cpu(_) => recycle::class_size(len).saturating_mul(dtype.bytes()),
        }
    }

    /// The activity counters of a GPU since it was opened. `None`: the device is a CPU.
    pub fn gpu_counters(&self) -> Option<GpuCounters> {
        self.as_gpu().map(Gpu::gpu_counters)
    }

    /// The number of matrices that the SIMD CPU backend has packed from all their values, each direction counted.
    /// `None`: the reference or a GPU.
    pub fn packed_matrices(&self) -> Option<u64> {
        self.as_cpu().map(|cpu| cpu.packed.load(Ordering::Relaxed))
    }

    /// The peak throughput of a GPU. `None`: a CPU, the emulator, or a driver that does not report it.
    pub fn peak(&self) -> Option<Peak> {
        self.as_gpu().and_then(Gpu::peak)
    }

    /// Submits the queued kernels of a GPU as one step of a loop, without synchronizing. A sequence of kernels that
    /// repeats is submitted as a CUDA graph. Does nothing on a CPU.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a kernel cannot be launched.
    pub fn submit_step(&self) -> Result<()> {
        self.as_gpu().map_or(Ok(()), Gpu::submit_step)
    }

    /// Submits the queued kernels of a GPU, without synchronizing; the step goes on. The GPU then works while further
    /// operations are issued. Does nothing on a CPU.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a kernel cannot be launched.
    pub fn submit(&self) -> Result<()> {
        self.as_gpu().map_or(Ok(()), Gpu::submit)
    }

    /// Synchronizes: returns when all queued work of a GPU is done. Does nothing on a CPU. An operation that is
    /// deferred until its result is read (`zeros`, `rms_norm` of few rows) is not queued and does not run.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a kernel failed.
    pub fn wait(&self) -> Result<()> {
        self.as_gpu().map_or(Ok(()), Gpu::wait)
    }

    /// The instruction set of the SIMD CPU backend. `None`: the reference or a GPU.
    pub fn simd(&self) -> Option<Simd> {
        self.as_cpu().map(|cpu| cpu.simd)
    }

    /// Whether both are handles of one device, with the same threads and memory.
    pub fn is(&self, other: &Device) -> bool {
        match (self, other) {
            (Device::Reference(a), Device::Reference(b)) => Arc::ptr_eq(&a.recycler, &b.recycler),
            (Device::Cpu(a), Device::Cpu(b)) => Arc::ptr_eq(&a.recycler, &b.recycler),
            (Device::Gpu(a), Device::Gpu(b)) => a.same(b),
            _ => false,
        }
    }

    pub(crate) fn as_cpu(&self) -> Option<&Cpu> {
        if let Device::Cpu(cpu) = self { Some(cpu) } else { None }
    }

    fn as_gpu(&self) -> Option<&Gpu> {
        if let Device::Gpu(gpu) = self { Some(gpu) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, testing};

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn the_allocated_bytes_of_a_gpu_are_those_of_its_blocks() {
        let schedule = ThreadSchedule::Forward;
        let [pooled, exact] = [testing::emulated(schedule), testing::checked(schedule)];
        for (len, bytes) in [(0, 256), (1, 256), (64, 256), (65, 512), (1025, 5120), (1 << 20, 1 << 22)] {
            assert_eq!(pooled.allocated_bytes(len, Dtype::F32), bytes, "{len} elements");
            assert_eq!(exact.allocated_bytes(len, Dtype::F32), 4 * len);
            assert_eq!(pooled.allocated_bytes(2 * len, Dtype::BF16), bytes, "{len} pairs");
        }
        for device in [&pooled, &exact, &Device::cpu()] {
            assert_eq!(device.allocated_bytes(usize::MAX, Dtype::F32), usize::MAX, "{device}");
        }
        // a block of this size class serves a tensor that fills it, and no larger one
        let allocations = || pooled.gpu_counters().unwrap().allocations;
        let new = |bytes: usize| Tensor::zeros(&pooled, &[bytes / 4], Dtype::F32).unwrap();
        drop(new(4100));
        let before = allocations();
        drop(new(pooled.allocated_bytes(1025, Dtype::F32)));
        assert_eq!(allocations(), before);
        drop(new(pooled.allocated_bytes(1025, Dtype::F32) + 4));
        assert_eq!(allocations(), before + 1);
    }
}
