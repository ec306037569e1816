//! The CPU device: worker threads, lanes of 32 values, and the kernels over them.
pub(crate) mod gemm;
pub(crate) mod gemm_bf16;
pub(crate) mod lanes;
mod packed;
mod pool;
mod scratch;
mod simd;

pub(crate) use packed::Packed;
pub(crate) use pool::{Disjoint, Pool};
pub use simd::Simd;
