//! The bytes and operations of recorded launches, from the sizes of their operands.
use std::collections::BTreeMap;

use super::launch_shapes::{element, list, operation, rows_of_samples, tiles};
use super::{latency, sample};
use crate::device::gpu::{RecordedLaunch, Recording, take};
use crate::{
    Device, Gpu,
    faults::{self, Fault},
};

/// A kernel launch with the memory traffic and the arithmetic that its operands require.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLaunch {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Number of thread blocks.
    pub blocks: u64,
    /// Threads per block.
    pub threads: u32,
    /// The output tiles of a product by `wgmma`, of which a block computes several. For other kernels, the number of
    /// blocks.
    pub tiles: u64,
    /// Bytes of global memory, each operand read or written once. Partial results of decode attention are those of the
    /// longest sequence of the batch.
    pub bytes: u64,
    /// Multiplications and additions of matrix products and attention, without padding. 0 for other kernels.
    pub operations: u64,
    /// Dependent round trips to memory: how often a block waits for values before it can issue the next accesses. Counted
    /// from the sources, for one block.
    pub round_trips: u64,
}

/// The launches that a recording device received.
#[derive(Debug, Clone)]
pub struct LaunchLog(Recording);

/// A device that records kernel launches and computes nothing, and its log. It has no memory: reads return zeros,
/// so a model of any size can be traced. Token ids that it samples are 0, and every value is finite. `wgmma`: products
/// of tiles in bf16 use the kernels of a Hopper GPU.
pub fn launch_recorder(wgmma: bool) -> (Device, LaunchLog) {
    let (gpu, recording) = Gpu::recorder(wgmma);
    (Device::Gpu(gpu), LaunchLog(recording))
}

impl LaunchLog {
    /// Removes and returns the launches since the last call, in order.
    pub fn take(&self) -> Vec<KernelLaunch> {
        let launches = take(&self.0).into_iter();
        launches.map(|launch| KernelLaunch::of(&launch)).collect()
    }
}

impl KernelLaunch {
    fn of(launch: &RecordedLaunch) -> KernelLaunch {
        let blocks = launch.grid.blocks.iter().copied().map(u64::from).product();
        KernelLaunch {
            kernel: launch.kernel,
            blocks,
            threads: launch.grid.threads,
            tiles: tiles(launch).unwrap_or(blocks),
            bytes: bytes(launch),
            operations: operations(launch),
            round_trips: latency::round_trips(launch),
        }
    }
}

fn bytes(launch: &RecordedLaunch) -> u64 {
    let n = |at: usize| u64::from(launch.numbers[at]);
    let (rows, e) = (u64::from(launch.grid.blocks[0]), element(launch.kernel));
    match operation(launch.kernel) {
        // the rows of the table that the ids select, and the f32 output
        "embedding" => rows * n(0) * 8,
        "table_rows" => rows * n(0) * (4 + e),
        "embedding_backward" => 3 * operand(launch, 4),
        "gather_rows" | "scatter_rows" => 2 * rows * n(0) * word(launch.kernel),
        // the codes and the scale of each vector, and its values; not the pool
        "gather_int8" => 4 * n(2) / n(1) * (n(1) * (1 + e) + 4),
        "copy_slots" => 2 * ranges(launch) * n(0) * word(launch.kernel),
        // queries, keys and values, read and written; neither the pools nor the whole rotary table
        "write_heads" if faults::on(Fault::PoolCountedAsRead) => distinct(launch, |_| true),
        "write_heads" => 2 * n(0) * (n(1) + 2 * n(2)) * n(3) * e,
        "rope_at" | "rope_backward" | "rope_pos" | "rope_rows" => distinct(launch, |at| at != 1),
        "decode_attention" | "append_attention" => {
            let (chunks, nh, nkv, hd) = (n(3), n(4), n(5), n(6));
            let own = if launch.kernel.starts_with("append") { rows } else { 0 };
            let keys = 2 * (visible_keys(launch) - shared_chunks(launch) * 64 - own) * nkv * hd * e;
            let partials = if chunks > 1 { 2 * rows * chunks * nh * (2 + hd) * 4 } else { 0 };
            // the keys and values of the rows themselves, read and written
            keys + partials + 2 * rows * nh * hd * e + 4 * own * nkv * hd * e
        }
        // x, gain, dy, the gradient that dx is added to in place, dx, r
        "rms_norm_dx" if launch.operands.len() == 6 => distinct(launch, |_| true) + operand(launch, 3),
        // w, m and v read and written, g read
        "adamw" => 28 * elements(launch),
        "cast_all" => 6 * table(launch, 8, 4),
        "linear_dw" => weight_gradient_bytes(launch),
        "row_squares" => 4 * elements(launch),
        // the logits; the bins of each row, read and reset; neither the counters nor the whole list
        "sample_histogram" => distinct(launch, |at| at < 4) + 2 * rows * 8 * sample::BINS as u64,
        "sample_cutoff" => distinct(launch, |at| at < 4),
        "sample_pick" => distinct(launch, |at| at > 0 && at != 10),
        // the logits; the sums of chunks, written and read; one chunk of the logits again; not the counters
        "sample_greedy" => distinct(launch, |at| at < 5) + operand(launch, 2) + rows * 512,
        // the sums of chunks that blocks share are written and read
        "linear_skinny" | "linears_skinny" | "norm_linears" | "norm_linear" | "swiglu_skinny"
        | "norm_swiglu"
            if launch.grid.blocks[2] > 1 =>
        {
            distinct(launch, |_| true) + launch.operands.iter().nth_back(1).map_or(0, |parts| parts.bytes)
        }
        _ => distinct(launch, |_| true),
    }
}

fn operations(launch: &RecordedLaunch) -> u64 {
    let n = |at: usize| u64::from(launch.numbers[at]);
    let outs = |at: usize| n(at) + n(at + 1) + n(at + 2);
    match operation(launch.kernel) {
        "linear" | "linear_skinny" | "linear_gemv" | "linear_dx_swiglu" | "norm_linear" => {
            2 * n(0) * n(1) * n(2)
        }
        "linears" | "linears_skinny" | "norm_linears" => 2 * n(0) * outs(1) * n(4),
        "swiglu" | "swiglu_skinny" | "norm_swiglu" if faults::on(Fault::UpProjectionNotCounted) => {
            2 * n(0) * n(1) * n(2)
        }
        "swiglu" | "swiglu_skinny" | "norm_swiglu" => 4 * n(0) * n(1) * n(2),
        "linear_dx" => 2 * outs(0) * n(3) * n(4),
        "linear_dw" => {
            let rows = rows_of_samples(launch);
            weight_products(launch).map(|one| 2 * rows * one.outs * one.width).sum()
        }
        "attention" => 4 * visible_pairs(launch) * n(3) * n(5),
        "attention_dq" => 6 * visible_pairs(launch) * n(3) * n(5),
        "attention_dkv" => 8 * visible_pairs(launch) * n(3) * n(5),
        "decode_attention" | "append_attention" => {
            4 * u64::from(launch.grid.blocks[0]) * n(3) * 64 * n(4) * n(6)
        }
        _ => 0,
    }
}

fn operand(launch: &RecordedLaunch, at: usize) -> u64 {
    launch.operands.get(at).map_or(0, |operand| operand.bytes)
}

/// The bytes of the distinct allocations among the operands that `counted` selects by position.
fn distinct(launch: &RecordedLaunch, counted: impl Fn(usize) -> bool) -> u64 {
    let operands = launch.operands.iter().enumerate().filter(|&(at, _)| counted(at));
    let sizes: BTreeMap<u64, u64> = operands.map(|(_, x)| (x.allocation, x.bytes)).collect();
    sizes.values().sum()
}

/// Word size of a kernel that copies rows.
fn word(kernel: &str) -> u64 {
    kernel.rsplit('_').next().and_then(|size| size.parse().ok()).unwrap_or(16)
}

/// Number of rows in the ranges `[from, to, len]` of `copy_slots`.
fn ranges(launch: &RecordedLaunch) -> u64 {
    list(launch.operands.get(2)).iter().skip(2).step_by(3).map(|&len| u64::from(len)).sum()
}

/// Number of elements in the optimizer's table.
fn elements(launch: &RecordedLaunch) -> u64 {
    table(launch, 16, 8)
}

/// Number of elements in a table of `words` words per tensor, of which `size` and the next are the size of a tensor.
fn table(launch: &RecordedLaunch, words: usize, size: usize) -> u64 {
    let tensors = list(launch.operands.first()).chunks_exact(words);
    tensors.map(|t| u64::from(t[size]) | u64::from(t[size + 1]) << 32).sum()
}

/// A product of `linear_dw`.
struct WeightProduct {
    /// Addresses: dy, x.
    operands: [u64; 2],
    outs: u64,
    width: u64,
    /// Whether the gradient is read.
    accumulate: bool,
}

/// The table of `linear_dw`: the addresses of dw, dy and x (by `wgmma`, those of the tensor maps of dy and x), outputs,
/// width, first block, accumulate.
fn weight_products(launch: &RecordedLaunch) -> impl Iterator<Item = WeightProduct> {
    list(launch.operands.first()).chunks_exact(10).map(|one| WeightProduct {
        operands: [2, 4].map(|at| u64::from(one[at]) | u64::from(one[at + 1]) << 32),
        outs: u64::from(one[6]),
        width: u64::from(one[7]),
        accumulate: one[9] != 0,
    })
}

/// The bytes of `linear_dw`: each `dy` and `x` read once, each gradient written, and read if it does not start from
/// zeros.
fn weight_gradient_bytes(launch: &RecordedLaunch) -> u64 {
    let (rows, e) = (rows_of_samples(launch), element(launch.kernel));
    let mut read = BTreeMap::new();
    let mut gradients = 0;
    for WeightProduct { operands: [dy, x], outs, width, accumulate } in weight_products(launch) {
        gradients += 4 * outs * width * if accumulate { 2 } else { 1 };
        if faults::on(Fault::SharedInputCountedTwice) && read.contains_key(&x) {
            gradients += e * rows * width;
        }
        read.extend([(dy, e * rows * outs), (x, e * rows * width)]);
    }
    gradients + read.values().sum::<u64>()
}

/// Number of keys that the rows of decode attention see. If the host did not upload their positions, each row sees the
/// keys of all chunks.
fn visible_keys(launch: &RecordedLaunch) -> u64 {
    let (window, bf16) = (launch.numbers[2], element(launch.kernel) == 2);
    let from_back = |at: usize| list(launch.operands.iter().nth_back(at));
    // the rows, unless they are in order; in bf16 the table of shared chunks; sequences, positions, pages
    let (listed, pos) = (from_back(if bf16 { 4 } else { 3 }), from_back(1));
    let n = launch.grid.blocks[0];
    // otherwise it is another operand: the counters, which are all zero
    let is_list = listed.len() == n as usize && (n == 1 || listed[0] != listed[1]);
    let rows = (0..n).map(|i| if is_list { listed[i as usize] } else { i });
    let visible = |row: u32| pos.get(row as usize).map(|&pos| visible_from(pos, window));
    let known: Option<u64> = rows.map(visible).sum();
    let known = known.filter(|_| !faults::on(Fault::KeysRoundedToChunks));
    known.unwrap_or_else(|| u64::from(n) * u64::from(launch.numbers[3]) * 64)
}

/// Number of keys that a row at `pos` sees. Window 0: no window.
fn visible_from(pos: u32, window: u32) -> u64 {
    u64::from(if window == 0 { pos + 1 } else { window.min(pos + 1) })
}

/// Number of chunks that decode attention does not read for a row, because the block of an earlier row reads them. In
/// bf16 their table of two words per row comes before those of the sequences, positions and pages.
fn shared_chunks(launch: &RecordedLaunch) -> u64 {
    let table = if element(launch.kernel) == 2 { launch.operands.iter().nth_back(3) } else { None };
    list(table).chunks_exact(2).filter(|row| row[0] == 0).map(|row| u64::from(row[1])).sum()
}

/// Number of (row, visible key) pairs of an attention over positions, which are the second but last operand.
fn visible_pairs(launch: &RecordedLaunch) -> u64 {
    let window = launch.numbers[2];
    list(launch.operands.iter().nth_back(1)).iter().map(|&pos| visible_from(pos, window)).sum()
}
