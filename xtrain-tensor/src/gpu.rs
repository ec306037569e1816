//! The GPU backend: the launchers of the kernels, and the implementation of
//! [`Backend`](crate::backend::Backend) by them. The same Rust runs on a CUDA device and on the emulator.
pub(crate) mod attention;
mod backend;
mod embedding;
mod finite;
mod fused;
mod kv;
mod linear;
mod loss;
mod norm;
mod optim;
mod pack;
mod pointwise;
mod rope;
mod rows;
mod sample;

pub(crate) use crate::device::gpu::{Arg, At, Buffer, Gpu, Grid, args};
#[cfg(all(test, feature = "emu", xtrain_emu))]
pub(crate) use crate::device::gpu::{kernel_names, mma_dot16, watch, watched};
