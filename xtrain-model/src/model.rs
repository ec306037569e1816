//! The model of the Qwen3, Qwen2, Llama and Mistral families: pre-norm blocks, GQA with optional QK-norm, RoPE,
//! SwiGLU. The forward pass is written once.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, DeviceSampler, RopeArgs};
use xtrain_tensor::{Device, Dtype, RopeTable, Tensor};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::functional::{Functional, QkNorms, Qkv};
use crate::kept_fields::KeptFields;
use crate::kv::KvStore;
use crate::params::Params;
use crate::rows::Rows;

/// A model: its config, its parameters and its rotary table.
#[derive(Debug, Clone)]
pub struct Model {
    cfg: Config,
    rope: RopeTable,
    /// The parameters.
    pub params: Params,
    /// Fields of the model's files that no computation reads. Saved and exported models have them again.
    pub kept_fields: KeptFields,
}

impl Model {
    /// A model with these parameters.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for an invalid config, [`Error::Parameter`](crate::Error::Parameter) for
    /// parameters of another one.
    pub fn new(cfg: Config, params: Params) -> Result<Model> {
        cfg.check()?;
        let (want, found) = (Params::shapes(&cfg)?, params.iter().count());
        if want.len() != found {
            let (want, got) = (format!("{} tensors", want.len()), format!("{found} tensors"));
            return Err(Error::Parameter { name: "model".into(), want, got });
        }
        for ((name, shape), param) in want.into_iter().zip(params.iter()) {
            if name != param.name() || shape != param.shape() {
                let got = format!("{} of shape {:?}", param.name(), param.shape());
                return Err(Error::Parameter { name, want: format!("shape {shape:?}"), got });
            }
        }
        let rope = RopeTable::scaled(cfg.rope_theta, &cfg.rope_scaling, cfg.head_dim, cfg.max_positions)?;
        Ok(Model { cfg, rope, params, kept_fields: KeptFields::default() })
    }

    /// A model with random parameters drawn from `seed`. `compute` is the compute dtype: f32 or bf16.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn init(cfg: &Config, compute: Dtype, device: &Device, seed: u64) -> Result<Model> {
        Model::new(cfg.clone(), Params::init(cfg, compute, device, seed)?)
    }

    /// The same model on another device.
    ///
    /// # Errors
    /// When the device has no memory for it; [`Error::NoMasterWeights`](crate::Error::NoMasterWeights) when the model
    /// has no master weights.
    pub fn to_device(&self, device: &Device) -> Result<Model> {
        Ok(Model { params: self.params.to_device(device)?, ..self.clone() })
    }

    /// The same model for inference only: packed matrices without f32 master weights. It cannot be trained or saved.
    /// Its results are bit-identical.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn for_inference(&self) -> Result<Model> {
        Ok(Model { params: self.params.for_inference()?, ..self.clone() })
    }

    /// The config.
    pub fn config(&self) -> &Config {
        &self.cfg
    }

    /// The compute dtype: matrix products and stored activations.
    pub fn compute(&self) -> Dtype {
        self.params.embed.compute()
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        self.params.embed.device()
    }

    /// The final hidden states `[N, C]` of `rows`, after the last norm. Training, prefill and decode all call this
    /// function: there is no other forward pass.
    ///
    /// # Errors
    /// When an id or a position is out of range, or when `kv` rejects a row (no room, or not the next position).
    pub fn forward<F: Functional>(
        &self,
        f: &mut F,
        kv: &mut (impl KvStore<F> + ?Sized),
        rows: &Rows,
    ) -> Result<F::X> {
        let h = f.embedding(&self.params.embed, &rows.id)?;
        self.forward_embeds(f, kv, rows, h)
    }

    /// [`Model::forward`] with embeddings `h [N, C]` instead of the ids of `rows`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_embeds<F: Functional>(
        &self,
        f: &mut F,
        kv: &mut (impl KvStore<F> + ?Sized),
        rows: &Rows,
        mut h: F::X,
    ) -> Result<F::X> {
        for layer in 0..self.params.blocks.len() {
            h = self.block(f, kv, rows, layer, &h)?;
        }
        self.final_norm(f, &h)
    }

    /// One pre-norm block: attention, then the MLP, each added to the residual stream `h [N, C]`.
    pub(crate) fn block<F: Functional>(
        &self,
        f: &mut F,
        kv: &mut (impl KvStore<F> + ?Sized),
        rows: &Rows,
        layer: usize,
        h: &F::X,
    ) -> Result<F::X> {
        let Config { n_heads, n_kv_heads, head_dim, .. } = self.cfg;
        let (w, n, eps) = (&self.params.blocks[layer], rows.len(), self.cfg.norm_eps as f32);

        let x = f.rms_norm(h, &w.input_norm, eps)?;
        let [q, k, v] = f.linears(&x, [&w.q, &w.k, &w.v])?;
        let v = f.reshape(&v, &[n, n_kv_heads, head_dim])?;
        let norms = w.qk_norm.as_ref().map(|[q, k]| QkNorms { q, k, eps });
        let next = [rows.pos.first().map_or(0, |&pos| pos + 1)];
        let shifted = n == 1 && faults::on(Fault::SingleRowRopeOffByOne);
        let rope = RopeArgs { table: &self.rope, positions: if shifted { &next } else { &rows.pos } };
        let (q, kv) = kv.append_rotated(f, layer, Qkv { q: &q, k: &k, v: &v, norms, rope }, rows)?;
        let windowed = if faults::on(Fault::WindowOfFirstLayer) { 0 } else { layer };
        let y = f.attention(&q, kv, rows, self.cfg.window(windowed))?;
        let y = f.reshape(&y, &[n, n_heads * head_dim])?;
        let h = f.linear_add(h, &y, &w.o)?;

        let x = f.rms_norm(&h, &w.post_norm, eps)?;
        let y = f.swiglu(&x, &w.gate, &w.up)?;
        f.linear_add(&h, &y, &w.down)
    }

    /// The norm before the head.
    pub(crate) fn final_norm<F: Functional>(&self, f: &mut F, h: &F::X) -> Result<F::X> {
        f.rms_norm(h, &self.params.norm, self.cfg.norm_eps as f32)
    }

    /// Uploads the rotary table for `positions`, so that passes over these positions need no upload.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn prefetch_rope(&self, positions: impl Iterator<Item = usize>) -> Result<()> {
        Ok(self.rope.prefetch(self.device(), positions)?)
    }

    /// The embeddings `[N, C]` of tokens that were sampled on the device and not yet read back.
    ///
    /// # Errors
    /// When the tokens are on another device.
    pub fn embed_sampled(&self, sampler: &DeviceSampler) -> Result<Tensor> {
        self.params.embed.sampled_rows(sampler)
    }

    /// Logits `[N, V]`, f32, of hidden states `[N, C]`.
    ///
    /// # Errors
    /// When `hidden` has another width or dtype.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(ops::linear(hidden, &*self.params.head().packed()?, None, Dtype::F32)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_another_config_are_refused() {
        let tiny = Config::tiny();
        let params = || Params::init(&tiny, Dtype::F32, &Device::cpu(), 0).unwrap();
        assert!(Model::new(tiny.clone(), params()).is_ok());
        for (other, part) in [
            (Config { n_layers: 1, ..tiny.clone() }, "tensors"),
            (Config { n_layers: 3, ..tiny.clone() }, "tensors"),
            (Config { ffn_dim: 96, ..tiny.clone() }, "shape [96, 32]"),
        ] {
            let error = Model::new(other, params()).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
