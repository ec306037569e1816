//! The Qwen3, Qwen2, Llama and Mistral families: pre-norm blocks, GQA with QK-norm or without, RoPE, SwiGLU.
//! The forward, written once.
use xtrain_tensor::ops::{self, DeviceSampler, RopeArgs};
use xtrain_tensor::{Device, Dtype, RopeTable, Tensor};

use crate::config::Config;
use crate::error::Result;
use crate::functional::{AttnRows, Functional, Qkv, Residual};
use crate::kv::KvStore;
use crate::params::{Block, Params};
use crate::rows::Rows;

/// A model: its shape, its parameters and its rotary table.
#[derive(Debug, Clone)]
pub struct Model {
    cfg: Config,
    rope: RopeTable,
    /// The parameters.
    pub params: Params,
}

impl Model {
    /// A model of these parameters.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a shape that no model can have.
    pub fn new(cfg: Config, params: Params) -> Result<Model> {
        cfg.check()?;
        let rope = RopeTable::scaled(cfg.rope_theta, &cfg.rope_scaling, cfg.head_dim, cfg.max_positions)?;
        Ok(Model { cfg, rope, params })
    }

    /// The same model, each layer of which sees so many positions back, its own included; none: all.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) unless there is one for each layer, and each is at least 1.
    pub fn with_windows(mut self, windows: Vec<Option<usize>>) -> Result<Model> {
        self.cfg.check_windows(&windows)?;
        self.cfg.windows = windows;
        Ok(self)
    }

    /// A model with values drawn from `seed`, computing in `compute` (f32 or bf16).
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn init(cfg: &Config, compute: Dtype, device: &Device, seed: u64) -> Result<Model> {
        Model::new(cfg.clone(), Params::init(cfg, compute, device, seed)?)
    }

    /// The same model on another device.
    ///
    /// # Errors
    /// When the device has no memory for it; [`Error::NoMasterWeights`](crate::Error::NoMasterWeights) for packed matrices
    /// alone.
    pub fn to_device(&self, device: &Device) -> Result<Model> {
        Ok(Model { params: self.params.to_device(device)?, ..self.clone() })
    }

    /// The same model without the f32 values of its matrices: packed, to be run and not to be trained or
    /// written. Its bits are the same.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn for_inference(&self) -> Result<Model> {
        Ok(Model { params: self.params.for_inference()?, ..self.clone() })
    }

    /// The shape.
    pub fn config(&self) -> &Config {
        &self.cfg
    }

    /// The type of products and stored activations.
    pub fn compute(&self) -> Dtype {
        self.params.embed.compute()
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        self.params.embed.device()
    }

    /// The final hidden states `[N, C]` of `rows`, normalised. The only forward pass there is.
    ///
    /// # Errors
    /// When an id or a position is out of range, or `kv` refuses a row.
    pub fn forward<F, K>(&self, f: &mut F, kv: &mut K, rows: &Rows) -> Result<F::X>
    where
        F: Functional,
        K: KvStore<F>,
    {
        let h = self.embed(f, rows)?;
        self.forward_hidden(f, kv, rows, h)
    }

    /// [`Model::forward`] of rows whose residual stream before the first block is `h [N, C]`; their ids are not read.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_hidden<F, K>(&self, f: &mut F, kv: &mut K, rows: &Rows, mut h: F::H) -> Result<F::X>
    where
        F: Functional,
        K: KvStore<F>,
    {
        for layer in 0..self.params.blocks.len() {
            h = self.block(f, kv, rows, (layer, &h))?;
        }
        self.final_norm(f, &h)
    }

    /// Has ready what passes over rows at these positions ask for, so that a GPU is not sent it between them.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn prefetch_rope(&self, positions: impl Iterator<Item = usize>) -> Result<()> {
        Ok(self.rope.prefetch(self.device(), positions)?)
    }

    /// The residual stream `[N, C]` before the first block of rows whose tokens were drawn and not looked at.
    ///
    /// # Errors
    /// When the tokens lie on another device.
    pub fn embed_sampled(&self, draws: &DeviceSampler) -> Result<Residual> {
        Ok(self.params.embed.sampled_rows(draws)?.into())
    }

    /// The residual stream `[N, C]` before the first block.
    pub(crate) fn embed<F: Functional>(&self, f: &mut F, rows: &Rows) -> Result<F::H> {
        f.embedding(&self.params.embed, &rows.id)
    }

    /// The residual stream after block `layer`.
    pub(crate) fn block<F, K>(
        &self,
        f: &mut F,
        kv: &mut K,
        rows: &Rows,
        (layer, h): (usize, &F::H),
    ) -> Result<F::H>
    where
        F: Functional,
        K: KvStore<F>,
    {
        let (block, eps) = (&self.params.blocks[layer], self.cfg.norm_eps as f32);
        let h = self.attend(f, kv, rows, (layer, block), h)?;
        let y = f.norm_swiglu(&h, (&block.post_norm, eps), [&block.gate, &block.up])?;
        let next = self.params.blocks.get(layer + 1).map_or(&self.params.norm, |next| &next.input_norm);
        f.linear_add(&h, &y, &block.down, (next, eps))
    }

    /// The hidden states of a residual stream that has passed all blocks.
    pub(crate) fn final_norm<F: Functional>(&self, f: &mut F, h: &F::H) -> Result<F::X> {
        f.rms_norm(h, &self.params.norm, self.cfg.norm_eps as f32)
    }

    fn attend<F, K>(
        &self,
        f: &mut F,
        kv: &mut K,
        rows: &Rows,
        (layer, w): (usize, &Block),
        h: &F::H,
    ) -> Result<F::H>
    where
        F: Functional,
        K: KvStore<F>,
    {
        let Config { n_heads, n_kv_heads, head_dim, .. } = self.cfg;
        let (n, eps) = (rows.len(), self.cfg.norm_eps as f32);
        let [q, k, v] = f.norm_linears(h, (&w.input_norm, eps), [&w.q, &w.k, &w.v])?;
        let v = f.reshape(&v, &[n, n_kv_heads, head_dim])?;
        let norms = w.qk_norm.as_ref().map(|[q, k]| ([q, k], eps));
        let turn = RopeArgs { table: &self.rope, positions: &rows.pos };
        let (q, seen) = kv.append_rotated(f, layer, Qkv { q: &q, k: &k, v: &v, norms, turn }, rows)?;
        let y = f.attention(&q, seen, AttnRows { rows, window: self.cfg.window(layer) })?;
        let y = f.reshape(&y, &[n, n_heads * head_dim])?;
        f.linear_add(h, &y, &w.o, (&w.post_norm, eps))
    }

    /// Logits `[N, V]`, f32, of hidden states `[N, C]`.
    ///
    /// # Errors
    /// When `hidden` has another width or dtype.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(ops::linear(hidden, &*self.params.head().packed()?, None, Dtype::F32)?)
    }
}
