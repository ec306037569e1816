//! A matrix prepared for products: packed once, used until the next optimizer step.
use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A weight `[out, in]` in the layout that the products of its device read, in f32 or rounded to bf16.
#[derive(Debug)]
pub struct Weight {
    shape: [usize; 2],
    dtype: Dtype,
    device: Device,
    master: Option<Tensor>,
    forward: Box<dyn PackedMatrix>,
    backward: OnceLock<Box<dyn PackedMatrix>>,
}

/// `x -> x Wᵀ + b`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// `[out, in]`.
    pub weight: &'a Weight,
    /// `[out]`, f32. `None`: no bias.
    pub bias: Option<&'a Tensor>,
}

/// A matrix in the layout of one backend. Each backend has its own type for it.
pub(crate) trait PackedMatrix: Any + fmt::Debug + Send + Sync {
    /// Bytes of memory.
    fn bytes(&self) -> usize;

    /// Bytes of the blocks of a quantized matrix, without padding. `None`: it is not quantized.
    fn block_bytes(&self) -> Option<usize> {
        None
    }
}

impl Weight {
    /// Creates a weight from its packed matrix and the f32 matrix `master`. `None`: it was not kept.
    pub(crate) fn from_packed(
        shape: [usize; 2],
        dtype: Dtype,
        device: Device,
        master: Option<Tensor>,
        forward: Box<dyn PackedMatrix>,
    ) -> Weight {
        Weight { shape, dtype, device, master, forward, backward: OnceLock::new() }
    }

    /// Adds the matrix packed for `dy W`.
    pub(crate) fn with_backward(mut self, backward: Box<dyn PackedMatrix>) -> Weight {
        self.backward = backward.into();
        self
    }

    /// The number of outputs.
    pub fn out_features(&self) -> usize {
        self.shape[0]
    }

    /// The number of inputs.
    pub fn in_features(&self) -> usize {
        self.shape[1]
    }

    /// `[out, in]`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The dtype of the operands of its products.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Bytes of the matrix for `x Wᵀ`.
    pub fn packed_bytes(&self) -> usize {
        self.forward.bytes()
    }

    /// Bytes of the blocks of a matrix that is quantized in memory, without padding. `None`: it is not quantized.
    pub fn block_bytes(&self) -> Option<usize> {
        self.forward.block_bytes()
    }

    /// The device that it was packed for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The f32 matrix that it was packed from. `None`: it was not kept.
    pub(crate) fn master(&self) -> Option<&Tensor> {
        self.master.as_ref()
    }

    /// The matrix for `x Wᵀ`.
    ///
    /// # Errors
    /// [`Error::Device`] if another backend packed it.
    pub(crate) fn forward<T: PackedMatrix>(&self) -> Result<&T> {
        self.of_backend(&*self.forward)
    }

    /// The matrix for `dy W`, packed by `pack` at its first use.
    ///
    /// # Errors
    /// As [`Weight::forward`], and those of `pack`.
    pub(crate) fn backward<T: PackedMatrix>(&self, pack: impl FnOnce() -> Result<T>) -> Result<&T> {
        if let Some(packed) = self.backward.get() {
            return self.of_backend(&**packed);
        }
        let packed = Box::new(pack()?);
        self.of_backend(&**self.backward.get_or_init(|| packed))
    }

    fn of_backend<'a, T: PackedMatrix>(&self, matrix: &'a dyn PackedMatrix) -> Result<&'a T> {
        (matrix as &dyn Any).downcast_ref().ok_or_else(|| {
            let device = &self.device;
            Error::device(format!(
                "expected a weight packed for the device of its operands, found one packed for {device}"
            ))
        })
    }
}
