//! An optimizer step of several processes, each of which updates a slice of the parameters: the parts of
//! [`ops::adamw_all`](crate::ops::adamw_all), with the same bits.
use crate::backend::HostBackend;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::optim;
use crate::host;
use crate::operands::{AdamWScalars, Update};
use crate::tensor::Tensor;

/// The *sum32* of the squares of each row, for all rows of `gradients` in order. A vector is one row. A GPU synchronizes.
///
/// # Errors
/// [`Error::Device`] for tensors on another device.
pub fn row_squares(device: &Device, gradients: &[&Tensor]) -> Result<Vec<f32>> {
    match device {
        Device::Reference(reference) => reference.row_squares(gradients),
        Device::Cpu(cpu) => cpu.row_squares(gradients),
        Device::Gpu(gpu) => {
            let _issue = gpu.issue();
            optim::row_squares(gpu, gradients)
        }
    }
}

/// The global norm of gradients from [`row_squares`] of all their rows in walk order. `rows`: the number of rows of each
/// gradient.
///
/// Order: *sum32* over the rows of each gradient; these sums from +0 in walk order.
///
/// # Errors
/// [`Error::Device`] for a GPU.
///
/// # Panics
/// If there are fewer squares than rows.
pub fn global_norm(device: &Device, squares: &[f32], rows: &[usize]) -> Result<f32> {
    match device {
        Device::Reference(reference) => Ok(host::global_norm(reference, squares, rows)),
        Device::Cpu(cpu) => Ok(host::global_norm(cpu, squares, rows)),
        Device::Gpu(_) => {
            Err(Error::device("the sums of rows are in host memory: expected a CPU, found a GPU"))
        }
    }
}

/// The AdamW update of `all`, which are slices of whole rows of parameters; a slice of a matrix has two dimensions. The
/// gradients are scaled by `min(1, max_norm / (norm + 1e-6))`. Returns whether all updated values are finite. A GPU
/// synchronizes.
///
/// # Errors
/// [`Error::Shape`] unless the four tensors of a parameter have one shape; [`Error::Device`] for tensors on another
/// device.
pub fn update(
    device: &Device,
    all: &mut [Update<'_>],
    [norm, max_norm]: [f32; 2],
    scalars: &AdamWScalars,
) -> Result<bool> {
    Update::check("sliced_adamw::update", all)?;
    let clip = host::clip_factor(norm, max_norm);
    match device {
        Device::Reference(reference) => reference.update(all, clip, scalars),
        Device::Cpu(cpu) => cpu.update(all, clip, scalars),
        Device::Gpu(gpu) => {
            let _issue = gpu.issue();
            optim::update(gpu, all, clip, scalars)
        }
    }
}
