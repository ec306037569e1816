//! Device tensors and the operations on them, each in one documented order of arithmetic
//! (`docs/numerics.md`): the same bits from any batch, thread count and instruction set.
mod cpu;
mod dd;
mod device;
mod dtype;
mod error;
pub mod faults;
#[cfg(test)]
mod gates;
mod gpu;
pub mod math;
mod normal;
pub mod ops;
mod pages;
mod portable;
mod recycle;
mod reference;
pub mod rng;
mod rope_scaling;
mod rope_table;
pub mod softmax;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use cpu::Simd;
pub use device::{Cpu, Device};
pub use dtype::{Dtype, Element, from_bf16, round_bf16, to_bf16};
pub use error::{Error, Result};
pub use gpu::{Gpu, GpuCounters, GpuInfo, GpuSurvey, Peak, Schedule, enumerate_gpus};
pub use normal::{fill_normal, standard_normal};
pub use pages::HugePages;
pub use rope_scaling::{RopeScaling, Truncate, Yarn};
pub use rope_table::RopeTable;
pub use tensor::{Stored, Tensor};
