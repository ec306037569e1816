//! The CPU device: worker threads, lanes of 32 values, and the kernels over them.
pub(crate) mod attention;
pub(crate) mod lanes;
mod pool;
mod simd;

pub(crate) use pool::{Disjoint, Pool};
pub use simd::Simd;
