//! Addition.
use super::shapes;
use crate::cpu::pointwise;
use crate::{Device, Error, Result, Tensor, gpu};

/// `a + b`, both f32 of one shape.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ, [`Error::Dtype`] unless both are f32.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if let (Device::Gpu(gpu), true) = (a.device(), a.shape() == b.shape()) {
        return gpu::add(gpu, a, b);
    }
    let mut y = a.clone();
    accumulate(&mut y, b)?;
    Ok(y)
}

/// `a = a + b`, both f32 of one shape.
///
/// # Errors
/// As [`add`].
pub fn accumulate(a: &mut Tensor, b: &Tensor) -> Result<()> {
    if a.shape() != b.shape() {
        return Err(Error::Shape { op: "add", want: "one shape", got: shapes(&[a, b]) });
    }
    if let Device::Gpu(gpu) = &a.device().clone() {
        return gpu::accumulate(gpu, a, b);
    }
    let (device, b) = (a.device().clone(), b.data::<f32>()?);
    let a = a.data_mut::<f32>()?;
    match device.fast() {
        Some(cpu) => pointwise::accumulate(cpu, a, b),
        None => a.iter_mut().zip(b).for_each(|(a, b)| *a += b),
    }
    Ok(())
}
