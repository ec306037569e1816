//! The CPU device: worker threads, lanes of 32 values, and the kernels over them.
pub(crate) mod gemm;
pub(crate) mod lanes;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod pointwise;
mod pool;
pub(crate) mod rope;
mod simd;
pub(crate) mod softmax;
pub(crate) mod value;

pub(crate) use crate::device::Cpu;
pub(crate) use pool::{Disjoint, Pool};
pub use simd::Simd;
