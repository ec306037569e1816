//! The CPU device: worker threads, lanes of 32 values, and the kernels over them.
pub(crate) mod gemm;
pub(crate) mod lanes;
mod pool;
mod simd;

pub(crate) use pool::{Disjoint, Pool};
pub use simd::Simd;
