//! The CPU device: worker threads, lanes of 32 values, and the kernels over them.
mod pool;
mod simd;

pub(crate) use pool::Pool;
pub use simd::Simd;
