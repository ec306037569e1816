//! A matrix that is packed while it is read.
use half::bf16;

use super::Weight;
use super::weight::{Exact, Layout, Source};
use crate::cpu::Packed;
use crate::cpu::gemm::Panels;
use crate::cpu::gemm_bf16::TilePanels;
use crate::device::Cpu;
use crate::dtype::{from_bf16, to_bf16};
use crate::{
    Device, Dtype, Error, Result, Tensor,
    faults::{self, Fault},
};

mod lines;

use lines::{Lines, To};

/// Elements that are rounded or widened together.
const TURNED: usize = 1 << 15;

/// Values of a tensor in their order, as a file holds them.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// f32.
    F32(&'a [f32]),
    /// bf16, which need not be widened where it is wanted.
    BF16(&'a [bf16]),
}

impl Piece<'_> {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Piece::F32(values) => values.len(),
            Piece::BF16(values) => values.len(),
        }
    }

    /// Appends the values, widened exactly.
    pub fn widen(&self, to: &mut Vec<f32>) {
        match self {
            Piece::F32(values) => to.extend_from_slice(values),
            Piece::BF16(values) => to.extend(values.iter().map(|&x| from_bf16(x))),
        }
    }

    /// The place of the first value that is a NaN or an infinity, and the value.
    pub fn first_non_finite(&self) -> Option<(usize, f32)> {
        // a search that may stop anywhere is not done in lanes, a conjunction is
        let finite = |x: &bf16| x.to_bits() & 0x7f80 != 0x7f80;
        match self {
            Piece::F32(values) if values.iter().fold(true, |all, x| all & x.is_finite()) => None,
            Piece::F32(values) => values.iter().copied().enumerate().find(|(_, x)| !x.is_finite()),
            Piece::BF16(values) if values.iter().fold(true, |all, x| all & finite(x)) => None,
            Piece::BF16(values) => {
                values.iter().position(|x| !finite(x)).map(|at| (at, from_bf16(values[at])))
            }
        }
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Piece<'a> {
    fn from(values: &'a [f32; N]) -> Piece<'a> {
        Piece::F32(values)
    }
}

impl<'a> From<&'a [f32]> for Piece<'a> {
    fn from(values: &'a [f32]) -> Piece<'a> {
        Piece::F32(values)
    }
}

impl<'a> From<&'a [bf16]> for Piece<'a> {
    fn from(values: &'a [bf16]) -> Piece<'a> {
        Piece::BF16(values)
    }
}

/// A [`Weight`] in the making, from the values of a matrix in their order, however they are cut. What is packed waits
/// for about 65,536 of them, and for 32 rows a thread at least, in the type of the products. Rows for the reference,
/// and for a GPU, wait for the last of them.
#[derive(Debug)]
pub struct Packing {
    device: Device,
    shape: [usize; 2],
    line: Line,
}

/// A matrix in the type of its products.
#[derive(Debug)]
enum Line {
    F32(Lines<Wide>),
    BF16(Lines<Narrow>),
}

/// Where f32 values go.
#[derive(Debug)]
enum Wide {
    /// Into the panels of a processor's kernels.
    Panels(Cpu, Panels),
    /// Into a row-major matrix: for the reference, or for a GPU.
    Rows(Vec<f32>),
}

/// Where bf16 values go.
#[derive(Debug)]
enum Narrow {
    /// Into the tiles of a processor's kernels; rows of a table with denormals, which tiles hold as zeros, stay too.
    TilePanels(Cpu, TilePanels, Option<Exact>),
    /// Into a row-major matrix: for the reference, or for a GPU.
    Rows(Vec<bf16>),
}

impl To for Wide {
    type Value = f32;

    fn write(&mut self, first: usize, _width: usize, w: &[f32]) {
        match self {
            Wide::Panels(cpu, to) => to.write(cpu, first, w),
            Wide::Rows(to) => to.extend_from_slice(w),
        }
    }
}

impl To for Narrow {
    type Value = bf16;

    fn write(&mut self, first: usize, width: usize, w: &[bf16]) {
        match self {
            Narrow::TilePanels(cpu, to, exact) => {
                to.write(cpu, first, w);
                if let Some(exact) = exact {
                    keep(exact, first, w.chunks_exact(width));
                }
            }
            Narrow::Rows(to) => to.extend_from_slice(w),
        }
    }
}

impl Packing {
    /// Begins the weight `[out, in]` for products in `dtype` (f32 or bf16) on `device`.
    ///
    /// # Errors
    /// As [`Weight::new`].
    pub fn new(device: &Device, shape: &[usize], dtype: Dtype) -> Result<Packing> {
        const OP: &str = "Packing::new";
        let &[out, width] = shape else {
            return Err(Error::Shape { op: OP, want: "w [out, in]", got: vec![shape.to_vec()] });
        };
        let Some(elements) = out.checked_mul(width).filter(|&n| n > 0) else {
            let want = "w [out, in], none of them 0";
            return Err(Error::Shape { op: OP, want, got: vec![shape.to_vec()] });
        };
        let shape = [out, width];
        let line = match (dtype, device.fast()) {
            (Dtype::F32, fast) => {
                let to = match fast {
                    Some(cpu) => Wide::Panels(cpu.clone(), Panels::blank([width, out])),
                    None => Wide::Rows(Vec::with_capacity(elements)),
                };
                Line::F32(Lines::new(to, shape, device.threads()))
            }
            (Dtype::BF16, fast) => {
                let to = match fast {
                    Some(cpu) => Narrow::TilePanels(cpu.clone(), TilePanels::blank([width, out]), None),
                    None => Narrow::Rows(Vec::with_capacity(elements)),
                };
                Line::BF16(Lines::new(to, shape, device.threads()))
            }
            (Dtype::U32 | Dtype::I32, _) => {
                return Err(Error::Dtype { op: OP, want: "f32 or bf16", got: dtype });
            }
        };
        Ok(Packing { device: device.clone(), shape, line })
    }

    /// The same, of a table whose rows will be taken by [`super::weight_rows`].
    #[must_use]
    pub fn table(mut self) -> Packing {
        if let Line::BF16(Lines { to: Narrow::TilePanels(_, _, exact), .. }) = &mut self.line {
            *exact = Some(Exact::new());
        }
        self
    }

    /// The next values of the matrix, row-major.
    pub fn push<'a>(&mut self, values: impl Into<Piece<'a>>) {
        match (&mut self.line, values.into()) {
            (Line::F32(line), Piece::F32(values)) => line.push(values),
            (Line::BF16(line), Piece::BF16(values)) => line.push(values),
            (Line::F32(line), Piece::BF16(values)) => turned(values, from_bf16, |values| line.push(values)),
            (Line::BF16(line), Piece::F32(values)) => turned(values, to_bf16, |values| line.push(values)),
        }
    }

    /// The weight, which has no f32 matrix beside it.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there were as many values as the shape holds; [`Error::Device`] when the device
    /// has no memory for it.
    pub fn finish(self) -> Result<Weight> {
        let Packing { device, shape, line } = self;
        let on = |device: &Device| matches!(device, Device::Gpu(_));
        let mut kept = None;
        let (dtype, forward) = match line {
            Line::F32(line) => (
                Dtype::F32,
                match line.finish()? {
                    Wide::Panels(_, w) => Layout::Packed(Packed::F32(w)),
                    Wide::Rows(w) if on(&device) => Layout::Device(Tensor::new(&device, &shape, w)?),
                    Wide::Rows(w) => Layout::Rows(w),
                },
            ),
            Line::BF16(line) => (
                Dtype::BF16,
                match line.finish()? {
                    Narrow::TilePanels(_, w, exact) => {
                        kept = exact;
                        Layout::Packed(Packed::Bf16(w))
                    }
                    Narrow::Rows(w) if on(&device) => Layout::Device(Tensor::new(&device, &shape, w)?),
                    Narrow::Rows(w) => Layout::Rows(w.into_iter().map(from_bf16).collect()),
                },
            ),
        };
        Ok(Weight::of(shape, dtype, forward, Source::Alone { device, exact: kept }))
    }
}

/// Gives `values` on as another type, some at a time.
fn turned<S: Copy, T>(values: &[S], turn: impl Fn(S) -> T, mut give: impl FnMut(&[T])) {
    let mut part = Vec::with_capacity(values.len().min(TURNED));
    for values in values.chunks(TURNED) {
        part.clear();
        part.extend(values.iter().map(|&x| turn(x)));
        give(&part);
    }
}

/// Keeps those of the `rows` from `first` on that hold a denormal.
fn keep<'a>(exact: &mut Exact, first: usize, rows: impl Iterator<Item = &'a [bf16]>) {
    if faults::on(Fault::DenormalOfATableLost) {
        return;
    }
    let denormal = |x: &bf16| (x.to_bits() & 0x7f80 == 0) & (x.to_bits() & 0x7f != 0);
    for (at, row) in rows.enumerate() {
        // a disjunction, which is done in lanes
        if row.iter().fold(false, |any, x| any | denormal(x)) {
            exact.insert((first + at) as u32, row.to_vec());
        }
    }
}

#[cfg(test)]
mod tests;
