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
            (Dtype::BF16 | Dtype::F32, got) | (got, _) => {
                Err($crate::Error::Dtype { op: $op, want: "f32 or bf16", got })
            }
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

#[cfg(test)]
mod tests {
    use crate::{Dtype, Error};

    #[test]
    fn the_error_of_a_missing_kernel_has_the_dtype_that_none_takes() {
        let of = |input, output| -> Result<&str, Error> { kernel_of!("cast", input, output) };
        assert_eq!(of(Dtype::BF16, Dtype::F32), Ok("cast_bf16_f32"));
        for (input, output) in [(Dtype::F32, Dtype::U32), (Dtype::BF16, Dtype::U32), (Dtype::U32, Dtype::F32)]
        {
            let error = Error::Dtype { op: "cast", want: "f32 or bf16", got: Dtype::U32 };
            assert_eq!(of(input, output), Err(error));
        }
    }
}
