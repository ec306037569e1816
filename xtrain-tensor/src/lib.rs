//! Device tensors and the operations on them, each in one documented order of arithmetic
//! (`docs/numerics.md`): the same bits from any batch, thread count and instruction set.
mod backend;
mod compose;
mod cpu;
mod dd;
mod device;
mod dispatch;
mod dtype;
mod error;
pub mod faults;
#[cfg(test)]
mod gates;
mod gpu;
mod host_ring;
mod huge_page_alloc;
pub mod math;
mod normal;
mod operands;
pub mod ops;
mod portable;
mod reference;
pub mod rng;
mod rope_scaling;
pub mod softmax;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use device::gpu::{Gpu, GpuCounters, GpuInfo, GpuSurvey, Peak, Schedule, enumerate_gpus};
pub use device::simd::Simd;
pub use device::{Cpu, Device, Reference};
pub use dtype::{Dtype, Element, from_bf16, round_bf16, to_bf16};
pub use error::{Error, Result};
pub use huge_page_alloc::HugePages;
pub use normal::{fill_normal, standard_normal};
pub use operands::RopeTable;
pub use rope_scaling::{RopeScaling, Truncate, Yarn};
pub use tensor::{Stored, Tensor};
