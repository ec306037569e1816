//! AMX kernels in inline assembly. `tdpbf16ps` computes a bf16 block of docs/numerics.md, including flush to zero.
use std::arch::asm;
use std::ops::Range;

use half::bf16;

use super::super::gemm::Beta;
use super::super::lanes::LANES;
use super::left;
use super::output::SharedOutput;
use super::pairs::Pairs;
use super::sums::{Part, Sums};
use super::tiles::{BLOCK_ROWS, View};
use crate::device::amx::detect;

/// Rows of a tile register.
const TILE: usize = 16;
/// Rows and columns of a tile of outputs: 2 x 2 registers.
pub(super) const ROWS: usize = 2 * TILE;
/// Maximum blocks along the depth that a panel is read for all rows of a unit: 32 KiB of it stay in the L1 cache.
const DEPTH: usize = 16;
/// Tiles of a panel that prefetch a quarter of the next panel each.
const PREFETCH_TILES: usize = 4;
/// Bytes of a block of a panel, and of that quarter.
const BLOCK_BYTES: usize = 2048;
const PREFETCH_BYTES: usize = BLOCK_BYTES / PREFETCH_TILES;
/// A single tile reads each panel once, and prefetches the first quarter of the block this many bytes ahead. The
/// hardware prefetcher then fetches the rest of the block (docs/bench/training.md).
const AHEAD: usize = 8 * BLOCK_BYTES;

/// A tile configuration of palette 1.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The rows of A: `[rows][blocks][32]`, contiguous.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    values: &'a [bf16],
    blocks: usize,
}

impl<'a> Rows<'a> {
    /// # Panics
    /// If `values` are not whole rows.
    pub(super) fn new(values: &'a [bf16], blocks: usize) -> Rows<'a> {
        assert!(values.len().is_multiple_of(blocks.max(1) * 32), "rows of whole blocks");
        Rows { values, blocks }
    }
}

/// A product with AMX tiles.
pub(super) struct Job<'a> {
    pub(super) a: Rows<'a>,
    pub(super) b: View<'a>,
    pub(super) out: SharedOutput<'a>,
}

impl Job<'_> {
    /// Computes the outputs of `rows` in `panels`. Each output belongs to one unit.
    ///
    /// The rows of a unit read one part of a panel while it is in the L1 cache.
    ///
    /// # Panics
    /// If the machine has no AMX.
    pub(super) fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        assert!(detect(), "the machine has no AMX");
        let whole = rows.start + rows.len() / ROWS * ROWS;
        for rows in [rows.start..whole, whole..rows.end] {
            if rows.is_empty() {
                continue;
            }
            // SAFETY: AMX was detected; the registers are released below.
            unsafe { configure(rows_of(rows.len().min(ROWS))) };
            for panel in panels.clone() {
                self.panel(rows.clone(), panel, (panel + 1 < panels.end).then_some(panel + 1));
            }
        }
        // SAFETY: AMX was detected.
        unsafe { release() };
    }

    /// Computes the outputs of `rows` in one panel.
    fn panel(&self, rows: Range<usize>, panel: usize, next: Option<usize>) {
        let part =
            Part { out: &self.out, rows: rows.clone(), panels: panel..panel + 1, columns: self.b.shape()[1] };
        // SAFETY: these elements of the output belong to this unit alone. `unit` has detected AMX, which includes
        // AVX-512F, and has configured the registers.
        unsafe { part.compute(|sums, beta| self.tiles(rows, panel, sums, beta, next)) };
    }

    /// `sums = beta sums + a b` for the rows `rows` and a panel. Prefetches the panel `next`.
    ///
    /// # Safety
    /// The machine has AMX, configured for tiles of `rows`. A row of 32 elements of `sums` for each of `rows` is
    /// writable, and no other thread accesses it.
    unsafe fn tiles(&self, rows: Range<usize>, panel: usize, sums: Sums, beta: Beta, next: Option<usize>) {
        let blocks = self.b.blocks();
        let a = &self.a.values[rows.start * blocks * 32..rows.end * blocks * 32];
        let b = self.b.panel(panel);
        assert!(self.a.blocks == blocks && b.len() == blocks * BLOCK_ROWS, "a and b have one depth");
        if blocks == 0 {
            // SAFETY: the caller's promise.
            return unsafe { sums.without_products(rows.len(), 1, beta) };
        }
        let prefetch = match rows.len() > ROWS {
            true => next.map(|next| self.b.panel(next).as_ptr().cast::<u8>()),
            false => Some(b.as_ptr().cast::<u8>().wrapping_add(AHEAD)),
        };
        for from in (0..blocks).step_by(DEPTH) {
            for (i, row) in (0..rows.len()).step_by(ROWS).enumerate() {
                let prefetch = prefetch.filter(|_| i < PREFETCH_TILES);
                let tile = Tile {
                    blocks: DEPTH.min(blocks - from),
                    a: a[(row * blocks + from) * 32..].as_ptr().cast(),
                    a_step: blocks * 64,
                    b: b[from * BLOCK_ROWS..].as_ptr().cast(),
                    c: sums.at(row, 0, 0).cast(),
                    c_step: sums.step * 4,
                    prefetch: prefetch.map_or(std::ptr::null(), |p| {
                        p.wrapping_add(from * BLOCK_BYTES + i * PREFETCH_BYTES)
                    }),
                };
                let zero = from == 0 && beta == Beta::Zero;
                // SAFETY: loads of a read the tile's rows of `blocks` blocks, `a_step` apart, those of b read `blocks`
                // blocks: all inside the slices above. c is valid by contract, and so are the registers.
                unsafe {
                    match (rows.len() - row > TILE, zero, prefetch.is_some()) {
                        (true, true, true) => tile.upper_and_lower_from_zero_and_prefetch(),
                        (true, true, false) => tile.upper_and_lower_from_zero(),
                        (true, false, true) => tile.upper_and_lower_and_prefetch(),
                        (true, false, false) => tile.upper_and_lower(),
                        (false, true, true) => tile.upper_from_zero_and_prefetch(),
                        (false, true, false) => tile.upper_from_zero(),
                        (false, false, true) => tile.upper_and_prefetch(),
                        (false, false, false) => tile.upper(),
                    }
                }
            }
        }
    }
}

/// A tile of outputs: up to 32 rows and 32 columns. Steps are in bytes.
struct Tile {
    /// Blocks along the depth, at least one.
    blocks: usize,
    a: *const u8,
    a_step: usize,
    b: *const u8,
    c: *mut u8,
    c_step: usize,
    /// What is prefetched: 512 bytes for each block, 2,048 bytes apart.
    prefetch: *const u8,
}

/// The rows of each register for tiles of `height` rows, 1 to 32: registers 0 to 3 hold c, 4 and 5 hold a, 6 and 7 hold b.
pub(super) fn rows_of(height: usize) -> [u8; 8] {
    let upper = height.min(TILE) as u8;
    // unused registers still need a shape
    let lower = height.checked_sub(TILE).filter(|&h| h > 0).unwrap_or(TILE) as u8;
    let full = TILE as u8;
    [upper, upper, lower, lower, upper, lower, full, full]
}

/// Configures the rows of the tile registers.
///
/// # Safety
/// The machine has AMX. Each register has 1 to 16 rows.
pub(super) unsafe fn configure(rows: [u8; 8]) {
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..8].fill(64);
    config.rows[..8].copy_from_slice(&rows);
    // SAFETY: AMX exists, by contract; the configuration is 64 bytes long and valid for palette 1.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
}

/// Ends the use of the tile registers.
///
/// # Safety
/// The machine has AMX.
pub(super) unsafe fn release() {
    // SAFETY: AMX exists, by contract.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// `out = beta out + a b` for up to 32 rows and the panels `panels` of b. Rows of `out` are `out_step` elements apart;
/// its columns are those of b, whole panels.
///
/// # Safety
/// The registers are configured for these rows. The elements of `out` are writable, and no other thread accesses them;
/// a has these rows of at least one block.
pub(super) unsafe fn small_product(
    a: left::Rows<'_, Pairs>,
    b: View<'_>,
    panels: Range<usize>,
    out: *mut f32,
    out_step: usize,
    beta: Beta,
) {
    for panel in panels {
        let tile = Tile {
            blocks: b.blocks(),
            a: a.blocks.as_ptr().cast(),
            a_step: a.step * size_of::<Pairs>(),
            b: b.panel(panel).as_ptr().cast(),
            c: out.wrapping_add(panel * LANES).cast(),
            c_step: out_step * size_of::<f32>(),
            prefetch: std::ptr::null(),
        };
        // SAFETY: the caller's promise.
        unsafe {
            match (a.len > TILE, beta) {
                (true, Beta::Zero) => tile.upper_and_lower_from_zero(),
                (true, Beta::One) => tile.upper_and_lower(),
                (false, Beta::Zero) => tile.upper_from_zero(),
                (false, Beta::One) => tile.upper(),
            }
        }
    }
}

/// A kernel for 17 to 32 rows: the start of the sums, and what to do in each block in addition.
macro_rules! upper_and_lower {
    ($name:ident, $start:expr, $more:expr) => {
        /// # Safety
        /// As in [`Job::tiles`], for the rows of this tile.
        unsafe fn $name(self) {
            let Tile { blocks, a, a_step, b, c, c_step, prefetch } = self;
            // SAFETY: by contract.
            unsafe {
                let (lower_a, lower_c) = (a.add(TILE * a_step), c.add(TILE * c_step));
                asm!(
                    $start,
                    "2:",
                    "tileloadd tmm4, [{a0} + {s_a}*1]", "tileloadd tmm6, [{b} + {s}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
                    $more,
                    "tileloadd tmm5, [{a1} + {s_a}*1]",
                    "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a0}, 64", "add {a1}, 64", "add {b}, 2048", "dec {n}", "jnz 2b",
                    "tilestored [{c0} + {cs}*1], tmm0", "tilestored [{c0} + {cs}*1 + 64], tmm1",
                    "tilestored [{c1} + {cs}*1], tmm2", "tilestored [{c1} + {cs}*1 + 64], tmm3",
                    "/* {p} */",
                    a0 = inout(reg) a => _, a1 = inout(reg) lower_a => _, b = inout(reg) b => _,
                    n = inout(reg) blocks => _, s_a = in(reg) a_step, s = in(reg) 64usize,
                    c0 = in(reg) c, c1 = in(reg) lower_c, cs = in(reg) c_step, p = inout(reg) prefetch => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
                );
            }
        }
    };
}

/// A kernel for 1 to 16 rows, with the same parameters.
macro_rules! upper {
    ($name:ident, $start:expr, $more:expr) => {
        /// # Safety
        /// As in [`Job::tiles`], for the rows of this tile.
        unsafe fn $name(self) {
            let Tile { blocks, a, a_step, b, c, c_step, prefetch } = self;
            // SAFETY: by contract.
            unsafe {
                asm!(
                    $start,
                    "2:",
                    "tileloadd tmm4, [{a0} + {s_a}*1]", "tileloadd tmm6, [{b} + {s}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
                    $more,
                    "add {a0}, 64", "add {b}, 2048", "dec {n}", "jnz 2b",
                    "tilestored [{c0} + {cs}*1], tmm0", "tilestored [{c0} + {cs}*1 + 64], tmm1",
                    "/* {p} */",
                    a0 = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) blocks => _,
                    s_a = in(reg) a_step, s = in(reg) 64usize, c0 = in(reg) c, cs = in(reg) c_step,
                    p = inout(reg) prefetch => _,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _, options(nostack)
                );
            }
        }
    };
}

/// Sets registers to zero.
macro_rules! zero {
    ($($c:literal)*) => { concat!($("tilezero tmm", $c, "\n"),*) };
}
/// Loads the sums of the upper 16 rows.
macro_rules! load_upper {
    () => {
        "tileloadd tmm0, [{c0} + {cs}*1]\ntileloadd tmm1, [{c0} + {cs}*1 + 64]"
    };
}
/// Loads those of the lower 16 rows.
macro_rules! load_lower {
    () => {
        "tileloadd tmm2, [{c1} + {cs}*1]\ntileloadd tmm3, [{c1} + {cs}*1 + 64]"
    };
}
/// Prefetches 512 bytes, and moves on to the next block.
macro_rules! prefetch {
    () => {
        "prefetcht1 [{p}]\nprefetcht1 [{p} + 64]\nprefetcht1 [{p} + 128]\nprefetcht1 [{p} + 192]\n\
         prefetcht1 [{p} + 256]\nprefetcht1 [{p} + 320]\nprefetcht1 [{p} + 384]\nprefetcht1 [{p} + 448]\n\
         add {p}, 2048"
    };
}

/// `c = a b` from zero, `c = c + a b`, and both with prefetch, for 17 to 32 rows and for 1 to 16.
impl Tile {
    upper_and_lower!(upper_and_lower_from_zero, zero!(0 1 2 3), "");
    upper_and_lower!(upper_and_lower, concat!(load_upper!(), "\n", load_lower!()), "");
    upper_and_lower!(upper_and_lower_from_zero_and_prefetch, zero!(0 1 2 3), prefetch!());
    upper_and_lower!(upper_and_lower_and_prefetch, concat!(load_upper!(), "\n", load_lower!()), prefetch!());
    upper!(upper_from_zero, zero!(0 1), "");
    upper!(upper, load_upper!(), "");
    upper!(upper_from_zero_and_prefetch, zero!(0 1), prefetch!());
    upper!(upper_and_prefetch, load_upper!(), prefetch!());
}
