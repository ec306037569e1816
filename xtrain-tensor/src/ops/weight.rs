//! A matrix prepared for products: packed once, used until the next optimizer step.
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

use half::bf16;

use crate::cpu::Packed;
use crate::gpu::{At, Gpu};
use crate::{Device, Dtype, Error, Result, Tensor, round_bf16};

/// A weight `[out, in]` in the layout that products read, in f32 or rounded to bf16.
#[derive(Debug)]
pub struct Weight {
    out: usize,
    width: usize,
    dtype: Dtype,
    source: Source,
    forward: Layout,
    backward: OnceLock<Layout>,
}

/// What a weight is made anew of.
#[derive(Debug)]
pub(crate) enum Source {
    /// Its f32 matrix.
    Master(Tensor),
    /// Itself: there is nothing else, but for rows that its panels do not give back, where they are asked for.
    Alone {
        /// Where it lies.
        device: Device,
        /// Known of a table alone.
        exact: Option<Exact>,
    },
}

/// Rows of a matrix with denormals of bf16, which its panels hold as zeros.
pub(crate) type Exact = HashMap<u32, Vec<bf16>>;

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
    /// Packs the f32 matrix `w [out, in]` for products in `dtype` (f32 or bf16), and shares `w`.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` has two dimensions, none of them 0; [`Error::Dtype`] unless it is f32
    /// and `dtype` is f32 or bf16.
    pub fn new(w: &Tensor, dtype: Dtype) -> Result<Weight> {
        let shape = matrix(w, dtype)?;
        let forward = match (w.device(), w.device().fast()) {
            (Device::Gpu(_), _) => Layout::Device(w.cast(dtype)?),
            (_, Some(cpu)) => Layout::Packed(Packed::of_weight(cpu, dtype, w.data()?, shape)),
            (_, None) => Layout::Rows(w.data()?.iter().map(|&x| rounded(x, dtype)).collect()),
        };
        Ok(Weight::of(shape, dtype, forward, Source::Master(w.clone())))
    }

    /// [`Weight::new`] of each of `ws`, all on one device. A processor packs them for the gradients too, in one job:
    /// a matrix and a direction on one thread, but for those that would hold up the others.
    ///
    /// # Errors
    /// As [`Weight::new`], for the first that it refuses.
    pub fn for_training(ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
        let Some(cpu) = ws.first().and_then(|w| w.device().fast()) else {
            return ws.iter().map(|w| Weight::new(w, dtype)).collect();
        };
        let matrices = ws.iter().map(|w| Ok((w.data::<f32>()?, matrix(w, dtype)?)));
        let matrices = matrices.collect::<Result<Vec<_>>>()?;
        let mut pairs: Vec<[Option<Packed>; 2]> = ws.iter().map(|_| [None, None]).collect();
        let pack = |i: usize, packed: &mut Option<Packed>| {
            let (w, shape) = matrices[i / 2];
            *packed = Some(match i % 2 {
                0 => Packed::of_weight(cpu, dtype, w, shape),
                _ => Packed::of_weight_transposed(cpu, dtype, w, shape),
            });
        };
        let (packed, total) = (pairs.as_flattened_mut(), ws.iter().map(|w| w.len()).sum::<usize>());
        let long = |i: usize| ws[i / 2].len() * cpu.pool.threads() > total;
        packed.iter_mut().enumerate().filter(|(i, _)| long(*i)).for_each(|(i, one)| pack(i, one));
        cpu.pool.parts(packed, 1, |i, one| {
            if !long(i) {
                pack(i, &mut one[0])
            }
        });
        let made = pairs.into_iter().zip(ws).zip(&matrices).map(|((packed, &w), &(_, shape))| {
            let [forward, backward] = packed.map(|p| Layout::Packed(p.expect("every one was packed")));
            Weight {
                backward: backward.into(),
                ..Weight::of(shape, dtype, forward, Source::Master(w.clone()))
            }
        });
        Ok(made.collect())
    }

    pub(crate) fn of([out, width]: [usize; 2], dtype: Dtype, forward: Layout, source: Source) -> Weight {
        Weight { out, width, dtype, source, forward, backward: OnceLock::new() }
    }

    /// Outputs.
    pub fn out_features(&self) -> usize {
        self.out
    }

    /// Inputs.
    pub fn in_features(&self) -> usize {
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

    /// Where it lies.
    pub fn device(&self) -> &Device {
        match &self.source {
            Source::Master(w) => w.device(),
            Source::Alone { device, .. } => device,
        }
    }

    /// What it was made of.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Where the matrix lies on `gpu`, row-major, for either direction.
    pub(crate) fn at(&self, gpu: &Gpu) -> Result<At> {
        match (&self.forward, &self.source) {
            (Layout::Device(w), _) => w.at(gpu, self.dtype),
            (_, Source::Master(w)) => w.at(gpu, self.dtype),
            (_, Source::Alone { device, .. }) => {
                Err(Error::Device { what: format!("want a weight on {}, got one on {device}", gpu.name()) })
            }
        }
    }

    /// The matrix for `dy W`, packed at its first use.
    pub(crate) fn backward(&self) -> Result<&Layout> {
        if let Some(packed) = self.backward.get() {
            return Ok(packed);
        }
        let (values, shape) = (self.values()?, [self.out, self.width]);
        let packed = match self.device().fast() {
            Some(cpu) => Layout::Packed(Packed::of_weight_transposed(cpu, self.dtype, &values, shape)),
            None => Layout::Rows(values.iter().map(|&x| rounded(x, self.dtype)).collect()),
        };
        Ok(self.backward.get_or_init(|| packed))
    }

    /// The matrix as products read it, or as it was before they rounded it: packing either gives the same.
    fn values(&self) -> Result<Cow<'_, [f32]>> {
        match (&self.source, &self.forward) {
            (Source::Master(w), _) => Ok(Cow::Borrowed(w.data()?)),
            (_, Layout::Rows(w)) => Ok(Cow::Borrowed(w)),
            (_, Layout::Device(w)) => Ok(Cow::Owned(w.to_f32()?.to_vec()?)),
            (_, Layout::Packed(w)) => {
                let mut values = vec![0.0; self.out * self.width];
                values.chunks_exact_mut(self.width).enumerate().for_each(|(j, row)| w.column(j, row));
                Ok(Cow::Owned(values))
            }
        }
    }

    /// The same weight with its inputs from the last to the first: what a planted fault multiplies.
    pub(crate) fn reversed(&self) -> Result<Weight> {
        let values = self.values()?;
        let values: Vec<f32> =
            values.chunks_exact(self.width).flat_map(|row| row.iter().rev().copied()).collect();
        Weight::new(&Tensor::new(self.device(), &[self.out, self.width], values)?, self.dtype)
    }
}

/// The shape of a matrix that can be packed for products in `dtype`.
fn matrix(w: &Tensor, dtype: Dtype) -> Result<[usize; 2]> {
    const OP: &str = "Weight::new";
    let (&[out, width], false) = (w.shape(), w.is_empty()) else {
        return Err(Error::Shape { op: OP, want: "w [out, in]", got: vec![w.shape().to_vec()] });
    };
    match dtype {
        Dtype::F32 | Dtype::BF16 => Ok([out, width]),
        _ => Err(Error::Dtype { op: OP, want: "f32 or bf16", got: dtype }),
    }
}

/// A value as a product in `dtype` reads it.
pub(crate) fn rounded(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::BF16 => round_bf16(x),
        _ => x,
    }
}
