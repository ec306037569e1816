//! The parameters of a model, each under its name in a checkpoint.
use xtrain_tensor::ops::{Affine, Weight};
use xtrain_tensor::{Device, Dtype, Tensor, fill_normal};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::param::{Param, Reading, TABLE, Values};

/// A projection: its matrix, and its bias where it has one.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each is its name and the shape beside it")]
pub struct Linear {
    pub weight: Param,       // [out, in]
    pub bias: Option<Param>, // [out]
}

impl Linear {
    /// What the operations read of it, its matrix packed.
    pub(crate) fn affine<'a>(&'a self, packed: &'a Weight) -> Result<Affine<'a>> {
        Ok(Affine { weight: packed, bias: self.bias()? })
    }

    /// The values of its bias.
    pub(crate) fn bias(&self) -> Result<Option<&Tensor>> {
        self.bias.as_ref().map(Param::value).transpose()
    }
}

/// The parameters of one block.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each is its name and the shape beside it")]
pub struct Block {
    pub input_norm: Param,           // [C]
    pub q: Linear,                   // [nh hd, C]
    pub k: Linear,                   // [nkv hd, C]
    pub v: Linear,                   // [nkv hd, C]
    pub qk_norm: Option<[Param; 2]>, // [hd] each
    pub o: Linear,                   // [C, nh hd]
    pub post_norm: Param,            // [C]
    pub gate: Linear,                // [F, C]
    pub up: Linear,                  // [F, C]
    pub down: Linear,                // [C, F]
}

/// The parameters of a model.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each is its name and the shape beside it")]
pub struct Params {
    pub embed: Param, // [V, C]
    pub blocks: Vec<Block>,
    pub norm: Param,         // [C]
    pub head: Option<Param>, // [V, C]; none: the embedding table is the head
}

/// How the values of a parameter begin.
#[derive(Debug, Clone, Copy)]
enum Init {
    Zeros,
    Ones,
    Normal(f64),
}

/// Makes the values of a parameter from its slot, name, shape and beginning.
type Fill<'a> = &'a mut dyn FnMut(usize, &str, &[usize], Init) -> Result<Values>;

/// Hands out parameters in walk order.
struct Maker<'a> {
    next: usize,
    compute: Dtype,
    fill: Fill<'a>,
}

impl Maker<'_> {
    fn param(&mut self, name: String, shape: &[usize], init: Init) -> Result<Param> {
        let values = (self.fill)(self.next, &name, shape, init)?;
        let slot = self.next;
        self.next += 1;
        Ok(Param::new(name, slot, self.compute, values))
    }

    /// A projection under `name`, `[out, in]`, with a bias or without.
    fn linear(&mut self, name: &str, shape: [usize; 2], (init, bias): (Init, bool)) -> Result<Linear> {
        let weight = self.param(format!("{name}.weight"), &shape, init)?;
        let bias = match bias {
            true => Some(self.param(format!("{name}.bias"), &shape[..1], Init::Zeros)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }
}

impl Params {
    /// Values drawn from `seed`: gains 1, biases 0; matrices normal with standard deviation 1 / sqrt(C), those
    /// that write into the residual stream 1 / sqrt(2 L C). (A fixed 0.02 is that of a width of 2,500:
    /// a model of width 128 learns sums six times slower from it.)
    ///
    /// # Errors
    /// [`Error::Config`] for a config that no model can have.
    pub fn init(cfg: &Config, compute: Dtype, device: &Device, seed: u64) -> Result<Params> {
        Params::make(cfg, compute, &mut |slot, _, shape, init| {
            let start = if matches!(init, Init::Zeros) { 0.0 } else { 1.0 };
            let mut values = vec![start; shape.iter().product()];
            if let Init::Normal(std) = init {
                fill_normal(seed, slot as u64, std as f32, &mut values);
            }
            Ok(Tensor::new(device, shape, values)?.into())
        })
    }

    /// Values by name, as a checkpoint holds them: `take(name, shape)` is asked for each parameter
    /// in walk order.
    ///
    /// # Errors
    /// What `take` returns; [`Error::Parameter`] for values of another count; [`Error::Config`].
    pub fn load(
        cfg: &Config,
        compute: Dtype,
        device: &Device,
        mut take: impl FnMut(&str, &[usize]) -> Result<Vec<f32>>,
    ) -> Result<Params> {
        Params::make(cfg, compute, &mut |_, name, shape, _| {
            let values = take(name, shape)?;
            if values.len() != shape.iter().product::<usize>() {
                let want = format!("the values of a tensor {shape:?}");
                return Err(Error::Parameter {
                    name: name.into(),
                    want,
                    got: format!("{} values", values.len()),
                });
            }
            Ok(Tensor::new(device, shape, values)?.into())
        })
    }

    /// Values by name, read into the form that they are held in.
    pub(crate) fn of(
        cfg: &Config,
        compute: Dtype,
        mut take: impl FnMut(&str, &[usize]) -> Result<Reading>,
    ) -> Result<Params> {
        Params::make(cfg, compute, &mut |_, name, shape, _| take(name, shape)?.finish())
    }

    /// The name and shape of every parameter that `cfg` asks for, in walk order. Nothing is allocated.
    ///
    /// # Errors
    /// [`Error::Config`] for a config that no model can have.
    pub fn shapes(cfg: &Config) -> Result<Vec<(String, Vec<usize>)>> {
        let mut shapes = Vec::new();
        let empty = Tensor::zeros(&Device::cpu(), &[0], Dtype::F32)?;
        Params::make(cfg, Dtype::F32, &mut |_, name, shape, _| {
            shapes.push((name.to_string(), shape.to_vec()));
            Ok(empty.clone().into())
        })?;
        Ok(shapes)
    }

    fn make(cfg: &Config, compute: Dtype, fill: Fill<'_>) -> Result<Params> {
        cfg.check()?;
        let (c, f, hd, biases) = (cfg.dim, cfg.ffn_dim, cfg.head_dim, cfg.biases);
        let (q, kv) = (cfg.n_heads * hd, cfg.n_kv_heads * hd);
        let std = Init::Normal((c as f64).sqrt().recip());
        let out = Init::Normal((2.0 * cfg.n_layers as f64 * c as f64).sqrt().recip());
        let mut m = Maker { next: 0, compute, fill };
        let embed = m.param(TABLE.into(), &[cfg.vocab, c], std)?;
        let mut blocks = Vec::with_capacity(cfg.n_layers);
        for i in 0..cfg.n_layers {
            let at = |field: &str| format!("model.layers.{i}.{field}");
            let gain = |m: &mut Maker<'_>, field: &str, width| {
                m.param(at(&format!("{field}.weight")), &[width], Init::Ones)
            };
            blocks.push(Block {
                input_norm: gain(&mut m, "input_layernorm", c)?,
                q: m.linear(&at("self_attn.q_proj"), [q, c], (std, biases.qkv))?,
                k: m.linear(&at("self_attn.k_proj"), [kv, c], (std, biases.qkv))?,
                v: m.linear(&at("self_attn.v_proj"), [kv, c], (std, biases.qkv))?,
                qk_norm: match cfg.qk_norm {
                    true => {
                        Some([gain(&mut m, "self_attn.q_norm", hd)?, gain(&mut m, "self_attn.k_norm", hd)?])
                    }
                    false => None,
                },
                o: m.linear(&at("self_attn.o_proj"), [c, q], (out, biases.o))?,
                post_norm: gain(&mut m, "post_attention_layernorm", c)?,
                gate: m.linear(&at("mlp.gate_proj"), [f, c], (std, biases.mlp))?,
                up: m.linear(&at("mlp.up_proj"), [f, c], (std, biases.mlp))?,
                down: m.linear(&at("mlp.down_proj"), [c, f], (out, biases.mlp))?,
            });
        }
        let norm = m.param("model.norm.weight".into(), &[c], Init::Ones)?;
        let head = match cfg.tie_embeddings {
            true => None,
            false => Some(m.param("lm_head.weight".into(), &[cfg.vocab, c], std)?),
        };
        Ok(Params { embed, blocks, norm, head })
    }

    /// The matrix `[V, C]` that turns hidden states into logits.
    pub fn head(&self) -> &Param {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Where the gradient of the head's use belongs: a tied table has one slot as a table and one
    /// as the head, added when the step ends.
    pub fn head_slot(&self) -> usize {
        self.head.as_ref().map_or(self.norm.index() + 1, Param::index)
    }

    /// The same parameters on another device: masters are shared between processors and copied to and
    /// from a GPU, packed forms are made anew.
    ///
    /// # Errors
    /// When the device has no memory for them; [`Error::NoMasterWeights`] for packed matrices alone.
    pub fn to_device(&self, device: &Device) -> Result<Params> {
        let mut params = self.clone();
        params.iter_mut().try_for_each(|p| p.move_to(device))?;
        Ok(params)
    }

    /// The same parameters without the f32 values of their matrices, which are packed: to be run alone.
    ///
    /// # Errors
    /// When the device has no memory for them.
    pub fn for_inference(&self) -> Result<Params> {
        let mut params = self.clone();
        params.iter_mut().try_for_each(|p| p.for_inference().map(|packed| *p = packed))?;
        Ok(params)
    }

    /// Every parameter, in walk order: the optimizer, the checkpoint and the tests all walk this; a
    /// field left out of it does not compile.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        let Params { embed, blocks, norm, head } = self;
        std::iter::once(embed).chain(blocks.iter().flat_map(Block::iter)).chain([norm]).chain(head)
    }

    /// Packs all matrices that are not packed, for a step of training: in one job where a pass would take one for
    /// each direction of each.
    ///
    /// # Errors
    /// When the device has no memory for them.
    pub fn pack(&self) -> Result<()> {
        let matrices = self.blocks.iter().flat_map(Block::iter).filter(|p| p.shape().len() == 2);
        Param::pack(matrices.chain([self.head()]))
    }

    /// [`Params::iter`], to be changed.
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
