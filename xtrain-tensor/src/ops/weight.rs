//! A matrix prepared for products: packed once, used until the next optimizer step.
use std::sync::OnceLock;

use crate::{Dtype, Error, Result, Tensor, round_bf16};

/// A weight `[out, in]` in the layout that products read, in f32 or rounded to bf16.
#[derive(Debug)]
pub struct Weight {
    out: usize,
    width: usize,
    dtype: Dtype,
    rows: Vec<f32>,
    _cols: OnceLock<Vec<f32>>,
}

impl Weight {
    /// Packs the f32 matrix `w [out, in]` for products in `dtype` (f32 or bf16).
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` has two dimensions, [`Error::Dtype`] unless it is f32 and `dtype`
    /// is f32 or bf16.
    pub fn new(w: &Tensor, dtype: Dtype) -> Result<Weight> {
        let &[out, width] = w.shape() else {
            return Err(Error::Shape {
                op: "Weight::new",
                want: "w [out, in]",
                got: vec![w.shape().to_vec()],
            });
        };
        let w = w.data::<f32>()?;
        let rows = match dtype {
            Dtype::F32 => w.to_vec(),
            Dtype::BF16 => w.iter().map(|&x| round_bf16(x)).collect(),
            got => return Err(Error::Dtype { op: "Weight::new", want: "f32 or bf16", got }),
        };
        Ok(Weight { out, width, dtype, rows, _cols: OnceLock::new() })
    }

    /// Outputs.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Inputs.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The type in which products are taken.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(crate) fn rows(&self) -> &[f32] {
        &self.rows
    }
}
