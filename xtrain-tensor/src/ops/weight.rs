//! Packing of weights.
use super::checks::refuse_dtype;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::Weight;
use crate::tensor::Tensor;

impl Weight {
    /// Packs the f32 matrix `w [out, in]` for products in `dtype` (f32 or bf16). Keeps `w` as the master weights,
    /// without a copy.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` has two dimensions of at least 1; [`Error::Dtype`] unless it is f32 and `dtype` is
    /// f32 or bf16.
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
        return Err(Error::Shape { op: OP, want: "w [out, in]", got: vec![w.shape().to_vec()] });
    }
    refuse_dtype(w.dtype() != Dtype::F32, OP, "w in f32", w.dtype())?;
    match dtype {
        Dtype::F32 | Dtype::BF16 => Ok(()),
        _ => Err(Error::Dtype { op: OP, want: "f32 or bf16", got: dtype }),
    }
}
