//! Moving averages of weights, for reference models.
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};

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
        let (mut keep, mut add) = ((1.0 - alpha) as f32, alpha as f32);
        if faults::on(Fault::ReferenceMixSwapped) {
            (keep, add) = (add, keep);
        }
        for (own, other) in self.params.iter_mut().zip(other.params.iter()) {
            let (device, shape) = (own.value()?.device().clone(), own.value()?.shape().to_vec());
            let (old, new) = (own.value()?.to_vec::<f32>()?, other.value()?.to_vec::<f32>()?);
            let mixed: Vec<f32> = old.iter().zip(&new).map(|(old, new)| old * keep + new * add).collect();
            *own.value_mut()? = Tensor::new(&device, &shape, mixed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use xtrain_tensor::{Device, Dtype};

    use super::*;
    use crate::config::Config;

    fn config() -> Config {
        Config {
            vocab: 11,
            dim: 8,
            ffn_dim: 12,
            n_layers: 1,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 4,
            max_positions: 16,
            rope_theta: 1e4,
            norm_eps: 1e-6,
            qk_norm: true,
            ..Config::default()
        }
    }

    fn model(seed: u64, dtype: Dtype) -> Model {
        Model::init(&config(), dtype, &Device::cpu(), seed).unwrap()
    }

    fn bits(model: &Model) -> Vec<u32> {
        let values = |param: &crate::param::Param| param.value().unwrap().to_vec::<f32>().unwrap();
        model.params.iter().flat_map(values).map(f32::to_bits).collect()
    }

    #[test]
    fn the_weights_are_two_products_and_one_sum_in_f32() {
        for (alpha, dtype) in [(0.6, Dtype::F32), (0.1, Dtype::BF16), (0.0, Dtype::F32), (1.0, Dtype::F32)] {
            let (mut mixed, other) = (model(1, dtype), model(2, dtype));
            let (keep, add) = ((1.0 - alpha) as f32, alpha as f32);
            let mix = |(old, new): (&u32, &u32)| {
                let (kept, added) = (f32::from_bits(*old) * keep, f32::from_bits(*new) * add);
                (kept + added).to_bits()
            };
            let want: Vec<u32> = bits(&mixed).iter().zip(&bits(&other)).map(mix).collect();
            mixed.mix(&other, alpha).unwrap();
            assert!(bits(&mixed) == want, "alpha {alpha}, {dtype:?}");
        }
    }

    #[test]
    fn models_of_different_sizes_are_refused() {
        let other = Config { n_layers: 2, ..config() };
        let other = Model::init(&other, Dtype::F32, &Device::cpu(), 0).unwrap();
        let error = model(0, Dtype::F32).mix(&other, 0.5).unwrap_err();
        assert!(matches!(error, Error::Config { field: "model", .. }), "{error}");
    }
}
