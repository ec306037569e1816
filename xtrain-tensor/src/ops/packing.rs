//! A matrix that is packed while it is read.
use half::bf16;

use super::Weight;
use super::weight::{Exact, Layout, Source, rounded};
use crate::cpu::Packed;
use crate::device::Cpu;
use crate::dtype::to_bf16;
use crate::{Device, Dtype, Error, Result, Tensor, faults};

/// Elements that wait to be packed together: 1 MiB.
const PIECE: usize = 1 << 18;
/// Rows of a panel.
const PANEL: usize = 32;

/// Where the values go.
#[derive(Debug)]
enum To {
    /// Into the panels of a processor's kernels.
    Packed(Cpu, Packed),
    /// Into a row-major matrix, rounded: for the reference, or for a GPU in f32.
    Rows(Vec<f32>),
    /// Into a row-major matrix for a GPU in bf16.
    Narrow(Vec<bf16>),
}

/// A [`Weight`] in the making, from the values of a matrix in their order, however they are cut. Of what is packed no
/// more than 1 MiB, or 32 rows a thread, waits in f32. Rows for the reference, and for a GPU in f32, are f32
/// themselves and wait for the last of them.
#[derive(Debug)]
pub struct Packing {
    device: Device,
    dtype: Dtype,
    shape: [usize; 2],
    to: To,
    /// Of a table that rows are taken of.
    exact: Option<Exact>,
    waiting: Vec<f32>,
    most: usize,
    rows: usize,
    /// Values beyond the shape.
    beyond: usize,
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
        let to = match (device.fast(), device, dtype) {
            (_, _, Dtype::U32 | Dtype::I32) => {
                return Err(Error::Dtype { op: OP, want: "f32 or bf16", got: dtype });
            }
            (Some(cpu), ..) => To::Packed(cpu.clone(), Packed::blank(dtype, [out, width])),
            (None, Device::Gpu(_), Dtype::BF16) => To::Narrow(Vec::with_capacity(elements)),
            (None, ..) => To::Rows(Vec::with_capacity(elements)),
        };
        let rows = (PIECE / width).max(1).next_multiple_of(PANEL * device.threads()).min(out);
        Ok(Packing {
            device: device.clone(),
            dtype,
            shape: [out, width],
            to,
            exact: None,
            waiting: Vec::new(),
            most: rows * width,
            rows: 0,
            beyond: 0,
        })
    }

    /// The same, of a table whose rows will be taken by [`super::weight_rows`].
    #[must_use]
    pub fn table(mut self) -> Packing {
        self.exact = Some(Exact::new());
        self
    }

    /// The next values of the matrix, row-major.
    pub fn push(&mut self, mut values: &[f32]) {
        let [out, width] = self.shape;
        while !values.is_empty() {
            if self.rows == out {
                self.beyond += values.len();
                return;
            }
            let most = self.most.min((out - self.rows) * width);
            if self.waiting.is_empty() && values.len() >= most {
                let (now, later) = values.split_at(most);
                self.pack(now);
                values = later;
                continue;
            }
            let (now, later) = values.split_at(values.len().min(most - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            if self.waiting.len() == most {
                let mut waiting = std::mem::take(&mut self.waiting);
                self.pack(&waiting);
                if self.rows < out {
                    waiting.clear();
                    self.waiting = waiting;
                }
            }
            values = later;
        }
    }

    /// Packs whole rows: as many as make whole panels, or all that are left.
    fn pack(&mut self, w: &[f32]) {
        let width = self.shape[1];
        match &mut self.to {
            To::Packed(cpu, to) => {
                to.write(cpu, self.rows, w);
                if let (Some(exact), Dtype::BF16) = (&mut self.exact, self.dtype) {
                    keep(exact, self.rows, w.chunks_exact(width));
                }
            }
            To::Rows(to) => to.extend(w.iter().map(|&x| rounded(x, self.dtype))),
            To::Narrow(to) => to.extend(w.iter().map(|&x| to_bf16(x))),
        }
        self.rows += w.len() / width;
    }

    /// The weight, which has no f32 matrix beside it.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there were as many values as the shape holds; [`Error::Device`] when the device
    /// has no memory for it.
    pub fn finish(self) -> Result<Weight> {
        let Packing { device, dtype, shape: [out, width], to, exact, waiting, rows, beyond, .. } = self;
        if rows != out || beyond > 0 {
            let got = vec![vec![out, width], vec![rows * width + waiting.len() + beyond]];
            return Err(Error::Shape { op: "Packing", want: "as many values as the shape holds", got });
        }
        let forward = match (to, &device) {
            (To::Packed(_, w), _) => Layout::Packed(w),
            (To::Rows(w), Device::Cpu(_)) => Layout::Rows(w),
            (To::Rows(w), _) => Layout::Device(Tensor::new(&device, &[out, width], w)?),
            (To::Narrow(w), _) => Layout::Device(Tensor::new(&device, &[out, width], w)?),
        };
        Ok(Weight::of([out, width], dtype, forward, Source::Alone { device, exact }))
    }
}

/// Keeps those of the `rows` from `first` on that hold a denormal of bf16.
fn keep<'a>(exact: &mut Exact, first: usize, rows: impl Iterator<Item = &'a [f32]>) {
    if faults::on("denormal-of-a-table-lost") {
        return;
    }
    for (at, row) in rows.enumerate() {
        // a disjunction, which is done in lanes; what rounds up to a normal number is kept too
        if row.iter().fold(false, |any, x| any | x.is_subnormal()) {
            exact.insert((first + at) as u32, row.iter().map(|&x| to_bf16(x)).collect());
        }
    }
}

#[cfg(test)]
mod tests;
