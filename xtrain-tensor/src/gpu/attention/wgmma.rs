//! The attention kernels of Hopper (kernels/attention_wgmma.cu, attention_backward_wgmma.cu).
use crate::device::gpu::{Gpu, WgmmaUse};

/// The variant of a kernel for a head size that [`uses`] accepts.
macro_rules! sized {
    ($kernel:literal, $hd:expr) => {
        if $hd == 64 { concat!($kernel, "_hd64") } else { concat!($kernel, "_hd128") }
    };
}
pub(super) use sized;

/// Query vectors, or keys, of a tile.
pub(super) const ROWS: usize = 64;

/// Whether the device computes attention in bf16 with heads of this size by `wgmma`.
pub(super) fn uses(gpu: &Gpu, hd: usize) -> bool {
    gpu.wgmma() != WgmmaUse::Never && matches!(hd, 64 | 128)
}

/// Shared memory for this number of operands of 64 rows, aligned to 1024.
pub(super) fn shared(hd: usize, operands: usize) -> usize {
    2 * ROWS * hd * operands + 1024
}
