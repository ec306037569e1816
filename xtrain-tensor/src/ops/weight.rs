//! A matrix prepared for products: packed once, used until the next optimizer step.
use std::sync::OnceLock;

use crate::cpu::gemm::Panels;
use crate::{Dtype, Error, Result, Tensor, round_bf16};

/// A weight `[out, in]` in the layout that products read, in f32 or rounded to bf16.
#[derive(Debug)]
pub struct Weight {
    out: usize,
    width: usize,
    dtype: Dtype,
    master: Tensor,
    forward: Packed,
    backward: OnceLock<Packed>,
}

/// A packed matrix.
#[derive(Debug)]
pub(crate) enum Packed {
    /// Row-major, for the reference.
    Rows(Vec<f32>),
    /// Panels of 32 columns, f32.
    Panels(Panels),
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
        let values = w.data::<f32>()?;
        let forward = match (dtype, w.device().fast()) {
            (Dtype::F32, Some(cpu)) => Packed::Panels(Panels::of_weight(&cpu.pool, values, [out, width])),
            (Dtype::F32, None) => Packed::Rows(values.to_vec()),
            (Dtype::BF16, _) => Packed::Rows(values.iter().map(|&x| round_bf16(x)).collect()),
            (got, _) => return Err(Error::Dtype { op: "Weight::new", want: "f32 or bf16", got }),
        };
        Ok(Weight { out, width, dtype, master: w.clone(), forward, backward: OnceLock::new() })
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

    /// The same weight with its inputs from the last to the first: what a planted fault multiplies.
    pub(crate) fn reversed(&self) -> Result<Weight> {
        let mut master = self.master.clone();
        master.data_mut::<f32>()?.chunks_exact_mut(self.width).for_each(<[f32]>::reverse);
        Weight::new(&master, self.dtype)
    }

    /// The matrix for `x Wᵀ`.
    pub(crate) fn forward(&self) -> &Packed {
        &self.forward
    }

    /// The matrix for `dy W`, packed at its first use.
    pub(crate) fn backward(&self) -> Result<&Packed> {
        if let (Packed::Panels(_), Some(cpu), None) =
            (&self.forward, self.master.device().fast(), self.backward.get())
        {
            let panels = Panels::of_weight_transposed(&cpu.pool, self.master.data()?, [self.out, self.width]);
            return Ok(self.backward.get_or_init(|| Packed::Panels(panels)));
        }
        Ok(self.backward.get().unwrap_or(&self.forward))
    }
}
