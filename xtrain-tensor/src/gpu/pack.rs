//! Weights on a GPU: row-major matrices in the dtype of the products, for both directions.
use half::bf16;

use super::{At, Gpu, pointwise};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{AllRows, PackedMatrix, Packer, Weight};
use crate::tensor::{Stored, Tensor};

/// `[out, in]` on the device: the f32 matrix itself, or its copy in bf16.
#[derive(Debug)]
struct DeviceMatrix(Tensor);

impl PackedMatrix for DeviceMatrix {
    fn bytes(&self) -> usize {
        self.0.len() * self.0.dtype().bytes()
    }
}

impl Weight {
    /// The address of the matrix on `gpu`, row-major, for either direction.
    pub(crate) fn at(&self, gpu: &Gpu) -> Result<At> {
        self.matrix()?.at(gpu, self.dtype())
    }

    /// The matrix on the GPU, in the dtype of the products.
    pub(super) fn matrix(&self) -> Result<&Tensor> {
        Ok(&self.forward::<DeviceMatrix>()?.0)
    }

    /// The matrix that lookups read: the f32 master weights if they were kept, otherwise the packed matrix.
    pub(super) fn table(&self) -> Result<&Tensor> {
        self.master().map_or_else(|| self.matrix(), Ok)
    }
}

pub(super) fn pack(gpu: &Gpu, w: &Tensor, dtype: Dtype) -> Result<Weight> {
    let matrix = if w.dtype() == dtype { w.clone() } else { pointwise::cast(gpu, w, dtype)? };
    let shape = [w.shape()[0], w.shape()[1]];
    let forward = Box::new(DeviceMatrix(matrix));
    Ok(Weight::from_packed(shape, dtype, w.device().clone(), Some(w.clone()), forward))
}

pub(super) fn packer(gpu: &Gpu, shape: [usize; 2], dtype: Dtype) -> Box<dyn Packer> {
    let device = Device::Gpu(gpu.clone());
    match dtype {
        Dtype::BF16 => AllRows::packer(device, shape, of_rows::<bf16>),
        _ => AllRows::packer(device, shape, of_rows::<f32>),
    }
}

fn of_rows<T: Stored>(device: Device, shape: [usize; 2], rows: Vec<T>) -> Result<Weight> {
    let matrix = DeviceMatrix(Tensor::new(&device, &shape, rows)?);
    Ok(Weight::from_packed(shape, matrix.0.dtype(), device, None, Box::new(matrix)))
}
