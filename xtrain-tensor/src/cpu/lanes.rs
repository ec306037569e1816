//! The 32 lanes of docs/numerics.md as one value, whatever the register width.
//!
//! A kernel is written once over [`Lanes`] and run through [`dispatch`], which compiles it for each instruction set.
//! Every operation is one IEEE operation per lane, so all instruction sets give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod instructions;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod reg;
mod vector;

use super::Simd;
pub(crate) use reg::{LANES, Reg};
pub(crate) use vector::{Kernel, Lanes};

/// Runs `kernel` with the instruction set `simd`, or with the widest narrower one of this machine.
#[inline]
pub(crate) fn dispatch<Out, K: Kernel<Out>>(simd: Simd, kernel: K) -> Out {
    #[cfg(target_arch = "x86_64")]
    {
        if simd >= Simd::Avx512
            && let Some(l) = avx512::Avx512::detect()
        {
            return l.enter(kernel);
        }
        if simd >= Simd::Avx2
            && let Some(l) = avx2::Avx2::detect()
        {
            return l.enter(kernel);
        }
    }
    #[cfg(target_arch = "aarch64")]
    if simd >= Simd::Neon {
        return kernel.run(neon::Neon);
    }
    let _ = simd;
    kernel.run(portable::Portable)
}

/// Runs a kernel that is reached with AVX-512 only. It is compiled for no other instruction set.
///
/// # Panics
/// If the machine has no AVX-512F.
#[cfg(target_arch = "x86_64")]
pub(crate) fn with_avx512<K: Kernel>(kernel: K) {
    avx512::Avx512::detect().expect("AVX-512F").enter(kernel)
}

#[cfg(test)]
mod tests;
