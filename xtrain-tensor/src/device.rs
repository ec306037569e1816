//! Where tensors live and who computes on them.
use std::sync::Arc;

use crate::cpu::{Pool, Simd};
use crate::recycle::Recycler;

/// A device. Cloning shares it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Device {
    /// This machine's processor.
    Cpu(Cpu),
}

/// A processor: its worker threads and its instruction set. Neither changes a bit of any result.
#[derive(Debug, Clone)]
pub struct Cpu {
    pub(crate) pool: Arc<Pool>,
    pub(crate) simd: Simd,
    pub(crate) recycler: Arc<Recycler>,
}

impl Device {
    /// The processor with one thread and the widest instructions it has.
    pub fn cpu() -> Device {
        Device::cpu_with(1, Simd::detect())
    }

    /// The processor with `threads` threads (at least one, the caller's among them) and the
    /// instructions `simd`. An instruction set that this machine lacks is replaced by the widest that
    /// it has.
    pub fn cpu_with(threads: usize, simd: Simd) -> Device {
        Device::Cpu(Cpu {
            pool: Arc::new(Pool::new(threads.max(1))),
            simd: simd.min(Simd::detect()),
            recycler: Arc::default(),
        })
    }

    /// Worker threads, the caller's among them.
    pub fn threads(&self) -> usize {
        let Device::Cpu(cpu) = self;
        cpu.pool.threads()
    }

    /// The instructions in use.
    pub fn simd(&self) -> Simd {
        let Device::Cpu(cpu) = self;
        cpu.simd
    }

    /// The processor.
    pub(crate) fn as_cpu(&self) -> &Cpu {
        let Device::Cpu(cpu) = self;
        cpu
    }

    /// The processor whose kernels run; none where the reference is to run.
    pub(crate) fn fast(&self) -> Option<&Cpu> {
        let Device::Cpu(cpu) = self;
        (cpu.simd > Simd::Reference).then_some(cpu)
    }
}
