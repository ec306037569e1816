//! Products of attention with AMX for a few vectors: nothing is packed that is read only once.
use std::arch::asm;
use std::marker::PhantomData;

use half::bf16;

use super::amx;
use super::pairs::{Pairs, TILE};
use crate::device::amx::detect;

/// Bytes of a row of a tile.
const ROW: usize = size_of::<Pairs>();

/// The tile registers of this thread, configured for up to 16 vectors. They are released at the end.
///
/// Registers 0 to 2 have a row for each vector, the others have 16 rows.
#[derive(Debug)]
pub(crate) struct FewRows {
    vectors: usize,
    /// The registers are those of one thread.
    _thread: PhantomData<*const ()>,
}

/// 16 rows of a matrix, `step` elements apart. Each has the elements of a product's depth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileRows<'a> {
    pub(crate) elements: &'a [bf16],
    pub(crate) step: usize,
}

impl FewRows {
    /// # Panics
    /// If the machine has no AMX, or not 1 to 16 vectors are given.
    pub(crate) fn new(vectors: usize) -> FewRows {
        assert!(detect(), "the machine has no AMX");
        assert!((1..=TILE).contains(&vectors), "1 to 16 vectors");
        let (few, all) = (vectors as u8, TILE as u8);
        // SAFETY: AMX was detected; `drop` releases the registers.
        unsafe { amx::configure([few, few, few, all, all, all, all, all]) };
        FewRows { vectors, _thread: PhantomData }
    }

    /// `out[r][i] = dot(rows r, vector i)` for 32 rows and 16 vectors.
    ///
    /// `vectors`: `[blocks][16][16]` pairs, the pairs 2r and 2r + 1 of block b in row r. Those of vectors that do not
    /// exist are unspecified, as are their columns of `out`.
    ///
    /// # Panics
    /// If an operand is too short.
    #[inline]
    pub(crate) fn times_vectors(&self, rows: [TileRows<'_>; 2], vectors: &[Pairs], out: &mut [[f32; TILE]]) {
        let blocks = vectors.len() / TILE;
        assert!(blocks > 0 && out.len() >= 2 * TILE, "a depth, and a row of sums for each row");
        for rows in &rows {
            let end = (TILE - 1) * rows.step + blocks * size_of::<Pairs>() / size_of::<bf16>();
            assert!(end <= rows.elements.len(), "16 rows of the depth");
        }
        let [first, second] = &rows;
        // SAFETY: `new` has detected AMX and configured the registers; loads and stores are inside the operands, as
        // checked.
        unsafe {
            asm!(
                "tilezero tmm5", "tilezero tmm6",
                "2:",
                "tileloadd tmm7, [{v} + {s}*1]",
                "tileloadd tmm3, [{a0} + {s0}*1]", "tdpbf16ps tmm5, tmm3, tmm7",
                "tileloadd tmm4, [{a1} + {s1}*1]", "tdpbf16ps tmm6, tmm4, tmm7",
                "add {a0}, 64", "add {a1}, 64", "add {v}, 1024", "dec {n}", "jnz 2b",
                "tilestored [{c} + {s}*1], tmm5", "tilestored [{c} + {s}*1 + 1024], tmm6",
                a0 = inout(reg) first.elements.as_ptr() => _, a1 = inout(reg) second.elements.as_ptr() => _, v = inout(reg) vectors.as_ptr() => _,
                n = inout(reg) blocks => _, s0 = in(reg) first.step * size_of::<bf16>(), s1 = in(reg) second.step * size_of::<bf16>(), s = in(reg) ROW,
                c = in(reg) out.as_mut_ptr(),
                out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
            );
        }
    }

    /// `out[i] = weights of vector i, times the columns`: for each vector the 32 sums of a panel.
    ///
    /// `weights`: rows of `weight_step` blocks. `panel`: `[blocks][2][16]` rows of pairs. Rows of `out` are `out_step`
    /// elements apart.
    ///
    /// # Panics
    /// If an operand is too short.
    #[inline]
    pub(crate) fn times_panel(
        &self,
        weights: &[Pairs],
        weight_step: usize,
        panel: &[Pairs],
        out: &mut [f32],
        out_step: usize,
    ) {
        let (blocks, last) = (panel.len() / (2 * TILE), self.vectors - 1);
        assert!(blocks > 0 && last * weight_step + blocks <= weights.len(), "weights are too short");
        assert!(last * out_step + 2 * TILE <= out.len(), "out is too short");
        // SAFETY: as above.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1",
                "2:",
                "tileloadd tmm2, [{a} + {s_a}*1]",
                "tileloadd tmm3, [{b} + {s}*1]", "tdpbf16ps tmm0, tmm2, tmm3",
                "tileloadd tmm4, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm2, tmm4",
                "add {a}, 64", "add {b}, 2048", "dec {n}", "jnz 2b",
                "tilestored [{c} + {s_c}*1], tmm0", "tilestored [{c} + {s_c}*1 + 64], tmm1",
                a = inout(reg) weights.as_ptr() => _, b = inout(reg) panel.as_ptr() => _, n = inout(reg) blocks => _,
                s_a = in(reg) weight_step * ROW, s = in(reg) ROW, c = in(reg) out.as_mut_ptr(),
                s_c = in(reg) out_step * size_of::<f32>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, options(nostack)
            );
        }
    }
}

impl Drop for FewRows {
    fn drop(&mut self) {
        // SAFETY: `new` has detected AMX.
        unsafe { amx::release() };
    }
}
