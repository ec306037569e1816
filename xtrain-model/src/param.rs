//! One trained tensor: its f32 master values, the packed form that products read, or both.
use std::sync::{Arc, OnceLock};

use xtrain_tensor::ops::{self, DeviceSampler, Piece, Weight, WeightPacker};
use xtrain_tensor::{Device, Dtype, Tensor};

use crate::error::{Error, Result};

/// One trained tensor.
#[derive(Debug, Clone)]
pub struct Param {
    name: String,
    slot: usize,
    compute: Dtype,
    values: Values,
}

/// What is in memory of a parameter.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    /// Its f32 values, and what was packed of them since they changed.
    Master(Tensor, OnceLock<Arc<Weight>>),
    /// The packed matrix alone.
    Packed(Arc<Weight>, [usize; 2]),
}

impl From<Tensor> for Values {
    fn from(master: Tensor) -> Values {
        Values::Master(master, OnceLock::new())
    }
}

impl Param {
    pub(crate) fn new(name: String, slot: usize, compute: Dtype, values: Values) -> Param {
        Param { name, slot, compute, values }
    }

    /// The name in a checkpoint, e.g. `model.layers.3.self_attn.q_proj.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place in the walk over all parameters.
    pub fn index(&self) -> usize {
        self.slot
    }

    /// `[out, in]`, or `[C]` of a gain.
    pub fn shape(&self) -> &[usize] {
        match &self.values {
            Values::Master(value, _) => value.shape(),
            Values::Packed(_, shape) => shape,
        }
    }

    /// Where it lies.
    pub fn device(&self) -> &Device {
        match &self.values {
            Values::Master(value, _) => value.device(),
            Values::Packed(weight, _) => weight.device(),
        }
    }

    /// The master values, f32: `[out, in]`, or `[C]` of a gain.
    ///
    /// # Errors
    /// [`Error::NoMasterWeights`] for a matrix of a model that holds its packed matrices alone.
    pub fn value(&self) -> Result<&Tensor> {
        match &self.values {
            Values::Master(value, _) => Ok(value),
            Values::Packed(..) => Err(Error::NoMasterWeights { name: self.name.clone() }),
        }
    }

    /// The master values, to be changed: the packed form is made anew at its next use.
    ///
    /// # Errors
    /// As [`Param::value`].
    pub fn value_mut(&mut self) -> Result<&mut Tensor> {
        match &mut self.values {
            Values::Master(value, packed) => {
                *packed = OnceLock::new();
                Ok(value)
            }
            Values::Packed(..) => Err(Error::NoMasterWeights { name: self.name.clone() }),
        }
    }

    /// Moves the parameter to another device.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<()> {
        let value = self.value_mut()?;
        *value = value.to_device(device)?;
        Ok(())
    }

    /// The same parameter without the f32 values of a matrix.
    pub(crate) fn for_inference(&self) -> Result<Param> {
        let Values::Master(value, _) = &self.values else { return Ok(self.clone()) };
        let form = Form { compute: self.compute, device: value.device(), masters: Masters::Drop };
        let mut reading = Reading::new(&form, &self.name, value.shape())?;
        reading.push(Piece::F32(&value.read()?));
        Ok(Param { values: reading.finish()?, ..self.clone() })
    }

    /// The type of the activations that this parameter gives.
    pub fn compute(&self) -> Dtype {
        self.compute
    }

    /// The matrix in the layout of products, packed at the first use after a change.
    ///
    /// # Errors
    /// When the parameter is no matrix.
    pub fn packed(&self) -> Result<Arc<Weight>> {
        let (value, packed) = match &self.values {
            Values::Packed(weight, _) => return Ok(Arc::clone(weight)),
            Values::Master(value, packed) => (value, packed),
        };
        if let Some(w) = packed.get() {
            return Ok(Arc::clone(w));
        }
        let w = Arc::new(Weight::new(value, self.compute)?);
        Ok(Arc::clone(packed.get_or_init(|| w)))
    }

    /// Packs those of `params` that are not, for both directions: what a step of training reads of its matrices.
    pub(crate) fn pack<'a>(params: impl Iterator<Item = &'a Param>) -> Result<()> {
        let unpacked = params.filter_map(|p| match &p.values {
            Values::Master(value, packed) if packed.get().is_none() => Some((value, packed, p.compute)),
            _ => None,
        });
        let unpacked: Vec<_> = unpacked.collect();
        let Some(&(_, _, compute)) = unpacked.first() else { return Ok(()) };
        let values: Vec<&Tensor> = unpacked.iter().map(|(value, ..)| *value).collect();
        let weights = Weight::for_training(&values, compute)?;
        unpacked.iter().zip(weights).for_each(|((_, packed, _), w)| _ = packed.get_or_init(|| Arc::new(w)));
        Ok(())
    }

    /// The rows `id` of a table, as activations: `[N, C]` f32.
    ///
    /// # Errors
    /// When the parameter is no table, or an id is not below its rows.
    pub(crate) fn rows(&self, id: &[u32]) -> Result<Tensor> {
        match &self.values {
            Values::Master(value, _) => Ok(ops::embedding(value, id, self.compute)?),
            Values::Packed(weight, _) => Ok(ops::weight_rows(weight, id)?),
        }
    }

    /// [`Param::rows`] of tokens that were drawn and not looked at.
    pub(crate) fn sampled_rows(&self, draws: &DeviceSampler) -> Result<Tensor> {
        match &self.values {
            Values::Master(value, _) => Ok(draws.embedding(value, self.compute)?),
            Values::Packed(weight, _) => Ok(draws.weight_rows(weight)?),
        }
    }
}

/// What becomes of the f32 values of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masters {
    /// They stay: to be trained or written.
    Keep,
    /// They are packed as they are read, and not kept.
    Drop,
}

/// How parameters are held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form<'a> {
    pub(crate) compute: Dtype,
    pub(crate) device: &'a Device,
    pub(crate) masters: Masters,
}

/// The name of the embedding table, whose rows are taken.
pub(crate) const TABLE: &str = "model.embed_tokens.weight";

/// A parameter while its values are read.
#[derive(Debug)]
pub(crate) enum Reading {
    Master { shape: Vec<usize>, values: Vec<f32>, device: Device },
    Packed { shape: [usize; 2], packing: WeightPacker },
}

impl Reading {
    /// Nothing yet of the parameter `name`.
    pub(crate) fn new(form: &Form<'_>, name: &str, shape: &[usize]) -> Result<Reading> {
        match (form.masters, <[usize; 2]>::try_from(shape)) {
            (Masters::Drop, Ok(shape)) => {
                let packing = WeightPacker::new(form.device, &shape, form.compute)?;
                Ok(Reading::Packed { shape, packing: if name == TABLE { packing.table() } else { packing } })
            }
            _ => {
                let values = Vec::with_capacity(shape.iter().product());
                Ok(Reading::Master { shape: shape.to_vec(), values, device: form.device.clone() })
            }
        }
    }

    /// The next values, row-major.
    pub(crate) fn push(&mut self, piece: Piece<'_>) {
        match self {
            Reading::Master { values, .. } => piece.widen(values),
            Reading::Packed { packing, .. } => packing.push(piece),
        }
    }

    pub(crate) fn finish(self) -> Result<Values> {
        match self {
            Reading::Master { shape, values, device } => Ok(Tensor::new(&device, &shape, values)?.into()),
            Reading::Packed { shape, packing } => Ok(Values::Packed(Arc::new(packing.finish()?), shape)),
        }
    }
}
