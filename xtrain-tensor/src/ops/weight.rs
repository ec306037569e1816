//! A matrix prepared for products: packed once, used until the next optimizer step.
use std::sync::OnceLock;

use crate::cpu::Packed;
use crate::gpu::{At, Gpu};
use crate::{Device, Dtype, Error, Result, Tensor, round_bf16};

/// A weight `[out, in]` in the layout that products read, in f32 or rounded to bf16.
#[derive(Debug)]
pub struct Weight {
    out: usize,
    width: usize,
    dtype: Dtype,
    master: Tensor,
    forward: Layout,
    backward: OnceLock<Layout>,
}

/// How a matrix lies in memory.
#[derive(Debug)]
pub(crate) enum Layout {
    /// `[out, in]`, row-major, for the reference.
    Rows(Vec<f32>),
    /// For the kernels, in one direction.
    Packed(Packed),
    /// `[out, in]`, row-major, on a GPU: the f32 matrix itself, or its copy in bf16.
    Device(Tensor),
}

impl Weight {
    /// Packs the f32 matrix `w [out, in]` for products in `dtype` (f32 or bf16).
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` has two dimensions, none of them 0; [`Error::Dtype`] unless it is f32
    /// and `dtype` is f32 or bf16.
    pub fn new(w: &Tensor, dtype: Dtype) -> Result<Weight> {
        let (&[out, width], false) = (w.shape(), w.is_empty()) else {
            return Err(Error::Shape {
                op: "Weight::new",
                want: "w [out, in]",
                got: vec![w.shape().to_vec()],
            });
        };
        if !matches!(dtype, Dtype::F32 | Dtype::BF16) {
            return Err(Error::Dtype { op: "Weight::new", want: "f32 or bf16", got: dtype });
        }
        let forward = match (w.device(), w.device().fast()) {
            (Device::Gpu(_), _) => Layout::Device(w.cast(dtype)?),
            (_, Some(cpu)) => Layout::Packed(Packed::of_weight(cpu, dtype, w.data()?, [out, width])),
            (_, None) => Layout::Rows(rounded(w.data()?, dtype)),
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

    /// The matrix for `x Wᵀ`.
    pub(crate) fn forward(&self) -> &Layout {
        &self.forward
    }

    /// Where the matrix lies on `gpu`, row-major, for either direction.
    pub(crate) fn at(&self, gpu: &Gpu) -> Result<At> {
        match &self.forward {
            Layout::Device(w) => w.at(gpu, self.dtype),
            _ => self.master.at(gpu, self.dtype),
        }
    }

    /// The matrix for `dy W`, packed at its first use.
    pub(crate) fn backward(&self) -> Result<&Layout> {
        if let Some(packed) = self.backward.get() {
            return Ok(packed);
        }
        let (values, shape) = (self.master.data::<f32>()?, [self.out, self.width]);
        let packed = match self.master.device().fast() {
            Some(cpu) => Layout::Packed(Packed::of_weight_transposed(cpu, self.dtype, values, shape)),
            None => Layout::Rows(rounded(values, self.dtype)),
        };
        Ok(self.backward.get_or_init(|| packed))
    }

    /// The same weight with its inputs from the last to the first: what a planted fault multiplies.
    pub(crate) fn reversed(&self) -> Result<Weight> {
        let rows = self.master.data::<f32>()?.chunks_exact(self.width);
        let values: Vec<f32> = rows.flat_map(|row| row.iter().rev().copied()).collect();
        Weight::new(&Tensor::new(self.master.device(), self.master.shape(), values)?, self.dtype)
    }
}

/// Values as a product in `dtype` reads them.
fn rounded(x: &[f32], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::BF16 => x.iter().map(|&x| round_bf16(x)).collect(),
        _ => x.to_vec(),
    }
}
