//! One trained tensor: its f32 master weights, its packed weights, or both.
use std::sync::{Arc, OnceLock};

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, DeviceSampler, Piece, Weight, WeightPacker};
use xtrain_tensor::{Device, Dtype, Tensor};

use crate::error::{Error, Result};

/// One trained tensor.
#[derive(Debug, Clone)]
pub struct Param {
    name: String,
    index: usize,
    compute: Dtype,
    values: Values,
}

/// The values of a parameter in memory.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    /// The f32 master weights, and the packed weights if they are up to date.
    Master(Tensor, OnceLock<Arc<Weight>>),
    /// Only the packed weights, and the shape of the matrix.
    Packed(Arc<Weight>, [usize; 2]),
}

impl From<Tensor> for Values {
    fn from(master: Tensor) -> Values {
        Values::Master(master, OnceLock::new())
    }
}

impl Param {
    pub(crate) fn new(name: String, index: usize, compute: Dtype, values: Values) -> Param {
        Param { name, index, compute, values }
    }

    /// The name in a checkpoint, e.g. `model.layers.3.self_attn.q_proj.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The index of the parameter in walk order.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The shape: `[out, in]` for a matrix, `[C]` for a gain.
    pub fn shape(&self) -> &[usize] {
        match &self.values {
            Values::Master(value, _) => value.shape(),
            Values::Packed(_, shape) => shape,
        }
    }

    /// The device of the values.
    pub fn device(&self) -> &Device {
        match &self.values {
            Values::Master(value, _) => value.device(),
            Values::Packed(weight, _) => weight.device(),
        }
    }

    /// The f32 master weights: `[out, in]` for a matrix, `[C]` for a gain.
    ///
    /// # Errors
    /// [`Error::NoMasterWeights`] for a matrix of a model opened for inference.
    pub fn value(&self) -> Result<&Tensor> {
        match &self.values {
            Values::Master(value, _) => Ok(value),
            Values::Packed(..) => Err(Error::NoMasterWeights { name: self.name.clone() }),
        }
    }

    /// The f32 master weights for modification. Invalidates the packed weights.
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

    /// The parameter without the f32 master weights of a matrix.
    pub(crate) fn for_inference(&self) -> Result<Param> {
        let Values::Master(value, _) = &self.values else { return Ok(self.clone()) };
        let (compute, device) = (self.compute, value.device());
        let options = ParamOptions { compute, device, master_weights: MasterWeights::Discard };
        let mut reader = ParamReader::new(&options, &self.name, value.shape())?;
        reader.push(Piece::F32(&value.read()?));
        Ok(Param { values: reader.finish()?, ..self.clone() })
    }

    /// The dtype of the activations computed with this parameter.
    pub fn compute(&self) -> Dtype {
        self.compute
    }

    /// Bytes of the values in the compute dtype, or of the blocks of a matrix that is quantized in memory. Without
    /// padding.
    pub fn compute_bytes(&self) -> usize {
        let blocks = match &self.values {
            Values::Master(..) => None,
            Values::Packed(weight, _) => weight.block_bytes(),
        };
        blocks.unwrap_or_else(|| self.shape().iter().product::<usize>() * self.compute.bytes())
    }

    /// The packed weights. Packs the matrix at the first use after a change.
    ///
    /// # Errors
    /// If the parameter is not a matrix.
    pub fn packed(&self) -> Result<Arc<Weight>> {
        let (value, packed) = match &self.values {
            Values::Packed(weight, _) => return Ok(Arc::clone(weight)),
            Values::Master(value, packed) => (value, packed),
        };
        if let Some(w) = packed.get()
            && !faults::on(Fault::WeightPackedAgain)
        {
            return Ok(Arc::clone(w));
        }
        let w = Arc::new(Weight::new(value, self.compute)?);
        Ok(Arc::clone(packed.get_or_init(|| w)))
    }

    /// Packs the matrices in `params` that are not packed yet, for the forward and the backward pass.
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

    /// The rows `id` of an embedding table: `[N, C]` f32. Fails if the parameter is not a table, or an id is out of
    /// range.
    pub(crate) fn rows(&self, id: &[u32]) -> Result<Tensor> {
        match &self.values {
            Values::Master(value, _) => Ok(ops::embedding(value, id, self.compute)?),
            Values::Packed(weight, _) => Ok(ops::weight_rows(weight, id)?),
        }
    }

    /// [`Param::rows`] of sampled tokens that are still on the device.
    pub(crate) fn sampled_rows(&self, sampler: &DeviceSampler) -> Result<Tensor> {
        match &self.values {
            Values::Master(value, _) => Ok(sampler.embedding(value, self.compute)?),
            Values::Packed(weight, _) => Ok(sampler.weight_rows(weight)?),
        }
    }
}

/// How to treat the f32 master weights of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MasterWeights {
    /// Keep them, for training and export.
    Keep,
    /// Pack each matrix while it is read and discard its f32 values.
    Discard,
}

/// How parameters are stored in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParamOptions<'a> {
    pub(crate) compute: Dtype,
    pub(crate) device: &'a Device,
    pub(crate) master_weights: MasterWeights,
}

/// The name of the embedding table. Its packed form supports row lookup.
pub(crate) const TABLE: &str = "model.embed_tokens.weight";

/// Collects the values of a parameter while they are read.
#[derive(Debug)]
pub(crate) enum ParamReader {
    Master { shape: Vec<usize>, values: Vec<f32>, device: Device },
    Packed { shape: [usize; 2], packing: WeightPacker },
}

impl ParamReader {
    /// A reader for the parameter `name`, without values yet.
    pub(crate) fn new(options: &ParamOptions<'_>, name: &str, shape: &[usize]) -> Result<ParamReader> {
        if let (MasterWeights::Discard, Ok(shape)) = (options.master_weights, <[usize; 2]>::try_from(shape)) {
            let packing = WeightPacker::new(options.device, &shape, options.compute)?;
            let packing = if name == TABLE { packing.table() } else { packing };
            return Ok(ParamReader::Packed { shape, packing });
        }
        let values = Vec::with_capacity(shape.iter().product());
        Ok(ParamReader::Master { shape: shape.to_vec(), values, device: options.device.clone() })
    }

    pub(crate) fn push(&mut self, piece: Piece<'_>) {
        match self {
            ParamReader::Master { values, .. } => piece.widen(values),
            ParamReader::Packed { packing, .. } => packing.push(piece),
        }
    }

    /// The values in their final form.
    pub(crate) fn finish(self) -> Result<Values> {
        match self {
            ParamReader::Master { shape, values, device } => Ok(Tensor::new(&device, &shape, values)?.into()),
            ParamReader::Packed { shape, packing } => Ok(Values::Packed(Arc::new(packing.finish()?), shape)),
        }
    }
}
