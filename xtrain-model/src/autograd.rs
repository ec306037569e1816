//! Reverse-mode differentiation: a tape of rules, run backwards.
use std::rc::Rc;

use xtrain_tensor::ops::{self, Norm, RopeArgs, Samples, Slots};
use xtrain_tensor::{Dtype, RopeTable, Tensor};

use crate::error::Result;
use crate::functional::{AttnRows, Functional, KvView, split_heads};
use crate::grads::Grads;
use crate::param::Param;
use crate::params::Linear;
use crate::rows::Rows;

/// A value and its place on the tape.
#[derive(Debug, Clone)]
pub struct Var {
    /// The value.
    pub value: Tensor,
    node: usize,
    /// What its gradient may be rounded to, where only products read it.
    rounded: Dtype,
}

type Rule<'t> = Box<dyn FnOnce(&mut Back<'_>) -> Result<()> + 't>;

/// Records each operation with the rule that takes its gradient back. A parameter's gradient is
/// added into [`Grads`] chunk by chunk, sample by sample.
pub struct Tape<'t> {
    rules: Vec<Option<Rule<'t>>>,
    samples: Rc<Samples>,
}

impl std::fmt::Debug for Tape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tape").field("nodes", &self.rules.len()).finish_non_exhaustive()
    }
}

/// The gradients of a pass that runs backwards.
struct Back<'g> {
    nodes: Vec<Option<Tensor>>,
    grads: &'g mut Grads,
    samples: &'g Samples,
}

impl Back<'_> {
    /// The gradient of a node whose uses have all been walked.
    fn take(&mut self, node: usize) -> Tensor {
        self.nodes[node].take().expect("every recorded value is used by a later one")
    }

    /// Adds one use's gradient: two uses commute.
    fn add(&mut self, x: &Var, g: Tensor) -> Result<()> {
        match &mut self.nodes[x.node] {
            Some(sum) => ops::accumulate(sum, &g)?,
            empty => *empty = Some(g),
        }
        Ok(())
    }

    /// Adds the gradients of a projection's own matrix and bias: the matrix reads `dy` rounded to `dtype`,
    /// which is returned, the bias reads it unrounded.
    fn own_gradients(
        &mut self,
        (weight, bias): (usize, Option<usize>),
        dy: &Tensor,
        (dtype, x): (Dtype, &Tensor),
    ) -> Result<Tensor> {
        let rounded = dy.cast(dtype)?;
        ops::linear_backward_weight(self.grads.slot_mut(weight), &rounded, x, self.samples)?;
        if let Some(bias) = bias {
            ops::linear_backward_bias(self.grads.slot_mut(bias), dy, self.samples)?;
        }
        Ok(rounded)
    }
}

/// The slots of a projection's matrix and bias.
fn slots_of(w: &Linear) -> (usize, Option<usize>) {
    (w.weight.index(), w.bias.as_ref().map(Param::index))
}

impl<'t> Tape<'t> {
    /// An empty tape for a pass over rows of these samples.
    pub fn new(samples: Samples) -> Tape<'t> {
        Tape { rules: Vec::new(), samples: Rc::new(samples) }
    }

    /// Runs the tape backwards from `y`, whose gradient is `dy`, and adds the parameters' gradients
    /// into `grads`. A tape runs once.
    ///
    /// # Errors
    /// When `dy` does not have the shape of `y`.
    pub fn backward(self, y: &Var, dy: Tensor, grads: &mut Grads) -> Result<()> {
        self.run((y, dy), grads).map(|_| ())
    }

    /// [`Tape::backward`]; returns the gradient of `leaf`, which the pass has used.
    ///
    /// # Errors
    /// As [`Tape::backward`].
    pub(crate) fn backward_to(
        self,
        (y, dy): (&Var, Tensor),
        leaf: &Var,
        grads: &mut Grads,
    ) -> Result<Tensor> {
        let mut nodes = self.run((y, dy), grads)?;
        Ok(nodes[leaf.node].take().expect("the pass has used the leaf"))
    }

    /// A value that comes from outside of the tape.
    pub(crate) fn leaf(&mut self, value: Tensor) -> Var {
        self.place(value, Dtype::F32)
    }

    /// The gradients that no rule has taken.
    fn run(self, (y, dy): (&Var, Tensor), grads: &mut Grads) -> Result<Vec<Option<Tensor>>> {
        let nodes = (0..self.rules.len()).map(|_| None).collect();
        let mut back = Back { nodes, grads, samples: &self.samples };
        back.add(y, dy)?;
        for rule in self.rules.into_iter().rev().flatten() {
            rule(&mut back)?;
        }
        Ok(back.nodes)
    }

    /// A value whose gradient is taken by the rule of an earlier node of its group.
    fn place(&mut self, value: Tensor, rounded: Dtype) -> Var {
        self.rules.push(None);
        Var { value, node: self.rules.len() - 1, rounded }
    }

    fn record(&mut self, value: Tensor, rule: impl FnOnce(&mut Back<'_>, Tensor) -> Result<()> + 't) -> Var {
        let node = self.rules.len();
        self.rules.push(Some(Box::new(move |back| {
            let dy = back.take(node);
            rule(back, dy)
        })));
        Var { value, node, rounded: Dtype::F32 }
    }

    /// Linears that read one `x`.
    fn linears<const G: usize>(&mut self, x: &Var, ws: [&Linear; G]) -> Result<[Var; G]> {
        let mut packed = Vec::with_capacity(G);
        let mut ys = Vec::with_capacity(G);
        for w in ws {
            let weight = w.weight.packed()?;
            let (bias, out) = (w.bias()?, w.weight.compute());
            // a bias reads its gradient unrounded
            let rounded = if bias.is_some() { Dtype::F32 } else { out };
            ys.push(self.place(ops::linear(&x.value, &weight, bias, out)?, rounded));
            packed.push(weight);
        }
        let (x, slots, nodes) = (x.clone(), ws.map(slots_of), ys.iter().map(|y| y.node).collect::<Vec<_>>());
        // the first of the group is walked last: the gradients of all of them are there
        let first = nodes[0];
        self.rules[first] = Some(Box::new(move |b: &mut Back<'_>| {
            let mut dys = Vec::with_capacity(G);
            for (i, w) in packed.iter().enumerate() {
                let dy = b.take(nodes[i]);
                dys.push(b.own_gradients(slots[i], &dy, (w.dtype(), &x.value))?);
            }
            let dys: Vec<&Tensor> = dys.iter().collect();
            let ws: Vec<&ops::Weight> = packed.iter().map(|w| &**w).collect();
            b.add(&x, ops::linear_backward_input(&dys, &ws)?)
        }));
        Ok(ys.try_into().expect("one output for each of G weights"))
    }

    fn silu_mul(&mut self, gate: &Var, up: &Var) -> Result<Var> {
        let y = ops::silu_mul(&gate.value, &up.value, gate.value.dtype())?;
        let (gate, up) = (gate.clone(), up.clone());
        Ok(self.record(y, move |b, dy| {
            let (dg, du) = ops::silu_mul_backward(&gate.value, &up.value, &dy, gate.rounded)?;
            b.add(&gate, dg)?;
            b.add(&up, du)
        }))
    }
}

impl<'t> Functional for Tape<'t> {
    type X = Var;
    type H = Var;

    fn embedding(&mut self, w: &Param, id: &[u32]) -> Result<Var> {
        let y = w.rows(id)?;
        let (slot, id) = (w.index(), id.to_vec());
        Ok(self.record(y, move |b, dy| Ok(ops::embedding_backward(b.grads.slot_mut(slot), &id, &dy)?)))
    }

    fn rms_norm(&mut self, x: &Var, w: &Param, eps: f32) -> Result<Var> {
        let y = ops::rms_norm(&x.value, w.value()?, eps, w.compute())?;
        let (x, gain, slot) = (x.clone(), w.value()?.clone(), w.index());
        Ok(self.record(y, move |b, dy| {
            let (others, dw) = (b.nodes[x.node].take(), b.grads.slot_mut(slot));
            let norm = Norm { gain: &gain, eps };
            let dx = ops::rms_norm_backward(&x.value, norm, &dy, dw, b.samples, others)?;
            b.add(&x, dx)
        }))
    }

    fn norm_linears<const G: usize>(
        &mut self,
        h: &Var,
        (w, eps): (&Param, f32),
        ws: [&Linear; G],
    ) -> Result<[Var; G]> {
        let x = self.rms_norm(h, w, eps)?;
        self.linears(&x, ws)
    }

    fn norm_swiglu(&mut self, h: &Var, norm: (&Param, f32), gate_up: [&Linear; 2]) -> Result<Var> {
        let [gate, up] = self.norm_linears(h, norm, gate_up)?;
        self.silu_mul(&gate, &up)
    }

    fn linear_add(&mut self, h: &Var, x: &Var, w: &Linear, _: (&Param, f32)) -> Result<Var> {
        let weight = w.weight.packed()?;
        let y = ops::linear_add(&h.value, &x.value, &weight, w.bias()?)?;
        let (h, x, slots) = (h.clone(), x.clone(), slots_of(w));
        Ok(self.record(y, move |b, dy| {
            let rounded = b.own_gradients(slots, &dy, (weight.dtype(), &x.value))?;
            b.add(&x, ops::linear_backward_input(&[&rounded], &[&weight])?)?;
            b.add(&h, dy)
        }))
    }

    fn norm_rope(&mut self, x: &Var, norm: Option<(&Param, f32)>, turn: &RopeArgs<'_>) -> Result<Var> {
        let heads = split_heads(&x.value, turn.table.head_dim())?;
        let (table, pos): (RopeTable, Vec<u32>) = (turn.table.clone(), turn.positions.to_vec());
        let Some((w, eps)) = norm else {
            let rope = RopeArgs { table: &table, positions: &pos };
            let y = ops::rope_rows(&heads, rope, heads.dtype())?;
            let x = x.clone();
            return Ok(self.record(y, move |b, dy| {
                let rope = RopeArgs { table: &table, positions: &pos };
                b.add(&x, ops::rope_backward(&dy, rope)?.reshape(x.value.shape())?)
            }));
        };
        let rope = RopeArgs { table: &table, positions: &pos };
        let y = ops::norm_rope(&heads, Norm { gain: w.value()?, eps }, rope)?;
        let (x, gain, slot) = (x.clone(), w.value()?.clone(), w.index());
        Ok(self.record(y, move |b, dy| {
            let (norm, dw) = (Norm { gain: &gain, eps }, b.grads.slot_mut(slot));
            let rope = RopeArgs { table: &table, positions: &pos };
            let dx = ops::norm_rope_backward(&heads, norm, rope, &dy, dw, b.samples)?;
            b.add(&x, dx.reshape(x.value.shape())?)
        }))
    }

    fn attention(&mut self, q: &Var, kv: KvView<'_, Var>, see: AttnRows<'_>) -> Result<Var> {
        let (q, k, v) = (q.clone(), kv.k.clone(), kv.v.clone());
        let (slots, rows, window): (Slots, Rows, _) = (kv.slots.clone(), see.rows.clone(), see.window);
        let (y, lse) = ops::attention(&q.value, &k.value, &v.value, &see.attn_mask(&slots))?;
        let kept = y.clone();
        Ok(self.record(y, move |b, dy| {
            let saved = ops::AttnSaved { q: &q.value, k: &k.value, v: &v.value, y: &kept, lse: &lse };
            let [dq, dk, dv] =
                ops::attention_backward(&saved, &dy, &AttnRows { rows: &rows, window }.attn_mask(&slots))?;
            b.add(&q, dq)?;
            b.add(&k, dk)?;
            b.add(&v, dv)
        }))
    }

    fn reshape(&mut self, x: &Var, shape: &[usize]) -> Result<Var> {
        let y = x.value.reshape(shape)?;
        let x = x.clone();
        Ok(self.record(y, move |b, dy| b.add(&x, dy.reshape(x.value.shape())?)))
    }
}
