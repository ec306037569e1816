//! The gates of single operations: every public function of [`crate::ops`] stands in [`table`], and
//! each gate is a function over that table which counts what it compared or names the first
//! difference. Tolerance is zero everywhere but in the checks against f64.
mod case;
mod cases;
mod device;
mod golden;
mod gpu;
mod gradient;
#[cfg(test)]
mod kernel_faults;
#[cfg(test)]
mod kernel_sources;
mod mask;
mod named;
mod rows;
mod scene;
mod split;
mod table;
#[cfg(all(test, feature = "emu", xtrain_emu))]
mod tensor_core;
mod values;
mod zero;

use std::fmt;

use crate::{Device, Result, Simd};

/// What a gate compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    cases: usize,
    values: usize,
}

/// The first difference that a gate saw.
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

/// What an operation gives: one list of values a row.
type Rows = Vec<Vec<f32>>;

/// The comparisons of one gate with one case.
struct Comparison {
    gate: &'static str,
    case: String,
    seed: u64,
}

impl Comparison {
    /// How many values were compared. Refuses rows that differ in a bit (any NaN equals any NaN), or an operation
    /// that refused.
    fn same(&self, got: Result<Rows>, want: &[Vec<f32>]) -> Result<usize, Difference> {
        let got = match got {
            Ok(got) => got,
            Err(error) => return Err(self.refused(&error)),
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

    /// That the operation refused its operands.
    fn refused(&self, error: &crate::Error) -> Difference {
        self.difference(0, error.to_string(), "a result".into())
    }

    fn differ(&self, row: usize, got: String, want: String) -> Result<usize, Difference> {
        Err(self.difference(row, got, want))
    }

    fn difference(&self, row: usize, got: String, want: String) -> Difference {
        Difference { gate: self.gate, case: self.case.clone(), seed: self.seed, row, got, want }
    }
}

/// The device that all others are held to.
fn reference() -> Device {
    Device::reference()
}

/// The reference, and every instruction set of this machine with these numbers of threads.
fn devices(threads: &[usize]) -> Vec<Device> {
    let cpus = Simd::available().flat_map(|simd| threads.iter().map(move |&n| Device::cpu_with(n, simd)));
    [reference()].into_iter().chain(cpus).collect()
}

/// How a device stands in the name of a case.
fn name(device: &Device) -> String {
    device.to_string()
}
