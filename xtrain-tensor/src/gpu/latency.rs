//! The latency chain of recorded launches: how often a block waits for values from memory before it can issue the next
//! accesses. Counted from the sources of the kernels, for one block, and without waits for other blocks. The counts of
//! products and of decode attention follow their loops; other kernels have the accesses before and after one pass over
//! their operands.
use super::launch_shapes::{operation, rows_of_samples, tiles};
use crate::device::gpu::RecordedLaunch;
use crate::faults::{self, Fault};

/// Accesses of the blocks that share a result: the counter, then the partial results of the others.
const MERGE: u64 = 2;

/// Dependent round trips to memory of a block of this launch.
pub(super) fn round_trips(launch: &RecordedLaunch) -> u64 {
    let n = |at: usize| u64::from(launch.numbers[at]);
    let outs = |at: usize| n(at) + n(at + 1) + n(at + 2);
    match operation(launch.kernel) {
        // the residual or the bias is read by the epilogue
        "linear" => stages(launch, n(2)) + 1,
        "linears" => stages(launch, n(4)),
        "swiglu" => stages(launch, n(2)),
        "linear_dx" => stages(launch, outs(0)),
        // the epilogue reads gate and up
        "linear_dx_swiglu" => stages(launch, n(1)) + 1,
        // the table of products
        "linear_dw" => 1 + stages(launch, rows_of_samples(launch)),
        // in bf16 the residual is on the way with the rows
        "linear_skinny" | "linear_gemv" => skinny(launch, n(2)) + u64::from(!launch.kernel.contains("_bf16")),
        "linears_skinny" => skinny(launch, n(4)),
        "swiglu_skinny" => skinny(launch, n(2)),
        // the rows are read for their scale, then again for the product
        "norm_linears" => 1 + skinny(launch, n(4)),
        "norm_linear" | "norm_swiglu" => 1 + skinny(launch, n(2)),
        // position, page, then keys and values; the rotary table of new rows, in bf16 with the keys
        "decode_attention" | "append_attention" => {
            let rotary = launch.kernel.starts_with("append") && !launch.kernel.contains("_bf16");
            3 + u64::from(rotary) + if n(3) > 1 { merge() } else { 0 }
        }
        // maxima of blocks; their last one reads those of the others and a chunk of the logits
        "sample_greedy" | "sample_cutoff" | "sample_pick" => 2 + merge(),
        "embedding" | "table_rows" | "gather_rows" | "scatter_rows" | "copy_slots" | "gather_int8"
        | "adamw" | "cast_all" | "row_squares" | "write_heads" => 2,
        _ => 1,
    }
}

fn merge() -> u64 {
    if faults::on(Fault::MergeTripsNotCounted) { 0 } else { MERGE }
}

/// The round trips of a tile's pipeline over `k` values of the sum: stages of 32 k of which three are in flight, by
/// `wgmma` stages of 64 k of which six are, over all tiles of a block, or in small tiles two of each of three chunks; in
/// f32 steps of 8 k, one in flight.
fn stages(launch: &RecordedLaunch, k: u64) -> u64 {
    let blocks: u64 = launch.grid.blocks.iter().copied().map(u64::from).product();
    match tiles(launch) {
        Some(tiles) => (tiles.div_ceil(blocks.max(1)) * k.div_ceil(64)).div_ceil(6),
        None if launch.kernel.ends_with("_wgmma_64") => k.div_ceil(256).div_ceil(3) * 4 / 2,
        None if launch.kernel.contains("_bf16") => k.div_ceil(32).div_ceil(3),
        None => k.div_ceil(8),
    }
}

/// The round trips of a block of few rows: a warp per chunk of 256 at a time (f32: the weights of 2048 at a time), then the
/// sums of chunks that blocks share.
fn skinny(launch: &RecordedLaunch, width: u64) -> u64 {
    if !launch.kernel.contains("_bf16") {
        return width.div_ceil(2048);
    }
    let groups = u64::from(launch.grid.blocks[2].max(1));
    // the last argument: the warps of a block that multiply
    let warps = u64::from(launch.numbers.last().copied().unwrap_or(1)).max(1);
    width.div_ceil(256).div_ceil(groups).div_ceil(warps) + if groups > 1 { merge() } else { 0 }
}
