//! The SIMD CPU backend: lanes of 32 values, the kernels over them, and the implementation of
//! [`Backend`](crate::backend::Backend) by those kernels.
mod attention;
mod backend;
mod embedding;
pub(crate) mod gemm;
pub(crate) mod gemm_bf16;
pub(crate) mod integer_weights;
pub(crate) mod lanes;
mod linear;
mod loss;
pub(crate) mod masked_softmax;
pub(crate) mod norm;
pub(crate) mod optim;
mod pack;
pub(crate) mod pointwise;
pub(crate) mod rope;
pub(crate) mod rowsum;
mod scratch;
pub(crate) mod softmax;
pub(crate) mod tempered;
pub(crate) mod value;

pub(crate) use crate::device::Cpu;
pub(crate) use crate::device::pool::Disjoint;
pub(crate) use crate::device::simd::Simd;

/// Elements per work item of an elementwise operation.
const GRAIN: usize = 8192;

fn rows_per_part(width: usize) -> usize {
    (GRAIN / width.max(1)).max(1)
}
