//! Weights of the reference: row-major, rounded to the dtype of the products.
use half::bf16;

use crate::device::{Device, Reference};
use crate::dtype::{Dtype, from_bf16, round_bf16};
use crate::error::Result;
use crate::operands::{AllRows, PackedMatrix, Packer, Weight};
use crate::tensor::Tensor;

/// `[out, in]`, row-major, for products in both directions.
#[derive(Debug)]
pub(super) struct Rows(pub(super) Vec<f32>);

impl PackedMatrix for Rows {
    fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

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
    fn of_rows(device: Device, shape: [usize; 2], dtype: Dtype, rows: Vec<f32>) -> Result<Weight> {
        Ok(Weight::from_packed(shape, dtype, device, None, Box::new(Rows(rows))))
    }
    let device = Device::Reference(reference.clone());
    match dtype {
        Dtype::BF16 => AllRows::<bf16>::packer(device, shape, |device, shape, rows| {
            of_rows(device, shape, Dtype::BF16, rows.into_iter().map(from_bf16).collect())
        }),
        _ => AllRows::packer(device, shape, |device, shape, rows| of_rows(device, shape, Dtype::F32, rows)),
    }
}
