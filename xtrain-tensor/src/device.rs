//! Where tensors live and who computes on them.
use std::fmt;
use std::sync::Arc;

use crate::cpu::{Pool, Simd};
use crate::gpu::{Gpu, GpuCounters, Peak, Schedule};
use crate::recycle::Recycler;
use crate::{Error, Result};

/// A device. Cloning shares it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Device {
    /// This machine's processor.
    Cpu(Cpu),
    /// A CUDA device, or its emulation.
    Gpu(Gpu),
}

/// A processor: its worker threads and its instruction set. Neither changes a bit of any result.
#[derive(Debug, Clone)]
pub struct Cpu {
    pub(crate) pool: Arc<Pool>,
    pub(crate) simd: Simd,
    pub(crate) recycler: Arc<Recycler>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu(cpu) if cpu.pool.threads() == 1 => write!(f, "{}, 1 thread", cpu.simd),
            Device::Cpu(cpu) => write!(f, "{}, {} threads", cpu.simd, cpu.pool.threads()),
            Device::Gpu(gpu) => f.write_str(&gpu.name()),
        }
    }
}

impl Device {
    /// The processor with one thread and the widest instructions it has.
    pub fn cpu() -> Device {
        Device::cpu_with(1, Simd::detect())
    }

    /// The processor with `threads` threads (at least one, the caller's among them; fewer where the system refuses
    /// more: no number depends on it) and the instructions `simd`. An instruction set that this machine lacks is
    /// replaced by the widest narrower one that it has.
    pub fn cpu_with(threads: usize, simd: Simd) -> Device {
        Device::Cpu(Cpu {
            pool: Arc::new(Pool::new(threads.max(1))),
            simd: simd.or_narrower(),
            recycler: Arc::default(),
        })
    }

    /// The GPU of that number: see [`Gpu::cuda`].
    ///
    /// # Errors
    /// [`Error::Device`] where the driver, the device or the kernels for it are missing.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        Gpu::cuda(ordinal).map(Device::Gpu)
    }

    /// The emulated GPU: see [`Gpu::emulated`].
    ///
    /// # Errors
    /// [`Error::Device`] where this build has no emulator.
    pub fn emulated(schedule: Schedule) -> Result<Device> {
        Gpu::emulated(schedule).map(Device::Gpu)
    }

    /// The emulated GPU with every access to memory checked: see [`Gpu::checked`].
    ///
    /// # Errors
    /// [`Error::Device`] where this build has no emulator.
    pub fn checked(schedule: Schedule) -> Result<Device> {
        Gpu::checked(schedule).map(Device::Gpu)
    }

    /// Threads of this processor that compute, the caller's among them.
    pub fn threads(&self) -> usize {
        match self {
            Device::Cpu(cpu) => cpu.pool.threads(),
            Device::Gpu(_) => 1,
        }
    }

    /// What a GPU has done since it was opened; none on a processor.
    pub fn gpu_counters(&self) -> Option<GpuCounters> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(gpu) => Some(gpu.gpu_counters()),
        }
    }

    /// What a GPU could do at most; none on a processor, on the emulator, and where the driver does not tell.
    pub fn peak(&self) -> Option<Peak> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(gpu) => gpu.peak(),
        }
    }

    /// Hands a GPU all that was asked for, as one step of a loop, and does not wait; a processor never puts it off.
    ///
    /// # Errors
    /// [`Error::Device`] for a kernel that cannot be launched.
    pub fn submit_step(&self) -> Result<()> {
        match self {
            Device::Cpu(_) => Ok(()),
            Device::Gpu(gpu) => gpu.submit_step(),
        }
    }

    /// Returns when all that was asked for is done; on a processor it always is.
    ///
    /// # Errors
    /// [`Error::Device`] for a kernel that failed meanwhile.
    pub fn wait(&self) -> Result<()> {
        match self {
            Device::Cpu(_) => Ok(()),
            Device::Gpu(gpu) => gpu.wait(),
        }
    }

    /// The instructions in use; none on a GPU.
    pub fn simd(&self) -> Option<Simd> {
        match self {
            Device::Cpu(cpu) => Some(cpu.simd),
            Device::Gpu(_) => None,
        }
    }

    /// The processor.
    ///
    /// # Errors
    /// [`Error::Device`] on a GPU.
    pub(crate) fn as_cpu(&self) -> Result<&Cpu> {
        match self {
            Device::Cpu(cpu) => Ok(cpu),
            Device::Gpu(gpu) => {
                Err(Error::Device { what: format!("an operation without a kernel for {}", gpu.name()) })
            }
        }
    }

    /// The processor whose kernels run; none where the reference is to run.
    pub(crate) fn fast(&self) -> Option<&Cpu> {
        match self {
            Device::Cpu(cpu) => (cpu.simd > Simd::Reference).then_some(cpu),
            Device::Gpu(_) => None,
        }
    }
}
