//! Device tensors and the operations on them. Every operation has one documented order of arithmetic
//! (`docs/numerics.md`), so its results are bit-identical for every batch, thread count, instruction set and backend.
//!
//! # Layers
//! A module imports modules of its own layer or of lower ones. No file imports a file that depends on it.
//!
//! | layer | modules |
//! |---|---|
//! | 8 | [`ops`]: checks the operands, then calls the device's backend. `testing`: helpers of tests |
//! | 7 | `dispatch`: maps a device to its backend. [`softmax`]: rows of logits in slices. [`sliced_adamw`]: an optimizer step of several processes. `gpu_peers`: copies between their GPUs |
//! | 6 | `reference`, `cpu`, `gpu`: the implementations of `Backend`. `host`: what `reference` and `cpu` share |
//! | 5 | `backend`: the trait `Backend`, one method per operation. `compose`: fused operations as their parts |
//! | 4 | `operands`: weights, attention masks, RoPE tables, and other operands that are not plain tensors |
//! | 3 | `tensor`: a shape and its values on a device |
//! | 2 | `device`: [`Device`] and the handles of the backends |
//! | 1 | `device::{pool, simd, recycle, gpu}`: worker threads, instruction sets, recycled memory, the GPU runtime |
//! | 0 | `dtype`, `error`, [`math`], `dd`, `portable`, [`rng`], `normal`, `rope_scaling`, [`faults`], `lock`, `huge_page_alloc` |
mod backend;
mod compose;
mod cpu;
mod dd;
mod device;
mod dispatch;
mod dtype;
mod error;
pub mod faults;
mod fma;
#[cfg(test)]
mod gates;
mod gpu;
mod gpu_peers;
mod host;
mod huge_page_alloc;
mod lock;
pub mod math;
mod normal;
mod operands;
pub mod ops;
mod portable;
mod reference;
pub mod rng;
mod rope_scaling;
pub mod sliced_adamw;
pub mod softmax;
mod sync;
mod tensor;
mod tensor_core;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
// a documentation test whose name reports the gates that were skipped
#[cfg(all(doctest, not(xtrain_emu)))]
include!(concat!(env!("OUT_DIR"), "/skipped_gates.rs"));

pub use device::gpu::{Gpu, GpuCounters, GpuInfo, GpuSurvey, Peak, ThreadSchedule, enumerate_gpus};
pub use device::simd::Simd;
pub use device::{Cpu, Device, Reference};
pub use dtype::{Dtype, Element, from_bf16, round_bf16, to_bf16};
pub use error::{DriverError, Error, Result};
pub use gpu::traffic::{KernelLaunch, LaunchLog, launch_recorder};
pub use gpu_peers::{GpuPeers, Sent, Transfer};
pub use huge_page_alloc::{HugePages, block_bytes};
pub use normal::{fill_normal, standard_normal};
pub use operands::{RopeTable, max_loss_logits};
pub use rope_scaling::{RopeScaling, Truncate, Yarn};
pub use tensor::{Stored, Tensor, Tensors};
pub use tensor_core::TensorCore;
