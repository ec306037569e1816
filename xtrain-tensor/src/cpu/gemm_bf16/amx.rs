//! AMX kernels in inline assembly. `tdpbf16ps` computes a bf16 block of docs/numerics.md, including flush to zero.
use std::arch::asm;
use std::ops::Range;

use super::super::Disjoint;
use super::super::lanes::LANES;
use super::tiles::{BLOCK_ROWS, Pairs, View};
use crate::device::amx::detect;

/// Rows of a tile register.
const TILE: usize = 16;

/// A tile configuration of palette 1: registers 0 to 3 hold c, 4 and 5 hold a, 6 and 7 hold b.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// `y = y + a b` with AMX tiles.
pub(super) struct Job<'a> {
    a: &'a [Pairs],
    b: View<'a>,
    y: &'a Disjoint<'a, f32>,
}

impl<'a> Job<'a> {
    /// # Panics
    /// If the machine has no AMX.
    pub(super) fn new(a: &'a [Pairs], b: View<'a>, y: &'a Disjoint<'a, f32>) -> Job<'a> {
        assert!(detect(), "the machine has no AMX");
        Job { a, b, y }
    }

    /// Computes the outputs of `rows` in `panels`. Each output belongs to one unit.
    pub(super) fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        let mut configured = 0;
        for row in rows.clone().step_by(2 * TILE) {
            let height = (rows.end - row).min(2 * TILE);
            if configured != height {
                // SAFETY: `new` has detected AMX; the registers are released below.
                unsafe { configure(height) };
                configured = height;
            }
            for panel in panels.clone() {
                self.tile(row, height, panel);
            }
        }
        // SAFETY: `new` has detected AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// Computes a tile of up to 32 rows and 32 columns.
    fn tile(&self, row: usize, height: usize, panel: usize) {
        let columns = self.b.shape()[1];
        let at = panel * LANES;
        // SAFETY: these elements of y belong to this unit alone.
        let y = |i: usize| unsafe {
            self.y.slice((row + i) * columns + at..(row + i) * columns + columns.min(at + LANES))
        };
        if at + LANES <= columns {
            // `at` checks the address one past the last element, so all elements are inside y
            self.y.at((row + height - 1) * columns + at + LANES);
            let c = self.y.at(row * columns + at);
            // SAFETY: `height` rows of 32 from c on, `columns` apart, are inside y, checked above, and belong to this
            // unit alone.
            unsafe { self.add(row, height, panel, c, columns) };
            return;
        }
        let width = columns - at;
        let mut c = [[0.0f32; LANES]; 2 * TILE];
        for (i, c) in c.iter_mut().enumerate().take(height) {
            c[..width].copy_from_slice(y(i));
        }
        // SAFETY: c is local and has 32 rows of 32.
        unsafe { self.add(row, height, panel, c.as_mut_ptr().cast(), LANES) };
        for (i, c) in c.iter().enumerate().take(height) {
            y(i).copy_from_slice(&c[..width]);
        }
    }

    /// `c += a b` for a full-width tile.
    ///
    /// # Safety
    /// `height` rows of 32 elements, `step` apart, are writable from c on, and no other thread accesses them.
    unsafe fn add(&self, row: usize, height: usize, panel: usize, c: *mut f32, step: usize) {
        let blocks = self.b.blocks();
        let a = &self.a[row * blocks..(row + height) * blocks];
        let b = self.b.panel(panel);
        assert!(b.len() == blocks * BLOCK_ROWS, "a panel is whole blocks");
        if blocks == 0 {
            return;
        }
        let operands = Operands { blocks, a: a.as_ptr().cast(), b: b.as_ptr().cast(), c: c.cast(), step };
        // SAFETY: `new` has detected AMX and `unit` has configured it for `height` rows. Loads of a read `height`
        // rows of `blocks` blocks, those of b read `blocks` blocks of 2048 bytes: all inside the slices above. c is
        // valid by contract.
        unsafe { if height > TILE { kernel_32_rows(operands) } else { kernel_16_rows(operands) } }
    }
}

struct Operands {
    /// Blocks along the depth, at least one.
    blocks: usize,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
    /// Elements between rows of c.
    step: usize,
}

/// Configures the tile registers for `height` rows, 1 to 32.
///
/// # Safety
/// The machine has AMX.
unsafe fn configure(height: usize) {
    let upper = height.min(TILE) as u8;
    // unused registers still need a shape
    let lower = height.checked_sub(TILE).filter(|&h| h > 0).unwrap_or(TILE) as u8;
    let full = TILE as u8;
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..8].fill(64);
    config.rows[..8].copy_from_slice(&[upper, upper, lower, lower, upper, lower, full, full]);
    // SAFETY: AMX exists, by contract; the configuration is 64 bytes long and valid for palette 1.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
}

/// c += a b for 32 columns and 17 to 32 rows.
///
/// # Safety
/// The registers are configured for this height; a, b and c have the extents stated in [`Job::add`].
unsafe fn kernel_32_rows(Operands { blocks, a, b, c, step }: Operands) {
    let (a_step, b_step, c_step) = (blocks * 64, 64usize, step * 4);
    // SAFETY: by contract.
    unsafe {
        let (lower_a, lower_c) = (a.add(TILE * a_step), c.add(TILE * c_step));
        asm!(
            "tileloadd tmm0, [{c0} + {cs}*1]", "tileloadd tmm1, [{c0} + {cs}*1 + 64]",
            "tileloadd tmm2, [{c1} + {cs}*1]", "tileloadd tmm3, [{c1} + {cs}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{a0} + {s_a}*1]", "tileloadd tmm6, [{b} + {s}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {s_a}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a0}, 64", "add {a1}, 64", "add {b}, 2048", "dec {n}", "jnz 2b",
            "tilestored [{c0} + {cs}*1], tmm0", "tilestored [{c0} + {cs}*1 + 64], tmm1",
            "tilestored [{c1} + {cs}*1], tmm2", "tilestored [{c1} + {cs}*1 + 64], tmm3",
            a0 = inout(reg) a => _, a1 = inout(reg) lower_a => _, b = inout(reg) b => _,
            n = inout(reg) blocks => _, s_a = in(reg) a_step, s = in(reg) b_step,
            c0 = in(reg) c, c1 = in(reg) lower_c, cs = in(reg) c_step,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
        );
    }
}

/// c += a b for 32 columns and 1 to 16 rows.
///
/// # Safety
/// The registers are configured for this height; a, b and c have the extents stated in [`Job::add`].
unsafe fn kernel_16_rows(Operands { blocks, a, b, c, step }: Operands) {
    let (a_step, b_step, c_step) = (blocks * 64, 64usize, step * 4);
    // SAFETY: by contract.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c0} + {cs}*1]", "tileloadd tmm1, [{c0} + {cs}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{a0} + {s_a}*1]", "tileloadd tmm6, [{b} + {s}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a0}, 64", "add {b}, 2048", "dec {n}", "jnz 2b",
            "tilestored [{c0} + {cs}*1], tmm0", "tilestored [{c0} + {cs}*1 + 64], tmm1",
            a0 = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) blocks => _,
            s_a = in(reg) a_step, s = in(reg) b_step, c0 = in(reg) c, cs = in(reg) c_step,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _, options(nostack)
        );
    }
}
