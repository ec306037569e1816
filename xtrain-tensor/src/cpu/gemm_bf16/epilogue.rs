//! The end of a product whose sums are in a buffer: they are added to a residual, rounded, or copied.
use std::ops::Range;

use half::bf16;

use super::super::Disjoint;
use super::super::gemm::Beta;
use super::super::lanes::{Kernel, LANES, Lanes};
use super::super::scratch::scratch;
use super::output::SharedOutput;
use crate::cpu::value::Value;

/// The sums of a row, in cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Row([f32; LANES]);
scratch!(Row, Row([0.0; LANES]));

/// The columns `columns` of the rows `rows` of an output whose rows are `step` elements apart.
#[derive(Debug, Clone)]
pub(super) struct Epilogue<'a> {
    pub(super) out: &'a SharedOutput<'a>,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) step: usize,
}

impl<'a> Epilogue<'a> {
    /// The elements of row `row`.
    #[inline(always)]
    fn of_row(&self, row: usize) -> Range<usize> {
        row * self.step + self.columns.start..row * self.step + self.columns.end
    }

    /// Reads the old y of [`Beta::One`].
    ///
    /// # Safety
    /// No other thread accesses these elements of the output.
    pub(super) unsafe fn load(&self, sums: &mut [Row]) {
        let SharedOutput::Sum(y, Beta::One) = self.out else { return };
        for (row, sums) in self.rows.clone().zip(sums) {
            // SAFETY: by contract.
            sums.0[..self.columns.len()].copy_from_slice(unsafe { y.slice(self.of_row(row)) });
        }
    }

    /// A kernel that writes the sums of these rows.
    ///
    /// # Safety
    /// While it runs, no other thread accesses these elements of the output.
    pub(super) unsafe fn of(self, sums: &'a [Row]) -> Store<'a> {
        Store { epilogue: self, sums }
    }
}

/// Writes the sums of an [`Epilogue`].
pub(super) struct Store<'a> {
    epilogue: Epilogue<'a>,
    sums: &'a [Row],
}

impl Kernel for Store<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        if let SharedOutput::Rounded(y) = self.epilogue.out
            && self.epilogue.columns.len() == LANES
        {
            return self.round_panel(l, y);
        }
        for (row, sums) in self.epilogue.rows.clone().zip(self.sums) {
            let (at, sum) = (self.epilogue.of_row(row), l.load(&sums.0));
            // SAFETY: no other thread accesses these elements, by the contract of `Epilogue::of`.
            unsafe {
                match self.epilogue.out {
                    SharedOutput::Sum(y, _) => f32::write(l, y.slice(at), sum),
                    SharedOutput::Residual { h, y } => {
                        let sum = l.add(sum, f32::read(l, &h[at.clone()]));
                        f32::write(l, y.slice(at), sum);
                    }
                    SharedOutput::Rounded(y) => bf16::write(l, y.slice(at), sum),
                }
            }
        }
    }
}

impl Store<'_> {
    /// Rounds the sums of a whole panel.
    #[inline(always)]
    fn round_panel<L: Lanes>(&self, l: L, y: &Disjoint<'_, bf16>) {
        let Epilogue { rows, columns, step, .. } = &self.epilogue;
        assert_eq!(self.sums.len(), rows.len(), "the sums of each row");
        let Some(last) = rows.clone().next_back() else { return };
        // `at` checks the address one past the last element, so all elements are inside y
        y.at(last * step + columns.end);
        let mut to = y.at(rows.start * step + columns.start);
        for sums in self.sums {
            // SAFETY: 32 elements inside y, which no other thread accesses, by the contract of `Epilogue::of`.
            l.store_bf16(unsafe { std::slice::from_raw_parts_mut(to, LANES) }, l.load(&sums.0));
            to = to.wrapping_add(*step);
        }
    }
}
