//! The GPU backend: the launchers of the kernels, and the implementation of
//! [`Backend`](crate::backend::Backend) by them. The same Rust runs on a CUDA device and on the emulator.
/// The kernel `<op>_<input>_<output>` for these dtypes, f32 or bf16.
macro_rules! kernel_of {
    ($op:literal, $input:expr, $output:expr) => {
        match ($input, $output) {
            (Dtype::BF16, Dtype::BF16) => Ok(concat!($op, "_bf16_bf16")),
            (Dtype::BF16, Dtype::F32) => Ok(concat!($op, "_bf16_f32")),
            (Dtype::F32, Dtype::BF16) => Ok(concat!($op, "_f32_bf16")),
            (Dtype::F32, Dtype::F32) => Ok(concat!($op, "_f32_f32")),
            (got, _) => Err($crate::Error::Dtype { op: $op, want: "f32 or bf16", got }),
        }
    };
}

pub(crate) mod attention;
mod backend;
mod deferred;
mod embedding;
mod finite;
mod fused;
mod heads;
pub(crate) mod int8;
mod kv;
mod latency;
mod launch_shapes;
pub(crate) mod linear;
pub(crate) mod loss;
mod norm;
pub(crate) mod optim;
pub(crate) mod pack;
mod pointwise;
mod rope;
pub(crate) mod rows;
pub(crate) mod sample;
pub(crate) mod traffic;

pub(crate) use crate::device::gpu::{Arg, At, Buffer, Deferred, Gpu, Grid, args};
#[cfg(all(test, feature = "emu", xtrain_emu))]
pub(crate) use crate::device::gpu::{kernel_names, watch, watched};
