//! The tensor: a shape and its values, row-major and contiguous, on a device.
use std::borrow::Cow;
use std::sync::{Arc, Weak};

use half::bf16;
use smallvec::SmallVec;

use crate::device::gpu::{self, At, Deferred, Gpu, Zeros};
use crate::device::recycle::{self, Recycled, Values};
use crate::device::{Cpu, Device, Reference};
use crate::dtype::{Dtype, Element, by_dtype};
use crate::error::{Error, Result};
use crate::faults::{self, Fault};

/// A row-major, contiguous tensor. Cloning shares the values.
#[derive(Debug, Clone)]
pub struct Tensor {
    shape: Shape,
    storage: Storage,
    device: Device,
}

/// The sizes of the dimensions. Up to four are stored inline, so that a new tensor needs no allocation for them.
type Shape = SmallVec<[usize; 4]>;

/// The results of an operation with several outputs. Up to four are stored inline.
pub type Tensors = SmallVec<[Tensor; 4]>;

#[derive(Debug, Clone)]
pub(crate) enum Storage {
    F32(Values<f32>),
    BF16(Values<bf16>),
    U32(Values<u32>),
    I32(Values<i32>),
    Gpu(Arc<gpu::Buffer>, Dtype),
}

/// Element types that a tensor can hold.
#[allow(private_bounds, reason = "sealed: only this file implements it")]
pub trait Stored: Wrapped {}

trait Wrapped: Recycled + bytemuck::Pod {
    fn wrap(values: Vec<Self>, device: &Device) -> Result<Storage>;
    /// The values, if they are in host memory and of this type.
    fn get(storage: &Storage) -> Option<&[Self]>;
    /// As `get`. Copies the values first if they are shared.
    fn get_mut(storage: &mut Storage) -> Option<&mut [Self]>;
}

macro_rules! stored {
    ($($t:ty => $variant:ident),*) => {$(
        impl Stored for $t {}
        impl Wrapped for $t {
            fn wrap(values: Vec<$t>, device: &Device) -> Result<Storage> {
                Ok(match device {
                    Device::Reference(Reference { recycler, .. }) | Device::Cpu(Cpu { recycler, .. }) => {
                        Storage::$variant(Values::new(values, recycler))
                    }
                    Device::Gpu(gpu) => {
                        elements_on_gpu(&[values.len()])?;
                        Storage::Gpu(Arc::new(gpu.upload(&values)?), <$t>::DTYPE)
                    }
                })
            }
            fn get(storage: &Storage) -> Option<&[$t]> {
                if let Storage::$variant(v) = storage { Some(v) } else { None }
            }
            fn get_mut(storage: &mut Storage) -> Option<&mut [$t]> {
                if let Storage::$variant(v) = storage { Some(v.make_mut()) } else { None }
            }
        }
    )*};
}
stored!(f32 => F32, bf16 => BF16, u32 => U32, i32 => I32);

impl Tensor {
    /// Creates a tensor of `shape` from `values`, row-major.
    ///
    /// # Errors
    /// [`Error::Shape`] if the product of `shape` is not the number of values; [`Error::Argument`] on a GPU for 2^32 or
    /// more of them; [`Error::Memory`] if the device has no memory for them.
    pub fn new<T: Stored>(device: &Device, shape: &[usize], values: Vec<T>) -> Result<Tensor> {
        if count(shape) != Some(values.len()) {
            let got = vec![shape.to_vec(), vec![values.len()]];
            return Err(Error::Shape { op: "Tensor::new", want: "as many values as the shape holds", got });
        }
        Ok(Tensor { shape: shape.into(), storage: T::wrap(values, device)?, device: device.clone() })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::Argument`] for a shape that no memory can hold, and on a GPU for one of 2^32 or more elements;
    /// [`Error::Memory`] if the device has no memory for it.
    pub fn zeros(device: &Device, shape: &[usize], dtype: Dtype) -> Result<Tensor> {
        fn zeroed<T: Stored>(device: &Device, n: usize) -> Result<Storage> {
            let values = match device {
                Device::Cpu(cpu) => {
                    let mut values = cpu.recycler.try_acquire(n)?;
                    cpu.pool.parts(&mut values, 1 << 15, |_, values| values.fill(T::default()));
                    values
                }
                _ => {
                    let mut values = recycle::with_capacity(n)?;
                    values.resize(n, T::default());
                    values
                }
            };
            T::wrap(values, device)
        }
        let storage = match device {
            Device::Gpu(gpu) => {
                let bytes = elements_on_gpu(shape)? * dtype.bytes();
                Storage::Gpu(Arc::new(gpu.deferred_zeros(bytes)?), dtype)
            }
            Device::Reference(_) | Device::Cpu(_) => {
                let n = elements(shape)?;
                by_dtype!(dtype, T => zeroed::<T>(device, n))?
            }
        };
        Ok(Tensor { shape: shape.into(), storage, device: device.clone() })
    }

    /// Creates an f32 tensor with unspecified values, for a caller that writes all of them: on a CPU in recycled memory,
    /// by this thread alone. On a GPU they are zeros.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn unspecified(device: &Device, shape: &[usize]) -> Result<Tensor> {
        match device {
            Device::Reference(Reference { recycler, .. }) | Device::Cpu(Cpu { recycler, .. }) => {
                Tensor::new(device, shape, recycler.try_acquire::<f32>(elements(shape)?)?)
            }
            Device::Gpu(_) => Tensor::zeros(device, shape, Dtype::F32),
        }
    }

    /// Creates an f32 tensor of zeros for each of `shapes`. The SIMD CPU fills all of them in one job.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn all_zeros(device: &Device, shapes: &[&[usize]]) -> Result<Vec<Tensor>> {
        let Device::Cpu(cpu) = device else {
            return shapes.iter().map(|shape| Tensor::zeros(device, shape, Dtype::F32)).collect();
        };
        let mut all: Vec<Tensor> =
            shapes.iter().map(|shape| Tensor::unspecified(device, shape)).collect::<Result<_>>()?;
        let part = (all.iter().map(Tensor::len).sum::<usize>() / 4096).max(1 << 13);
        let mut parts: Vec<&mut [f32]> = Vec::new();
        for tensor in &mut all {
            parts.extend(tensor.data_mut::<f32>()?.chunks_mut(part));
        }
        cpu.pool.parts(&mut parts, 1, |_, part| part[0].fill(0.0));
        Ok(all)
    }

    /// Creates an uninitialized tensor on a GPU. A kernel must write all of it.
    pub(crate) fn on_gpu(gpu: &Gpu, shape: &[usize], dtype: Dtype) -> Result<Tensor> {
        let buffer = gpu.buffer(elements_on_gpu(shape)? * dtype.bytes())?;
        let storage = Storage::Gpu(Arc::new(buffer), dtype);
        Ok(Tensor { shape: shape.into(), storage, device: Device::Gpu(gpu.clone()) })
    }

    /// The buffer of the values, if they are on `gpu` in `dtype`.
    fn buffer_on(&self, gpu: &Gpu, dtype: Dtype) -> Result<&gpu::Buffer> {
        match &self.storage {
            Storage::Gpu(buffer, own) if buffer.home().same(gpu) => match *own == dtype {
                true => Ok(buffer),
                false => Err(Error::Dtype { op: "operand on a GPU", want: dtype.name(), got: *own }),
            },
            _ => {
                let got = format!("{} on {}", self.dtype(), self.device);
                let what = format!("expected an operand in {dtype} on {}, found {got}", gpu.name());
                Err(Error::device(what))
            }
        }
    }

    /// Checks that [`Tensor::at`] has no error, without queueing the operation that writes the values.
    pub(crate) fn check_at(&self, gpu: &Gpu, dtype: Dtype) -> Result<()> {
        self.buffer_on(gpu, dtype).map(|_| ())
    }

    /// The device address of the values, for a kernel of `gpu` that reads them as `dtype`.
    ///
    /// # Errors
    /// [`Error::Dtype`] if they are on `gpu` in another dtype; [`Error::Device`] if they are on another device.
    pub(crate) fn at(&self, gpu: &Gpu, dtype: Dtype) -> Result<At> {
        let buffer = self.buffer_on(gpu, dtype)?;
        buffer.run_deferred()?;
        Ok(buffer.arg())
    }

    /// Sets the operation that writes a new tensor on a GPU when its values are first read.
    pub(crate) fn defer(&self, op: impl Deferred) {
        if let Storage::Gpu(buffer, _) = &self.storage {
            buffer.defer(op);
        }
    }

    /// Returns the deferred operation that writes this tensor, if it is a `T`.
    pub(crate) fn deferred<T: Deferred + Clone>(&self) -> Option<T> {
        match &self.storage {
            Storage::Gpu(buffer, _) => buffer.deferred(),
            _ => None,
        }
    }

    /// A handle of the buffer on a GPU that does not keep it alive.
    pub(crate) fn weak_buffer(&self) -> Weak<gpu::Buffer> {
        match &self.storage {
            Storage::Gpu(buffer, _) => Arc::downgrade(buffer),
            _ => Weak::new(),
        }
    }

    /// Queues a fused kernel in place of the deferred operation: `launch` receives the address to write to.
    pub(crate) fn write_deferred(&self, launch: impl FnOnce(At) -> Result<()>) -> Result<()> {
        let Storage::Gpu(buffer, _) = &self.storage else { return Ok(()) };
        launch(buffer.arg())?;
        buffer.written();
        Ok(())
    }

    /// The device address of the values, for a kernel that writes them. Copies them first if they are shared.
    pub(crate) fn at_mut(&mut self, gpu: &Gpu, dtype: Dtype) -> Result<At> {
        self.at(gpu, dtype)?;
        if let Storage::Gpu(buffer, _) = &mut self.storage
            && Arc::get_mut(buffer).is_none()
            && !faults::on(Fault::CopyOnWriteSkipped)
        {
            *buffer = Arc::new(buffer.duplicate()?);
        }
        self.at(gpu, dtype)
    }

    /// The device addresses `[start, to]` of an f32 accumulator, for a kernel that writes `start + sum` to all of `to`.
    /// `start` is null if the values are zeros that no kernel has written. Copies the values first if they are shared.
    pub(crate) fn accumulator_at(&mut self, gpu: &Gpu) -> Result<[At; 2]> {
        let unwritten = self.deferred::<Zeros>().is_some() || faults::on(Fault::AccumulationStartsAnew);
        if let Storage::Gpu(buffer, Dtype::F32) = &mut self.storage
            && unwritten
            && buffer.home().same(gpu)
            && (Arc::get_mut(buffer).is_some() || faults::on(Fault::SharedZerosOverwritten))
        {
            buffer.written();
            return Ok([At(0), buffer.arg()]);
        }
        Ok([self.at_mut(gpu, Dtype::F32)?; 2])
    }

    /// The size of each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The size of the last dimension; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The number of rows: the number of elements divided by the size of the last dimension. A vector is one row.
    pub fn rows(&self) -> usize {
        self.len() / self.width().max(1)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self.storage {
            Storage::F32(_) => Dtype::F32,
            Storage::BF16(_) => Dtype::BF16,
            Storage::U32(_) => Dtype::U32,
            Storage::I32(_) => Dtype::I32,
            Storage::Gpu(_, dtype) => dtype,
        }
    }

    /// The device of the values.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the same values on `device`: shared between CPU devices, copied to and from a GPU.
    ///
    /// # Errors
    /// [`Error::Memory`] if a device has no memory for them; [`Error::Argument`] for 2^32 or more values to a GPU.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        fn moved<T: Stored>(x: &Tensor, device: &Device) -> Result<Storage> {
            T::wrap(x.to_vec::<T>()?, device)
        }
        let storage = match (&self.storage, device) {
            (Storage::Gpu(buffer, _), Device::Gpu(gpu)) if buffer.home().same(gpu) => self.storage.clone(),
            (Storage::Gpu(..), _) | (_, Device::Gpu(_)) => {
                by_dtype!(self.dtype(), T => moved::<T>(self, device))?
            }
            (own, Device::Reference(_) | Device::Cpu(_)) => own.clone(),
        };
        Ok(Tensor { shape: self.shape.clone(), storage, device: device.clone() })
    }

    /// Returns the same values in host memory: shared if they are already there, otherwise copied.
    ///
    /// # Errors
    /// [`Error::Device`] if a device fails.
    pub fn to_host(&self) -> Result<Tensor> {
        match self.storage {
            Storage::Gpu(..) => self.to_device(&Device::cpu()),
            _ => Ok(self.clone()),
        }
    }

    /// Returns the values, row-major: borrowed if they are in host memory, otherwise copied.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    pub fn read<T: Stored>(&self) -> Result<Cow<'_, [T]>> {
        match self.storage {
            Storage::Gpu(..) => self.to_vec().map(Cow::Owned),
            _ => self.data().map(Cow::Borrowed),
        }
    }

    /// Returns a copy of the values in host memory, row-major.
    ///
    /// # Errors
    /// [`Error::Dtype`] if the elements are of another type; [`Error::Device`] if a device fails.
    pub fn to_vec<T: Stored>(&self) -> Result<Vec<T>> {
        match &self.storage {
            Storage::Gpu(buffer, dtype) if *dtype == T::DTYPE => {
                let _issue = buffer.home().issue();
                buffer.run_deferred()?;
                buffer.home().download(buffer)
            }
            Storage::Gpu(_, got) => {
                Err(Error::Dtype { op: "Tensor::to_vec", want: T::DTYPE.name(), got: *got })
            }
            _ => Ok(self.data::<T>()?.to_vec()),
        }
    }

    /// Borrows the values, which are in host memory, row-major.
    ///
    /// # Errors
    /// [`Error::Dtype`] if the elements have another type; [`Error::Device`] if they are on a GPU
    /// ([`to_vec`](Self::to_vec) copies them).
    pub fn data<T: Stored>(&self) -> Result<&[T]> {
        T::get(&self.storage).ok_or_else(|| self.unread("Tensor::data", T::DTYPE.name()))
    }

    /// The error of an access to values that the host cannot borrow.
    fn unread(&self, op: &'static str, want: &'static str) -> Error {
        match &self.device {
            Device::Reference(_) | Device::Cpu(_) => Error::Dtype { op, want, got: self.dtype() },
            Device::Gpu(gpu) => Error::device(format!("{op}: the values are on {}", gpu.name())),
        }
    }

    /// Borrows the values mutably. Copies them first if they are shared.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub fn data_mut<T: Stored>(&mut self) -> Result<&mut [T]> {
        if T::get(&self.storage).is_none() {
            return Err(self.unread("Tensor::data_mut", T::DTYPE.name()));
        }
        Ok(T::get_mut(&mut self.storage).expect("get has found the values"))
    }

    /// Returns the same values with another shape of the same number of elements.
    ///
    /// # Errors
    /// [`Error::Shape`] if the numbers of elements differ.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if count(shape) != Some(self.len()) {
            let got = vec![self.shape.to_vec(), shape.to_vec()];
            return Err(Error::Shape {
                op: "Tensor::reshape",
                want: "shapes with the same number of elements",
                got,
            });
        }
        Ok(Tensor { shape: shape.into(), storage: self.storage.clone(), device: self.device.clone() })
    }
}

/// The number of elements of a new tensor, whose values have at most `isize::MAX` bytes in every dtype.
fn elements(shape: &[usize]) -> Result<usize> {
    let n = match faults::on(Fault::NumberOfElementsWraps) {
        true => Some(shape.iter().fold(1, |n: usize, &d| n.wrapping_mul(d))),
        false => count(shape),
    };
    let n = n.filter(|&n| n < 1 << (usize::BITS - 3));
    let want = "a shape that memory can hold";
    n.ok_or_else(|| Error::Argument { op: "Tensor", want, got: format!("{shape:?}") })
}

/// [`elements`] of a tensor on a GPU: the kernels count in 32 bits.
fn elements_on_gpu(shape: &[usize]) -> Result<usize> {
    let n = elements(shape)?;
    if u32::try_from(n).is_ok() {
        return Ok(n);
    }
    let want = "fewer than 2^32 elements, the limit of the kernels' counters";
    Err(Error::Argument { op: "Tensor on a GPU", want, got: format!("{shape:?}") })
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

#[cfg(test)]
mod tests;
