//! Conversion between the floating-point types.
use super::checks::refuse_dtype;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// The values as f32: shared if they are f32, widened if they are bf16.
    ///
    /// # Errors
    /// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
    pub fn to_f32(&self) -> Result<Tensor> {
        self.cast(Dtype::F32)
    }

    /// The same values in another floating-point type, rounded to nearest even. Shared if the type is the same.
    ///
    /// # Errors
    /// [`Error::Dtype`](crate::Error::Dtype) unless both types are f32 or bf16.
    pub fn cast(&self, dtype: Dtype) -> Result<Tensor> {
        for of in [self.dtype(), dtype] {
            refuse_dtype(
                !matches!(of, Dtype::F32 | Dtype::BF16),
                "Tensor::cast",
                "f32 or bf16",
                self.dtype(),
            )?;
        }
        match self.dtype() == dtype {
            true => Ok(self.clone()),
            false => backend(self.device()).cast(self, dtype),
        }
    }
}
