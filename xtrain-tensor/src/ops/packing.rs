//! Packing of weights whose values arrive in pieces.
use crate::device::Device;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{Packer, Piece, Weight};

/// Packs a [`Weight`] from the values of a matrix, row-major, in pieces of any size.
///
/// The CPU packs about 65,536 values at a time, and at least 32 rows per thread, in the dtype of the products. The
/// reference and a GPU collect all rows first.
#[derive(Debug)]
pub struct WeightPacker {
    packer: Box<dyn Packer>,
}

impl WeightPacker {
    /// Creates a packer of a weight `[out, in]` for products in `dtype` (f32 or bf16) on `device`.
    ///
    /// # Errors
    /// As [`Weight::new`].
    pub fn new(device: &Device, shape: &[usize], dtype: Dtype) -> Result<WeightPacker> {
        const OP: &str = "WeightPacker::new";
        let &[out, width] = shape else {
            return Err(Error::Shape { op: OP, want: "w [out, in]", got: vec![shape.to_vec()] });
        };
        if out.checked_mul(width).is_none_or(|n| n == 0) {
            let want = "w [out, in], both at least 1";
            return Err(Error::Shape { op: OP, want, got: vec![shape.to_vec()] });
        }
        match dtype {
            Dtype::F32 | Dtype::BF16 => {
                Ok(WeightPacker { packer: backend(device).packer([out, width], dtype)? })
            }
            Dtype::U32 | Dtype::I32 => Err(Error::Dtype { op: OP, want: "f32 or bf16", got: dtype }),
        }
    }

    /// Also keeps denormals exactly: the matrix is a table whose rows [`weight_rows`](super::weight_rows) will read.
    #[must_use]
    pub fn table(mut self) -> WeightPacker {
        self.packer.keep_exact_rows();
        self
    }

    /// Appends the next values of the matrix, row-major.
    pub fn push<'a>(&mut self, values: impl Into<Piece<'a>>) {
        self.packer.push(values.into());
    }

    /// Returns the weight. It keeps no f32 master weights.
    ///
    /// # Errors
    /// [`Error::Shape`] unless the number of values is that of the shape; [`Error::Device`] if the device has no
    /// memory for it.
    pub fn finish(self) -> Result<Weight> {
        self.packer.finish()
    }
}

#[cfg(test)]
mod tests;
