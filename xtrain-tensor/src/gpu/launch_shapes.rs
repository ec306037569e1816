//! What recorded launches compute, from the names of their kernels and their arguments.
use crate::device::gpu::{RecordedLaunch, RecordedOperand};
use crate::faults::{self, Fault};

/// The name of an operation, without dtypes and tile sizes.
pub(super) fn operation(kernel: &str) -> &str {
    let dtype = ["_f32", "_bf16", "_2", "_4", "_16"].iter().filter_map(|suffix| kernel.find(suffix)).min();
    &kernel[..dtype.unwrap_or(kernel.len())]
}

/// Bytes of an element of the compute dtype.
pub(super) fn element(kernel: &str) -> u64 {
    if kernel.contains("_bf16") { 2 } else { 4 }
}

/// The words that the host uploaded for an operand; none, if it uploaded none.
pub(super) fn list(operand: Option<&RecordedOperand>) -> &[u32] {
    operand.and_then(|x| x.list.as_deref()).unwrap_or_default()
}

/// The output tiles of a product by `wgmma`. `None`: another kernel, each of whose blocks computes one tile.
pub(super) fn tiles(launch: &RecordedLaunch) -> Option<u64> {
    let n = |at: usize| u64::from(launch.numbers[at]);
    let of = |at: usize, side| n(at).div_ceil(side);
    if !launch.kernel.ends_with("_wgmma") || faults::on(Fault::PersistentTilesNotCounted) {
        return None;
    }
    Some(match operation(launch.kernel) {
        "linears" => of(0, 128) * (of(1, 128) + of(2, 128) + of(3, 128)),
        "swiglu" => of(0, 128) * of(1, 64),
        "linear_dx" => of(3, 128) * of(4, 128),
        "linear_dx_swiglu" => of(0, 128) * of(2, 128),
        "linear_dw" => n(1),
        _ => of(0, 128) * of(1, 128),
    })
}

/// The rows that `linear_dw` sums over: the end of the last chunk, by `wgmma` the third number of each sample.
pub(super) fn rows_of_samples(launch: &RecordedLaunch) -> u64 {
    let list = list(launch.operands.get(1));
    match launch.kernel.ends_with("_wgmma") {
        true => list.iter().skip(2).step_by(3).map(|&rows| u64::from(rows)).sum(),
        false => list.last().map_or(0, |&rows| u64::from(rows)),
    }
}
