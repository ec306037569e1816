//! Weights on a GPU: row-major matrices in the dtype of the products, for both directions.
use half::bf16;

use super::{At, Gpu, Grid, args, pointwise};
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

/// Elements per block of `cast_all`.
const BLOCK: usize = 4096;

/// [`pack`] of all matrices of a model. One kernel rounds them to bf16.
pub(super) fn pack_for_training(gpu: &Gpu, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
    if dtype != Dtype::BF16 || ws.iter().any(|w| w.dtype() != Dtype::F32 || w.is_empty()) {
        return ws.iter().map(|w| pack(gpu, w, dtype)).collect();
    }
    let (mut packed, mut table, mut blocks) = (Vec::with_capacity(ws.len()), Vec::new(), 0);
    for w in ws {
        let matrix = Tensor::on_gpu(gpu, w.shape(), dtype)?;
        for word in [w.at(gpu, Dtype::F32)?.0, matrix.at(gpu, dtype)?.0, w.len() as u64, blocks as u64] {
            table.extend([word as u32, (word >> 32) as u32]);
        }
        blocks += w.len().div_ceil(BLOCK);
        let shape = [w.shape()[0], w.shape()[1]];
        let forward = Box::new(DeviceMatrix(matrix));
        packed.push(Weight::from_packed(shape, dtype, w.device().clone(), Some((*w).clone()), forward));
    }
    let args = args![gpu.indices(&table)?, ws.len()];
    // SAFETY: the table has the live buffers of each matrix and its bf16 copy, and their number of elements; the grid
    // matches its block counts.
    unsafe { gpu.launch("cast_all_f32_bf16", Grid::blocks([blocks, 1, 1], 256), args)? };
    Ok(packed)
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

#[cfg(test)]
#[cfg(xtrain_emu)]
pub(crate) mod tests {
    use crate::ops::Weight;
    use crate::testing::{arbitrary, checked, compare_bits};
    use crate::{Dtype, Tensor, ThreadSchedule};

    /// Compares matrices that are packed together with each one alone. Returns the number of values.
    pub(crate) fn packed_together() -> Result<usize, String> {
        let device = checked(ThreadSchedule::Random(4));
        let shapes = [[1, 1], [64, 64], [3, 1365], [70, 117], [128, 65], [1, 4095], [2, 4098]];
        let of = |(seed, shape): (u64, [usize; 2])| {
            Tensor::new(&device, &shape, arbitrary(shape[0] * shape[1], seed)).unwrap()
        };
        let ws: Vec<Tensor> = (1..).zip(shapes).map(of).collect();
        let together = Weight::for_training(&ws.iter().collect::<Vec<_>>(), Dtype::BF16).unwrap();
        let failed = |e: String| format!("packed together, seeds 1 to 7: {e}");
        let bits = |w: &Weight| {
            let values = w.matrix().and_then(|w| w.cast(Dtype::F32)?.to_vec::<f32>());
            values.map_err(|e| failed(e.to_string()))
        };
        let mut values = 0;
        for (w, together) in ws.iter().zip(&together) {
            let alone = bits(&Weight::new(w, Dtype::BF16).unwrap())?;
            compare_bits(&bits(together)?, &alone).map_err(|e| failed(format!("{:?}: {e}", w.shape())))?;
            values += alone.len();
        }
        Ok(values)
    }

    #[test]
    fn matrices_that_are_packed_together_have_the_bits_of_each_alone() {
        let values = packed_together().unwrap_or_else(|e| panic!("{e}"));
        println!("packed together: {values} values, 0 differ");
    }
}
