//! The gates of single operations. [`table`] lists every public function of [`crate::ops`]. Each gate is a function
//! over that table that counts the compared values or returns the first difference. The tolerance is zero, except in
//! the checks against f64.
mod case;
mod cases;
#[cfg(test)]
mod contact;
mod device;
#[cfg(test)]
mod filters;
mod golden;
mod gpu;
mod gradient;
#[cfg(test)]
mod kernel_faults;
#[cfg(test)]
mod kernel_sources;
#[cfg(test)]
mod launch_errors;
mod mask;
mod named;
#[cfg(test)]
mod not_finite;
#[cfg(all(test, feature = "faults"))]
mod planted;
mod rows;
mod scene;
mod split;
mod table;
#[cfg(test)]
mod tensor_core;
mod values;
mod wgmma;
mod zero;

use std::fmt;

use crate::testing::simds;
use crate::{Device, Result};

/// Number of cases and values that a gate compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    cases: usize,
    values: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases, {} values, 0 differ", self.cases, self.values)
    }
}

/// The first difference that a gate found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference {
    gate: &'static str,
    case: String,
    seed: u64,
    row: usize,
    got: String,
    want: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { gate, case, seed, row, got, want } = self;
        write!(f, "{gate}: {case}, seed {seed}, row {row}: got {got}, want {want}")
    }
}

/// The result of an operation: one list of values per row.
type Rows = Vec<Vec<f32>>;

/// The identity of a comparison: gate, case and seed.
struct Comparison {
    gate: &'static str,
    case: String,
    seed: u64,
}

impl Comparison {
    /// Compares two lists of rows bit for bit; any NaN equals any NaN. Returns the number of compared values. An
    /// error of the operation is a difference.
    fn same(&self, got: Result<Rows>, want: &[Vec<f32>]) -> Result<usize, Difference> {
        let got = match got {
            Ok(got) => got,
            Err(error) => return Err(self.failed(&error)),
        };
        if got.len() != want.len() {
            return self.differ(0, format!("{} rows", got.len()), format!("{} rows", want.len()));
        }
        for (row, (got, want)) in got.iter().zip(want).enumerate() {
            if got.len() != want.len() {
                let text = |x: &[f32]| format!("{} values", x.len());
                return self.differ(row, text(got), text(want));
            }
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            if let Some(at) = got.iter().zip(want).position(|pair| !same(pair)) {
                let text = |x: f32| format!("{x:e} ({:08x}) at {at}", x.to_bits());
                return self.differ(row, text(got[at]), text(want[at]));
            }
        }
        Ok(want.iter().map(Vec::len).sum())
    }

    /// The difference for an operation that returned an error.
    fn failed(&self, error: &crate::Error) -> Difference {
        self.difference(0, error.to_string(), "a result".into())
    }

    fn differ(&self, row: usize, got: String, want: String) -> Result<usize, Difference> {
        Err(self.difference(row, got, want))
    }

    fn difference(&self, row: usize, got: String, want: String) -> Difference {
        Difference { gate: self.gate, case: self.case.clone(), seed: self.seed, row, got, want }
    }
}

/// The reference device.
fn reference() -> Device {
    Device::reference()
}

/// The reference, and a device for every instruction set of this machine and each of these numbers of threads.
fn devices(threads: &[usize]) -> Vec<Device> {
    let cpus = simds().into_iter().flat_map(|simd| threads.iter().map(move |&n| Device::cpu_with(n, simd)));
    [reference()].into_iter().chain(cpus).collect()
}

/// The name of a device in the name of a case.
fn name(device: &Device) -> String {
    device.to_string()
}
