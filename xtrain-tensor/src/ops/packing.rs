//! Packing of weights: whole matrices, and matrices whose values arrive in pieces.
use super::checks::{check_float, misfit_shapes, refuse_dtype};
use crate::device::Device;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{Packer, Piece, QUANT_BLOCK, QuantFormat, Weight};
use crate::tensor::Tensor;

impl Weight {
    /// Packs the f32 matrix `w [out, in]` for products in `dtype` (f32 or bf16). Keeps `w` as the master weights,
    /// without a copy.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` has two dimensions of at least 1; [`Error::Dtype`] unless it is f32 and `dtype` is f32
    /// or bf16; [`Error::Memory`] if the device has no memory for it.
    pub fn new(w: &Tensor, dtype: Dtype) -> Result<Weight> {
        check(w, dtype)?;
        backend(w.device()).pack(w, dtype)
    }

    /// [`Weight::new`] of each of `ws`, all on one device. The CPU also packs them for the gradients, in one job.
    ///
    /// # Errors
    /// As [`Weight::new`], for the first invalid matrix.
    pub fn for_training(ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
        ws.iter().try_for_each(|w| check(w, dtype))?;
        match ws.first() {
            Some(w) => backend(w.device()).pack_for_training(ws, dtype),
            None => Ok(Vec::new()),
        }
    }
}

fn check(w: &Tensor, dtype: Dtype) -> Result<()> {
    const OP: &str = "Weight::new";
    if w.shape().len() != 2 || w.is_empty() {
        return Err(misfit_shapes(OP, "w [out, in]", &[w.shape()]));
    }
    refuse_dtype(w.dtype() != Dtype::F32, OP, "w in f32", w.dtype())?;
    check_float(OP, dtype)
}

/// Packs a [`Weight`] from the values of a matrix, row-major, in pieces of any size.
///
/// The CPU packs about 65,536 values at a time, and at least 32 rows per thread, in the dtype of the products. The
/// reference and a GPU collect all rows first.
///
/// If the first piece holds quantized blocks, the products are in f32 and the rows are whole blocks, the CPU keeps the
/// matrix quantized. Its products have the bits of those with the f32 values of the blocks. All pieces then are blocks of
/// this format, on every device.
#[derive(Debug)]
pub struct WeightPacker {
    device: Device,
    shape: [usize; 2],
    dtype: Dtype,
    table: bool,
    /// The format of all pieces, if the first one holds blocks that may stay quantized.
    format: Option<QuantFormat>,
    /// Created for the first piece, whose type determines the format.
    packer: Option<Result<Box<dyn Packer>>>,
}

impl WeightPacker {
    /// Creates a packer of a weight `[out, in]` for products in `dtype` (f32 or bf16) on `device`.
    ///
    /// # Errors
    /// As [`Weight::new`].
    pub fn new(device: &Device, shape: &[usize], dtype: Dtype) -> Result<WeightPacker> {
        const OP: &str = "WeightPacker::new";
        match *shape {
            [out, width] if out.checked_mul(width).is_some_and(|n| n > 0) => {
                check_float(OP, dtype)?;
                let device = device.clone();
                let shape = [out, width];
                Ok(WeightPacker { device, shape, dtype, table: false, format: None, packer: None })
            }
            _ => Err(misfit_shapes(OP, "w [out, in], both at least 1", &[shape])),
        }
    }

    /// Also keeps denormals exactly: the matrix is a table whose rows [`weight_rows`](super::weight_rows) will read.
    #[must_use]
    pub fn table(mut self) -> WeightPacker {
        self.table = true;
        self
    }

    /// [`Weight::packed_bytes`] of a weight `[out, in]` whose values arrive as blocks of this format. `None`: they are
    /// expanded.
    pub fn quantized_bytes(
        device: &Device,
        shape: [usize; 2],
        dtype: Dtype,
        format: QuantFormat,
    ) -> Option<usize> {
        keeps_blocks(shape, dtype).then(|| backend(device).quantized_bytes(shape, format)).flatten()
    }

    /// Appends the next values of the matrix, row-major.
    pub fn push<'a>(&mut self, values: impl Into<Piece<'a>>) {
        let piece = values.into();
        let packer = self.packer.take().unwrap_or_else(|| self.begin(piece));
        let packer = packer.and_then(|packer| self.check_format(piece).map(|()| packer));
        if let Ok(packer) = self.packer.insert(packer) {
            packer.push(piece);
        }
    }

    /// Checks that blocks have the format of the first ones.
    fn check_format(&self, piece: Piece<'_>) -> Result<()> {
        match (self.format, piece) {
            (Some(format), Piece::Blocks(other, _)) if other != format => Err(Error::Argument {
                op: "WeightPacker",
                want: "blocks of the format of the first piece",
                got: format!("{other:?} after {format:?}"),
            }),
            _ => Ok(()),
        }
    }

    /// A packer whose first piece is `first`.
    fn begin(&mut self, first: Piece<'_>) -> Result<Box<dyn Packer>> {
        self.format = match first {
            Piece::Blocks(format, _) if keeps_blocks(self.shape, self.dtype) => Some(format),
            _ => None,
        };
        let backend = backend(&self.device);
        let mut packer = match self.format {
            Some(format) => backend.quantized_packer(self.shape, format)?,
            None => backend.packer(self.shape, self.dtype)?,
        };
        if self.table {
            packer.keep_exact_rows();
        }
        Ok(packer)
    }

    /// Returns the weight. It keeps no f32 master weights.
    ///
    /// # Errors
    /// [`Error::Shape`] unless the number of values is that of the shape; [`Error::Argument`] for blocks of another format
    /// than the first ones; [`Error::Memory`] if the device has no memory for it.
    pub fn finish(mut self) -> Result<Weight> {
        let packer = self.packer.take().unwrap_or_else(|| self.begin(Piece::F32(&[])));
        packer?.finish()
    }
}

/// Whether a device may keep a weight `[out, in]` quantized: products are in f32, and the rows are whole blocks.
fn keeps_blocks([_, width]: [usize; 2], dtype: Dtype) -> bool {
    dtype == Dtype::F32 && width.is_multiple_of(QUANT_BLOCK)
}

#[cfg(test)]
mod tests;
