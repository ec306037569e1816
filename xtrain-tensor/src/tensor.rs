//! The tensor: a shape and its values, row-major and contiguous, on a device.
use std::sync::Arc;

use half::bf16;

use crate::cpu::pointwise;
use crate::device::Device;
use crate::dtype::{Dtype, Element, from_bf16, to_bf16};
use crate::error::{Error, Result};
use crate::recycle::{Buffer, Recycled};

/// A row-major, contiguous tensor. Cloning shares the values.
#[derive(Debug, Clone)]
pub struct Tensor {
    shape: Vec<usize>,
    storage: Storage,
    device: Device,
}

/// The values of a tensor, by element type.
#[derive(Debug, Clone)]
pub(crate) enum Storage {
    F32(Arc<Buffer<f32>>),
    BF16(Arc<Buffer<bf16>>),
    U32(Arc<Buffer<u32>>),
    I32(Arc<Buffer<i32>>),
}

/// Element types that a tensor can hold.
#[allow(private_bounds, reason = "sealed: only this file implements it")]
pub trait Stored: Recycled {
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "sealed: only this file implements it")]
    fn wrap(values: Vec<Self>, device: &Device) -> Storage;
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "sealed: only this file implements it")]
    fn get(storage: &Storage) -> Option<&[Self]>;
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "sealed: only this file implements it")]
    fn get_mut(storage: &mut Storage) -> Option<&mut [Self]>;
}

macro_rules! stored {
    ($($t:ty => $variant:ident),*) => {$(
        #[allow(private_interfaces, reason = "sealed: only this file implements it")]
        impl Stored for $t {
            fn wrap(values: Vec<$t>, device: &Device) -> Storage {
                Storage::$variant(Arc::new(Buffer::new(values, &device.as_cpu().recycler)))
            }
            fn get(storage: &Storage) -> Option<&[$t]> {
                match storage {
                    Storage::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn get_mut(storage: &mut Storage) -> Option<&mut [$t]> {
                match storage {
                    Storage::$variant(v) => Some(&mut *Arc::make_mut(v)),
                    _ => None,
                }
            }
        }
    )*};
}
stored!(f32 => F32, bf16 => BF16, u32 => U32, i32 => I32);

impl Tensor {
    /// A tensor of `shape` over `values`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the product of `shape` is not the number of values.
    pub fn new<T: Stored>(device: &Device, shape: &[usize], values: Vec<T>) -> Result<Tensor> {
        if count(shape) != Some(values.len()) {
            let got = vec![shape.to_vec(), vec![values.len()]];
            return Err(Error::Shape { op: "Tensor::new", want: "as many values as the shape holds", got });
        }
        Ok(Tensor { shape: shape.to_vec(), storage: T::wrap(values, device), device: device.clone() })
    }

    /// A tensor of zeros.
    pub fn zeros(device: &Device, shape: &[usize], dtype: Dtype) -> Tensor {
        fn blank<T: Stored>(device: &Device, n: usize) -> Storage {
            let cpu = device.as_cpu();
            let mut values = cpu.recycler.take(n);
            cpu.pool.parts(&mut values, 1 << 15, |_, values| values.fill(T::default()));
            T::wrap(values, device)
        }
        let n = shape.iter().product();
        let storage = match dtype {
            Dtype::F32 => blank::<f32>(device, n),
            Dtype::BF16 => blank::<bf16>(device, n),
            Dtype::U32 => blank::<u32>(device, n),
            Dtype::I32 => blank::<i32>(device, n),
        };
        Tensor { shape: shape.to_vec(), storage, device: device.clone() }
    }

    /// The extent of each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The extent of the last dimension; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        match self.storage {
            Storage::F32(_) => Dtype::F32,
            Storage::BF16(_) => Dtype::BF16,
            Storage::U32(_) => Dtype::U32,
            Storage::I32(_) => Dtype::I32,
        }
    }

    /// Where the values live.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same values, computed on by `device` from now on.
    pub fn on(&self, device: &Device) -> Tensor {
        Tensor { device: device.clone(), ..self.clone() }
    }

    /// The values, row-major.
    ///
    /// # Errors
    /// [`Error::Dtype`] when the elements are of another type.
    pub fn data<T: Stored>(&self) -> Result<&[T]> {
        let got = self.dtype();
        T::get(&self.storage).ok_or(Error::Dtype { op: "Tensor::data", want: name::<T>(), got })
    }

    /// The values, to be written. Copies them first if they are shared.
    ///
    /// # Errors
    /// [`Error::Dtype`] when the elements are of another type.
    pub fn data_mut<T: Stored>(&mut self) -> Result<&mut [T]> {
        let got = self.dtype();
        T::get_mut(&mut self.storage).ok_or(Error::Dtype { op: "Tensor::data_mut", want: name::<T>(), got })
    }

    /// The values as f32: shared if they are, widened if they are bf16.
    ///
    /// # Errors
    /// [`Error::Dtype`] for a tensor of integers.
    pub fn to_f32(&self) -> Result<Tensor> {
        self.cast(Dtype::F32)
    }

    /// The same values in another floating-point type, rounded to nearest even.
    ///
    /// # Errors
    /// [`Error::Dtype`] unless both types are f32 or bf16.
    pub fn cast(&self, dtype: Dtype) -> Result<Tensor> {
        let fast = self.device.fast();
        let storage = match (&self.storage, dtype) {
            (Storage::F32(_), Dtype::F32) | (Storage::BF16(_), Dtype::BF16) => self.storage.clone(),
            (Storage::F32(v), Dtype::BF16) => {
                let values = match fast {
                    Some(cpu) => pointwise::cast(cpu, v),
                    None => v.iter().map(|&x| to_bf16(x)).collect(),
                };
                bf16::wrap(values, &self.device)
            }
            (Storage::BF16(v), Dtype::F32) => {
                let values = match fast {
                    Some(cpu) => pointwise::cast(cpu, v),
                    None => v.iter().map(|&x| from_bf16(x)).collect(),
                };
                f32::wrap(values, &self.device)
            }
            _ => {
                return Err(Error::Dtype { op: "Tensor::cast", want: "f32 or bf16", got: self.dtype() });
            }
        };
        Ok(Tensor { shape: self.shape.clone(), storage, device: self.device.clone() })
    }

    /// The same values under another shape of the same count.
    ///
    /// # Errors
    /// [`Error::Shape`] when the counts differ.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if count(shape) != Some(self.len()) {
            let got = vec![self.shape.clone(), shape.to_vec()];
            return Err(Error::Shape { op: "Tensor::reshape", want: "shapes of one count", got });
        }
        Ok(Tensor { shape: shape.to_vec(), storage: self.storage.clone(), device: self.device.clone() })
    }
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

fn name<T: Element>() -> &'static str {
    match T::DTYPE {
        Dtype::F32 => "f32",
        Dtype::BF16 => "bf16",
        Dtype::U32 => "u32",
        Dtype::I32 => "i32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_of_another_count_is_an_error() {
        let dev = Device::cpu();
        let err = Tensor::new(&dev, &[2, 3], vec![0f32; 5]).unwrap_err();
        assert_eq!(err.to_string(), "Tensor::new: want as many values as the shape holds, got [[2, 3], [5]]");
        assert!(Tensor::new(&dev, &[usize::MAX, 2], vec![0f32; 5]).is_err());
    }

    #[test]
    fn reading_another_dtype_is_an_error() {
        let t = Tensor::zeros(&Device::cpu(), &[2], Dtype::BF16);
        assert_eq!(t.data::<f32>().unwrap_err().to_string(), "Tensor::data: want f32, got bf16");
    }

    #[test]
    fn a_write_does_not_reach_a_clone() {
        let a = Tensor::new(&Device::cpu(), &[2], vec![1f32, 2.0]).unwrap();
        let mut b = a.clone();
        b.data_mut::<f32>().unwrap()[0] = 9.0;
        assert_eq!(a.data::<f32>().unwrap(), [1.0, 2.0]);
    }
}
