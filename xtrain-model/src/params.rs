//! The parameters of a model, named as in a checkpoint.
use std::ops::Range;

use xtrain_tensor::ops::{Affine, Weight};
use xtrain_tensor::{Device, Dtype, Tensor, fill_normal};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::param::{Param, ParamReader, TABLE, Values};

/// A linear projection.
#[derive(Debug, Clone)]
pub struct Linear {
    /// The matrix `[out, in]`.
    pub weight: Param,
    /// The bias `[out]`. `None`: no bias.
    pub bias: Option<Param>,
}

impl Linear {
    /// The packed weights and the bias as an operand.
    pub(crate) fn affine<'a>(&'a self, packed: &'a Weight) -> Result<Affine<'a>> {
        Ok(Affine { weight: packed, bias: self.bias()? })
    }

    pub(crate) fn bias(&self) -> Result<Option<&Tensor>> {
        self.bias.as_ref().map(Param::value).transpose()
    }
}

/// The parameters of one block.
#[derive(Debug, Clone)]
pub struct Block {
    /// The gain of the norm before attention, `[C]`.
    pub input_norm: Param,
    /// The query projection `[nh hd, C]`.
    pub q: Linear,
    /// The key projection `[nkv hd, C]`.
    pub k: Linear,
    /// The value projection `[nkv hd, C]`.
    pub v: Linear,
    /// The gains of the QK-norm of queries and keys, `[hd]` each. `None`: no QK-norm.
    pub qk_norm: Option<[Param; 2]>,
    /// The output projection of attention, `[C, nh hd]`.
    pub o: Linear,
    /// The gain of the norm before the MLP, `[C]`.
    pub post_norm: Param,
    /// The gate projection `[F, C]`.
    pub gate: Linear,
    /// The up projection `[F, C]`.
    pub up: Linear,
    /// The down projection `[C, F]`.
    pub down: Linear,
}

/// The parameters of a model.
#[derive(Debug, Clone)]
pub struct Params {
    /// The embedding table `[V, C]`.
    pub embed: Param,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The gain of the final norm, `[C]`.
    pub norm: Param,
    /// The head `[V, C]`. `None`: tied embeddings, the embedding table is the head.
    pub head: Option<Param>,
}

/// The initial values of a parameter.
#[derive(Debug, Clone, Copy)]
enum Init {
    Zeros,
    Ones,
    /// Normally distributed with this standard deviation.
    Normal(f64),
}

/// Creates the values of a parameter from its index, name, shape and initialization.
type Fill<'a> = &'a mut dyn FnMut(usize, &str, &[usize], Init) -> Result<Values>;

/// Creates parameters in walk order.
struct ParamBuilder<'a> {
    next: usize,
    compute: Dtype,
    fill: Fill<'a>,
}

impl ParamBuilder<'_> {
    fn param(&mut self, name: String, shape: &[usize], init: Init) -> Result<Param> {
        let values = (self.fill)(self.next, &name, shape, init)?;
        let index = self.next;
        self.next += 1;
        Ok(Param::new(name, index, self.compute, values))
    }

    /// The projection `name` of shape `[out, in]`, with a bias if `bias` is set.
    fn linear(&mut self, name: &str, shape: [usize; 2], init: Init, bias: bool) -> Result<Linear> {
        let weight = self.param(format!("{name}.weight"), &shape, init)?;
        let bias =
            if bias { Some(self.param(format!("{name}.bias"), &shape[..1], Init::Zeros)?) } else { None };
        Ok(Linear { weight, bias })
    }
}

impl Params {
    /// Initializes the parameters from `seed`: gains 1, biases 0, matrices normal with standard deviation 1 /
    /// sqrt(C), projections into the residual stream with 1 / sqrt(2 L C). (A fixed 0.02 corresponds to a width of
    /// 2,500: a model of width 128 learns sums six times slower from it.)
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid config.
    pub fn init(cfg: &Config, compute: Dtype, device: &Device, seed: u64) -> Result<Params> {
        Params::build(cfg, compute, &mut |index, _, shape, init| {
            let start = if matches!(init, Init::Zeros) { 0.0 } else { 1.0 };
            let mut values = vec![start; shape.iter().product()];
            if let Init::Normal(std) = init {
                fill_normal(seed, index as u64, std as f32, &mut values);
            }
            Ok(Tensor::new(device, shape, values)?.into())
        })
    }

    /// Loads the parameters by name: calls `take(name, shape)` for each parameter in walk order.
    ///
    /// # Errors
    /// Errors of `take`; [`Error::Parameter`] for a wrong number of values; [`Error::Config`] for an invalid config.
    pub fn load(
        cfg: &Config,
        compute: Dtype,
        device: &Device,
        mut take: impl FnMut(&str, &[usize]) -> Result<Vec<f32>>,
    ) -> Result<Params> {
        Params::build(cfg, compute, &mut |_, name, shape, _| {
            let values = take(name, shape)?;
            if values.len() != shape.iter().product::<usize>() {
                let want = format!("the values of a tensor of shape {shape:?}");
                let got = format!("{} values", values.len());
                return Err(Error::Parameter { name: name.into(), want, got });
            }
            Ok(Tensor::new(device, shape, values)?.into())
        })
    }

    /// Creates the parameters from completed readers: calls `take(name, shape)` for each parameter in walk order.
    pub(crate) fn from_readers(
        cfg: &Config,
        compute: Dtype,
        mut take: impl FnMut(&str, &[usize]) -> Result<ParamReader>,
    ) -> Result<Params> {
        Params::build(cfg, compute, &mut |_, name, shape, _| take(name, shape)?.finish())
    }

    /// The name and shape of every parameter of a model with config `cfg`, in walk order. Allocates no values.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid config.
    pub fn shapes(cfg: &Config) -> Result<Vec<(String, Vec<usize>)>> {
        let mut shapes = Vec::new();
        let empty = Tensor::zeros(&Device::cpu(), &[0], Dtype::F32)?;
        Params::build(cfg, Dtype::F32, &mut |_, name, shape, _| {
            shapes.push((name.to_string(), shape.to_vec()));
            Ok(empty.clone().into())
        })?;
        Ok(shapes)
    }

    fn build(cfg: &Config, compute: Dtype, fill: Fill<'_>) -> Result<Params> {
        cfg.check()?;
        let (c, f, hd, biases) = (cfg.dim, cfg.ffn_dim, cfg.head_dim, cfg.biases);
        let (q, kv) = (cfg.n_heads * hd, cfg.n_kv_heads * hd);
        let std = Init::Normal((c as f64).sqrt().recip());
        let out = Init::Normal((2.0 * cfg.n_layers as f64 * c as f64).sqrt().recip());
        let mut m = ParamBuilder { next: 0, compute, fill };
        let embed = m.param(TABLE.into(), &[cfg.vocab, c], std)?;
        let mut blocks = Vec::with_capacity(cfg.n_layers);
        for i in 0..cfg.n_layers {
            let at = |field: &str| format!("model.layers.{i}.{field}");
            let gain = |m: &mut ParamBuilder<'_>, field: &str, width| {
                m.param(at(&format!("{field}.weight")), &[width], Init::Ones)
            };
            blocks.push(Block {
                input_norm: gain(&mut m, "input_layernorm", c)?,
                q: m.linear(&at("self_attn.q_proj"), [q, c], std, biases.qkv)?,
                k: m.linear(&at("self_attn.k_proj"), [kv, c], std, biases.qkv)?,
                v: m.linear(&at("self_attn.v_proj"), [kv, c], std, biases.qkv)?,
                qk_norm: if cfg.qk_norm {
                    Some([gain(&mut m, "self_attn.q_norm", hd)?, gain(&mut m, "self_attn.k_norm", hd)?])
                } else {
                    None
                },
                o: m.linear(&at("self_attn.o_proj"), [c, q], out, biases.o)?,
                post_norm: gain(&mut m, "post_attention_layernorm", c)?,
                gate: m.linear(&at("mlp.gate_proj"), [f, c], std, biases.mlp)?,
                up: m.linear(&at("mlp.up_proj"), [f, c], std, biases.mlp)?,
                down: m.linear(&at("mlp.down_proj"), [c, f], out, biases.mlp)?,
            });
        }
        let norm = m.param("model.norm.weight".into(), &[c], Init::Ones)?;
        let head = if cfg.tie_embeddings {
            None
        } else {
            Some(m.param("lm_head.weight".into(), &[cfg.vocab, c], std)?)
        };
        Ok(Params { embed, blocks, norm, head })
    }

    /// The matrix `[V, C]` that maps hidden states to logits.
    pub fn head(&self) -> &Param {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// The index of the head's accumulator in [`Grads`](crate::Grads). A tied table has two accumulators, one as the
    /// embedding and one as the head, which are added when the step ends.
    pub fn head_index(&self) -> usize {
        self.head.as_ref().map_or(self.norm.index() + 1, Param::index)
    }

    /// The parameters of each part of the model, in walk order: the embedding table; each block; the final norm and, if it
    /// is not tied, the head.
    pub(crate) fn parts(&self) -> Vec<Range<usize>> {
        let starts = self.blocks.iter().map(|block| block.input_norm.index()).chain([self.norm.index()]);
        let starts: Vec<usize> = [0].into_iter().chain(starts).chain([self.iter().count()]).collect();
        starts.windows(2).map(|ends| ends[0]..ends[1]).collect()
    }

    /// The parameters on another device. CPU devices share master weights; a GPU gets a copy. Packed weights
    /// are created again at their next use.
    ///
    /// # Errors
    /// If the device is out of memory; [`Error::NoMasterWeights`] for a model opened for inference.
    pub fn to_device(&self, device: &Device) -> Result<Params> {
        let mut params = self.clone();
        for param in params.iter_mut() {
            let value = param.value_mut()?;
            *value = value.to_device(device)?;
        }
        Ok(params)
    }

    /// The parameters for inference: packed matrices without f32 master weights.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn for_inference(&self) -> Result<Params> {
        let mut params = self.clone();
        params.iter_mut().try_for_each(|p| p.for_inference().map(|packed| *p = packed))?;
        Ok(params)
    }

    /// Every parameter, in walk order. The optimizer, checkpoints and tests all use this order. A field that is left
    /// out of the walk does not compile.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        let Params { embed, blocks, norm, head } = self;
        std::iter::once(embed).chain(blocks.iter().flat_map(Block::iter)).chain([norm]).chain(head)
    }

    /// [`Param::compute_bytes`] of all parameters.
    pub fn compute_bytes(&self) -> usize {
        self.iter().map(Param::compute_bytes).sum()
    }

    /// Packs all matrices that are not packed yet, for both directions of a training step, in one parallel job.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn pack(&self) -> Result<()> {
        let matrices = self.blocks.iter().flat_map(Block::iter).filter(|p| p.shape().len() == 2);
        Param::pack(matrices.chain([self.head()]))
    }

    /// [`Params::iter`] with mutable references.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Param> {
        let Params { embed, blocks, norm, head } = self;
        std::iter::once(embed).chain(blocks.iter_mut().flat_map(Block::iter_mut)).chain([norm]).chain(head)
    }
}

impl Linear {
    fn iter(&self) -> impl Iterator<Item = &Param> {
        let Linear { weight, bias } = self;
        std::iter::once(weight).chain(bias)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Param> {
        let Linear { weight, bias } = self;
        std::iter::once(weight).chain(bias)
    }
}

impl Block {
    fn iter(&self) -> impl Iterator<Item = &Param> {
        let Block { input_norm, q, k, v, qk_norm, o, post_norm, gate, up, down } = self;
        std::iter::once(input_norm)
            .chain([q, k, v].into_iter().flat_map(Linear::iter))
            .chain(qk_norm.iter().flatten())
            .chain(o.iter())
            .chain([post_norm])
            .chain([gate, up, down].into_iter().flat_map(Linear::iter))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Param> {
        let Block { input_norm, q, k, v, qk_norm, o, post_norm, gate, up, down } = self;
        std::iter::once(input_norm)
            .chain([q, k, v].into_iter().flat_map(Linear::iter_mut))
            .chain(qk_norm.iter_mut().flatten())
            .chain(o.iter_mut())
            .chain([post_norm])
            .chain([gate, up, down].into_iter().flat_map(Linear::iter_mut))
    }
}
