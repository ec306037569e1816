//! The SIMD CPU backend: a thread pool, an abstraction of 32 SIMD lanes, and the kernels built on them.
pub(crate) mod attention;
pub(crate) mod gemm;
pub(crate) mod gemm_bf16;
pub(crate) mod heads;
pub(crate) mod lanes;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod packed;
pub(crate) mod pointwise;
mod pool;
pub(crate) mod rope;
pub(crate) mod rowsum;
mod scratch;
mod simd;
pub(crate) mod softmax;
pub(crate) mod value;

pub(crate) use crate::device::Cpu;
pub(crate) use packed::Packed;
pub(crate) use pool::{Disjoint, Pool};
pub use simd::Simd;
