//! AdamW with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101) and clipping by the global norm.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, AdamWScalars, Update, Updated};
use xtrain_tensor::{Dtype, Tensor};

use crate::error::Result;
use crate::param::Param;
use crate::params::Params;

/// The hyper-parameters of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimConfig {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of matrices. Gains and biases have none.
    pub weight_decay: f64,
    /// Maximum global norm of the gradients, above 0. Gradients with a larger norm are scaled down to it.
    /// [`f64::INFINITY`]: no clipping. 0 makes every gradient 0; only in a configuration file does 0 mean no clipping.
    pub clip: f64,
}

impl Default for OptimConfig {
    fn default() -> OptimConfig {
        OptimConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0 }
    }
}

/// The optimizer and its state, which is part of a checkpoint.
#[derive(Debug, Clone)]
pub struct AdamW {
    cfg: OptimConfig,
    /// First moments, in walk order. Of several processes, each has those of its slice of the parameters.
    pub m: Vec<Tensor>,
    /// Second moments, likewise.
    pub v: Vec<Tensor>,
    /// `[beta1^t, beta2^t]`, running products.
    pub powers: [f64; 2],
}

impl AdamW {
    /// Zero moments for all of `params`.
    ///
    /// # Errors
    /// If the device is out of memory; [`Error::NoMasterWeights`](crate::Error::NoMasterWeights) for a model opened
    /// for inference.
    pub fn new(cfg: OptimConfig, params: &Params) -> Result<AdamW> {
        let zeros = || -> Result<Vec<Tensor>> {
            let like = |w: &Tensor| Ok(Tensor::zeros(w.device(), w.shape(), Dtype::F32)?);
            params.iter().map(|p| like(p.value()?)).collect()
        };
        Ok(AdamW { cfg, m: zeros()?, v: zeros()?, powers: [1.0; 2] })
    }

    /// Applies one update with `grads` (in walk order) at learning rate `lr`. If the norm of the gradients is not
    /// finite, nothing changes.
    ///
    /// Order of the norm: the squares of each matrix row by row, the parameters in walk order (docs/numerics.md,
    /// section 5).
    ///
    /// # Errors
    /// [`xtrain_tensor::Error::Shape`] for gradients of other parameters.
    pub fn step(&mut self, params: &mut Params, grads: &[Tensor], lr: f64) -> Result<Updated> {
        let ((scalars, powers), max_norm) = (self.scalars(lr), self.max_norm());
        let values = params.iter_mut().map(Param::value_mut).collect::<Result<Vec<_>>>()?;
        let lens = [values.len(), grads.len(), self.m.len(), self.v.len()];
        if lens.iter().any(|&len| len != values.len()) {
            let want = "a gradient and two moments for each parameter";
            let got = lens.into_iter().map(|len| vec![len]).collect();
            return Err(xtrain_tensor::Error::Shape { op: "AdamW::step", want, got }.into());
        }
        let values = values.into_iter().zip(grads).zip(&mut self.m).zip(&mut self.v);
        let mut updates: Vec<Update<'_>> = values.map(|(((w, g), m), v)| Update { w, g, m, v }).collect();
        let updated = ops::adamw_all(&mut updates, max_norm, &scalars)?;
        if updated.norm.is_finite() {
            self.powers = powers;
        }
        Ok(updated)
    }

    /// The norm to which larger gradients are scaled.
    pub(crate) fn max_norm(&self) -> f32 {
        self.cfg.clip as f32
    }

    /// The scalars of the next step, each computed in f64 and rounded once, and the powers after the step.
    pub(crate) fn scalars(&self, lr: f64) -> (AdamWScalars, [f64; 2]) {
        let OptimConfig { beta1, beta2, eps, weight_decay, .. } = self.cfg;
        let stopped = faults::on(Fault::AdamwPowersStop) && self.powers[0] * beta1 < 0.05;
        let powers = if stopped { self.powers } else { [self.powers[0] * beta1, self.powers[1] * beta2] };
        let scalars = AdamWScalars {
            s1: (1.0 - beta1) as f32,
            s2: beta2 as f32,
            s3: (1.0 - beta2) as f32,
            keep: (1.0 - lr * weight_decay) as f32,
            step: (lr / (1.0 - powers[0])) as f32,
            c2: (1.0 - powers[1]).sqrt() as f32,
            eps: eps as f32,
        };
        (scalars, powers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use xtrain_tensor::Device;

    #[test]
    fn gradients_of_other_parameters_change_nothing() {
        let mut params = Params::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0).unwrap();
        let mut optimizer = AdamW::new(OptimConfig::default(), &params).unwrap();
        let all = optimizer.m.clone();
        for grads in [&all[..all.len() - 1], &[]] {
            let error = optimizer.step(&mut params, grads, 1e-3).unwrap_err().to_string();
            assert!(error.contains("a gradient and two moments for each parameter"), "{error}");
            assert_eq!(optimizer.powers, [1.0; 2]);
        }
        assert!(optimizer.step(&mut params, &all, 1e-3).is_ok());
        assert_ne!(optimizer.powers, [1.0; 2]);
    }
}
