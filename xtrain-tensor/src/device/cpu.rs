//! The handles of the two backends that compute on the host.
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::pool::Pool;
use super::recycle::Recycler;
use super::simd::Simd;
use crate::tensor_core::TensorCore;

/// The SIMD CPU backend: its worker threads and its instruction set. Neither changes a bit of any result.
#[derive(Debug, Clone)]
pub struct Cpu {
    pub(crate) pool: Arc<Pool>,
    pub(crate) simd: Simd,
    pub(crate) recycler: Arc<Recycler>,
    /// The number of matrices that were packed for products, each direction counted.
    pub(crate) packed: Arc<AtomicU64>,
}

impl Cpu {
    /// `threads` threads (at least one, including the caller's) and the instruction set `simd`. If this machine lacks
    /// the set, the widest narrower one is used.
    pub(crate) fn new(threads: usize, simd: Simd) -> Cpu {
        Cpu {
            pool: Arc::new(Pool::new(threads.max(1))),
            simd: simd.or_narrower(),
            recycler: Arc::default(),
            packed: Arc::default(),
        }
    }
}

/// The reference backend: one thread and scalar loops that follow docs/numerics.md step by step.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    /// The tensor core of bf16 products. `None`: those of the CPU.
    pub(crate) tensor_core: Option<TensorCore>,
    pub(crate) recycler: Arc<Recycler>,
}
