//! Moving averages of weights, for reference models.
use xtrain_tensor::Tensor;

use crate::error::{Error, Result};
use crate::model::Model;

impl Model {
    /// `w = w * (1 - alpha) + w_other * alpha` for every parameter, in f32; `1 - alpha` and `alpha` are rounded once.
    /// The arithmetic is on the host (docs/numerics.md, section 8).
    ///
    /// # Errors
    /// [`Error::NoMasterWeights`] if one of the models has none; [`Error::Config`] for models of different sizes.
    pub fn mix(&mut self, other: &Model, alpha: f64) -> Result<()> {
        if self.config() != other.config() {
            let (field, want, got) =
                ("model", "the sizes of the other model", format!("{:?}", self.config()));
            return Err(Error::Config { field, want, got });
        }
        let (keep, add) = ((1.0 - alpha) as f32, alpha as f32);
        for (own, other) in self.params.iter_mut().zip(other.params.iter()) {
            let (device, shape) = (own.value()?.device().clone(), own.value()?.shape().to_vec());
            let (old, new) = (own.value()?.to_vec::<f32>()?, other.value()?.to_vec::<f32>()?);
            let mixed: Vec<f32> = old.iter().zip(&new).map(|(old, new)| old * keep + new * add).collect();
            *own.value_mut()? = Tensor::new(&device, &shape, mixed)?;
        }
        Ok(())
    }
}
