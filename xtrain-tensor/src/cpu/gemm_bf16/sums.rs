//! Where a kernel keeps the sums of a part of an output: in the output itself, or in a buffer that an epilogue reads.
use std::ops::Range;

use super::super::Simd;
use super::super::gemm::Beta;
use super::super::lanes::{LANES, dispatch};
use super::super::scratch::Buffer;
use super::epilogue::{Epilogue, Row};
use super::output::SharedOutput;

/// Rows of 32 sums for each panel. Steps are in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    pub(super) start: *mut f32,
    /// Between rows of one panel.
    pub(super) step: usize,
    /// Between panels.
    pub(super) panel_step: usize,
}

impl Sums {
    /// The address of column `column` of row `row` of panel `panel`.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, panel: usize, column: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.step + panel * self.panel_step + column)
    }

    /// The sums of a product of depth 0: +0, or the old values.
    ///
    /// # Safety
    /// The sums of `rows` rows and `panels` panels are writable, and no other thread accesses them.
    pub(super) unsafe fn without_products(&self, rows: usize, panels: usize, beta: Beta) {
        if beta == Beta::Zero {
            for (row, panel) in (0..rows).flat_map(|row| (0..panels).map(move |panel| (row, panel))) {
                // SAFETY: by contract.
                unsafe { self.at(row, panel, 0).write_bytes(0, LANES) }
            }
        }
    }
}

/// The rows `rows` and the panels `panels` of an output with `columns` columns.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub(super) out: &'a SharedOutput<'a>,
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
    pub(super) columns: usize,
}

impl Part<'_> {
    /// Calls `kernel` with writable sums of these rows and panels, and writes them to the output. With [`Beta::One`]
    /// the sums are the old values.
    ///
    /// # Safety
    /// These elements of the output belong to the caller alone. The machine has AVX-512F.
    pub(super) unsafe fn compute(&self, kernel: impl FnOnce(Sums, Beta)) {
        let (rows, panels) = (self.rows.clone(), self.panels.clone());
        let columns = panels.start * LANES..self.columns.min(panels.end * LANES);
        if let SharedOutput::Sum(y, beta) = self.out
            && columns.len() == panels.len() * LANES
        {
            // `at` checks the address one past the last element, so all elements are inside y
            y.at((rows.end - 1) * self.columns + columns.end);
            let start = y.at(rows.start * self.columns + columns.start);
            return kernel(Sums { start, step: self.columns, panel_step: LANES }, *beta);
        }
        let mut buffer = Buffer::<Row>::new(rows.len() * panels.len());
        let epilogue = |panel: usize| Epilogue {
            out: self.out,
            rows: rows.clone(),
            columns: panel * LANES..columns.end.min((panel + 1) * LANES),
            step: self.columns,
        };
        let beta = match self.out {
            SharedOutput::Sum(_, Beta::One) => {
                for (panel, sums) in panels.clone().zip(buffer.chunks_exact_mut(rows.len())) {
                    // SAFETY: these elements belong to the caller alone, by contract.
                    unsafe { epilogue(panel).load(sums) };
                }
                Beta::One
            }
            _ => Beta::Zero,
        };
        let start = buffer.as_mut_ptr().cast();
        kernel(Sums { start, step: LANES, panel_step: rows.len() * LANES }, beta);
        for (panel, sums) in panels.zip(buffer.chunks_exact(rows.len())) {
            // SAFETY: as above.
            dispatch(Simd::Avx512, unsafe { epilogue(panel).of(sums) });
        }
    }
}
