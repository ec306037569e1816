//! Weights of the reference: row-major, rounded to the dtype of the products.
use half::bf16;

use crate::device::{Device, Reference};
use crate::dtype::{Dtype, Element, from_bf16, round_bf16};
use crate::error::Result;
use crate::operands::{Lines, PackValue, PackedMatrix, Packer, RowSink, Weight};
use crate::tensor::Tensor;

/// `[out, in]`, row-major, for products in both directions.
#[derive(Debug)]
pub(super) struct Rows(pub(super) Vec<f32>);

impl PackedMatrix for Rows {}

fn rounded(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::BF16 => round_bf16(x),
        _ => x,
    }
}

pub(super) fn pack(w: &Tensor, dtype: Dtype) -> Result<Weight> {
    let rows = w.data::<f32>()?.iter().map(|&x| rounded(x, dtype)).collect();
    let shape = [w.shape()[0], w.shape()[1]];
    Ok(Weight::from_packed(shape, dtype, w.device().clone(), Some(w.clone()), Box::new(Rows(rows))))
}

pub(super) fn packer(reference: &Reference, shape: [usize; 2], dtype: Dtype) -> Box<dyn Packer> {
    let device = Device::Reference(reference.clone());
    match dtype {
        Dtype::BF16 => {
            let rows = Vec::<bf16>::new();
            Box::new(Lines::new(Sink { device, shape, rows, widen: from_bf16 }, shape, 1))
        }
        _ => Box::new(Lines::new(Sink { device, shape, rows: Vec::<f32>::new(), widen: |x| x }, shape, 1)),
    }
}

#[derive(Debug)]
struct Sink<T> {
    device: Device,
    shape: [usize; 2],
    rows: Vec<T>,
    widen: fn(T) -> f32,
}

impl<T: PackValue + Element> RowSink for Sink<T> {
    type Value = T;

    fn keep_exact_rows(&mut self) {}

    fn write(&mut self, _first: usize, _width: usize, w: &[T]) {
        self.rows.extend_from_slice(w);
    }

    fn finish(self) -> Result<Weight> {
        let rows = Rows(self.rows.into_iter().map(self.widen).collect());
        Ok(Weight::from_packed(self.shape, T::DTYPE, self.device, None, Box::new(rows)))
    }
}
