//! Reverse-mode differentiation: a tape of backward rules.
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, Affine, GainGradient, Norm, RopeArgs, Samples, Slots};
use xtrain_tensor::{Dtype, RopeTable, Tensor};

use crate::error::Result;
use crate::functional::{Functional, HeadNorm, KvView, attn_mask, split_heads, try_map};
use crate::grads::Grads;
use crate::param::Param;
use crate::params::Linear;
use crate::rows::Rows;

/// A value and its node on the tape.
#[derive(Debug, Clone)]
pub struct Var {
    /// The value.
    pub value: Tensor,
    /// The number of its tape.
    tape: u64,
    node: usize,
    /// The dtype to which the gradient may be rounded: the compute dtype if only matrix products read the gradient.
    grad_dtype: Dtype,
}

type Rule<'t> = Box<dyn FnOnce(&mut Back<'_>) -> Result<()> + 't>;

/// Records each operation with its backward rule. Parameter gradients are added into [`Grads`] chunk by chunk, in the
/// order of the samples.
///
/// A tape runs the operations of [`Functional`], whose parameters are those of a model. Models of other layers compute
/// their gradients with the `_backward` operations of [`xtrain_tensor::ops`].
pub struct Tape<'t> {
    /// Its number in this process.
    id: u64,
    rules: Vec<Option<Rule<'t>>>,
    samples: Rc<Samples>,
}

struct Back<'g> {
    tape: u64,
    /// Whether the result depends on every recorded value.
    all_used: bool,
    nodes: Vec<Option<Tensor>>,
    grads: &'g mut Grads,
    samples: &'g Samples,
}

impl Back<'_> {
    /// The gradient of a node, after the rules of all its uses have run. `None`: the result does not depend on it.
    fn take(&mut self, node: usize) -> Option<Tensor> {
        let gradient = self.nodes[node].take();
        assert!(gradient.is_some() || !self.all_used, "every recorded value is used by a later one");
        gradient
    }

    /// Adds the gradient of one use. A value has at most two uses, and addition commutes.
    fn add(&mut self, x: &Var, g: Tensor) -> Result<()> {
        self.require_own(x)?;
        match &mut self.nodes[x.node] {
            Some(sum) => ops::accumulate(sum, &g)?,
            empty => *empty = Some(g),
        }
        Ok(())
    }

    fn require_own(&self, x: &Var) -> Result<()> {
        if x.tape == self.tape || faults::on(Fault::OtherTapeAccepted) {
            return Ok(());
        }
        let got = "a value of another tape".into();
        Err(xtrain_tensor::Error::Argument { op: "Tape::backward", want: "values of this tape", got }.into())
    }

    /// Adds the gradients of the weight and bias of a linear with input `x`. The weight gradient reads `dy` rounded
    /// to `dtype`, the bias gradient reads it unrounded. Returns the rounded `dy`.
    fn linear_params(
        &mut self,
        linear: LinearIndex,
        x: &Tensor,
        dy: &Tensor,
        dtype: Dtype,
    ) -> Result<Tensor> {
        let rounded = dy.cast(dtype)?;
        ops::linear_backward_weight(self.grads.accumulator_mut(linear.weight), &rounded, x, self.samples)?;
        if let Some(bias) = linear.bias {
            ops::linear_backward_bias(self.grads.accumulator_mut(bias), dy, self.samples)?;
        }
        Ok(rounded)
    }
}

#[derive(Debug, Clone, Copy)]
struct LinearIndex {
    weight: usize,
    bias: Option<usize>,
}

impl LinearIndex {
    fn of(w: &Linear) -> LinearIndex {
        LinearIndex { weight: w.weight.index(), bias: w.bias.as_ref().map(Param::index) }
    }
}

impl<'t> Tape<'t> {
    /// An empty tape for a pass over the rows of `samples`.
    pub fn new(samples: Samples) -> Tape<'t> {
        static TAPES: AtomicU64 = AtomicU64::new(0);
        let id = TAPES.fetch_add(1, Ordering::Relaxed);
        Tape { id, rules: Vec::new(), samples: Rc::new(samples) }
    }

    /// Runs the backward pass from `y` with gradient `dy` and adds the parameter gradients into `grads`. Consumes the
    /// tape. Recorded values on which `y` does not depend have no gradient.
    ///
    /// # Errors
    /// When `dy` does not have the shape of `y`; when `y`, or a value that an operation before it has read, is a value of
    /// another tape. `grads` has a part of the sums then.
    pub fn backward(self, y: &Var, dy: Tensor, grads: &mut Grads) -> Result<()> {
        self.run(y, dy, grads, false).map(|_| ())
    }

    /// [`Tape::backward`] from a `y` that depends on all recorded values, otherwise it panics. Returns the gradient of
    /// `leaf`.
    pub(crate) fn backward_to(self, y: &Var, dy: Tensor, leaf: &Var, grads: &mut Grads) -> Result<Tensor> {
        let mut nodes = self.run(y, dy, grads, true)?;
        Ok(nodes[leaf.node].take().expect("the pass has used the leaf"))
    }

    pub(crate) fn leaf(&mut self, value: Tensor) -> Var {
        self.node(value, Dtype::F32)
    }

    /// Runs all rules. Returns the gradients of the nodes without a rule.
    fn run(self, y: &Var, dy: Tensor, grads: &mut Grads, all_used: bool) -> Result<Vec<Option<Tensor>>> {
        let nodes = (0..self.rules.len()).map(|_| None).collect();
        let mut back = Back { tape: self.id, all_used, nodes, grads, samples: &self.samples };
        back.add(y, dy)?;
        for rule in self.rules.into_iter().rev().flatten() {
            rule(&mut back)?;
        }
        Ok(back.nodes)
    }

    /// A node without a rule: an input, or an output of a group whose first node has the rule.
    fn node(&mut self, value: Tensor, grad_dtype: Dtype) -> Var {
        self.rules.push(None);
        Var { value, tape: self.id, node: self.rules.len() - 1, grad_dtype }
    }

    /// Records a group of linears with input `x`, packed weights and outputs `ys`.
    fn group<const G: usize>(
        &mut self,
        x: &Var,
        ws: [&Linear; G],
        packed: [Arc<ops::Weight>; G],
        ys: impl IntoIterator<Item = Tensor>,
    ) -> [Var; G] {
        let ys = ws.iter().zip(ys).map(|(w, y)| {
            // a bias gradient reads dy unrounded
            let grad_dtype = if w.bias.is_some() { Dtype::F32 } else { w.weight.compute() };
            self.node(y, grad_dtype)
        });
        let ys: Vec<Var> = ys.collect();
        let (x, linears) = (x.clone(), ws.map(LinearIndex::of));
        let nodes: Vec<usize> = ys.iter().map(|y| y.node).collect();
        // the rule of the first node runs last, when the gradients of the whole group are complete
        let first = nodes[0];
        self.rules[first] = Some(Box::new(move |b: &mut Back<'_>| {
            if nodes.iter().all(|&node| b.nodes[node].is_none()) && !b.all_used {
                return Ok(());
            }
            let mut dys = Vec::with_capacity(G);
            for (i, w) in packed.iter().enumerate() {
                let shape = [x.value.rows(), w.out_features()];
                let dy = match b.take(nodes[i]) {
                    Some(dy) => dy,
                    None => Tensor::zeros(x.value.device(), &shape, Dtype::F32)?,
                };
                dys.push(b.linear_params(linears[i], &x.value, &dy, w.dtype())?);
            }
            let dys: Vec<&Tensor> = dys.iter().collect();
            let ws: Vec<&ops::Weight> = packed.iter().map(|w| &**w).collect();
            b.add(&x, ops::linear_backward_input(&dys, &ws)?)
        }));
        ys.try_into().expect("one output for each of G weights")
    }

    fn record(&mut self, value: Tensor, rule: impl FnOnce(&mut Back<'_>, Tensor) -> Result<()> + 't) -> Var {
        let node = self.rules.len();
        self.rules.push(Some(Box::new(move |back| match back.take(node) {
            Some(dy) => rule(back, dy),
            None => Ok(()),
        })));
        Var { value, tape: self.id, node, grad_dtype: Dtype::F32 }
    }
}

fn packed_of<const G: usize>(ws: [&Linear; G]) -> Result<[Arc<ops::Weight>; G]> {
    try_map(ws, |w| w.weight.packed())
}

fn affine_of<'a, const G: usize>(
    ws: [&'a Linear; G],
    packed: &'a [Arc<ops::Weight>; G],
) -> Result<[Affine<'a>; G]> {
    let mut packed = packed.iter();
    try_map(ws, |w| w.affine(packed.next().expect("a packed form of each weight")))
}

impl Functional for Tape<'_> {
    type X = Var;

    fn embedding(&mut self, table: &Param, id: &[u32]) -> Result<Var> {
        let y = table.rows(id)?;
        let (index, id) = (table.index(), id.to_vec());
        Ok(self
            .record(y, move |b, dy| Ok(ops::embedding_backward(b.grads.accumulator_mut(index), &id, &dy)?)))
    }

    fn rms_norm(&mut self, x: &Var, gain: &Param, eps: f32) -> Result<Var> {
        let y = ops::rms_norm(&x.value, gain.value()?, eps, gain.compute())?;
        let (x, index, gain) = (x.clone(), gain.index(), gain.value()?.clone());
        Ok(self.record(y, move |b, dy| {
            // if the other use of `x` already has its gradient, the kernel adds to it
            b.require_own(&x)?;
            let (other, dw) = (b.nodes[x.node].take(), b.grads.accumulator_mut(index));
            let norm = Norm { gain: &gain, eps };
            let dx = ops::rms_norm_backward(&x.value, norm, &dy, dw, b.samples, other)?;
            b.add(&x, dx)
        }))
    }

    fn linears<const G: usize>(&mut self, x: &Var, ws: [&Linear; G]) -> Result<[Var; G]> {
        let packed = packed_of(ws)?;
        let ys = ops::linears(&x.value, &affine_of(ws, &packed)?)?;
        Ok(self.group(x, ws, packed, ys))
    }

    fn swiglu(&mut self, x: &Var, gate: &Linear, up: &Linear) -> Result<Var> {
        let packed = packed_of([gate, up])?;
        let [y, g, u] = ops::swiglu_kept(&x.value, affine_of([gate, up], &packed)?)?;
        let [gate, up] = self.group(x, [gate, up], packed, [g, u]);
        Ok(self.record(y, move |b, dy| {
            let [mut dg, mut du] = ops::silu_mul_backward(&gate.value, &up.value, &dy, gate.grad_dtype)?;
            if faults::on(Fault::GateGradientIsUps) {
                std::mem::swap(&mut dg, &mut du);
            }
            b.add(&gate, dg)?;
            b.add(&up, du)
        }))
    }

    fn linear_add(&mut self, h: &Var, x: &Var, w: &Linear) -> Result<Var> {
        let weight = w.weight.packed()?;
        let y = ops::linear_add(&h.value, &x.value, &weight, w.bias()?)?;
        let (h, x, linear) = (h.clone(), x.clone(), LinearIndex::of(w));
        Ok(self.record(y, move |b, dy| {
            let rounded = b.linear_params(linear, &x.value, &dy, weight.dtype())?;
            b.add(&x, ops::linear_backward_input(&[&rounded], &[&weight])?)?;
            b.add(&h, dy)
        }))
    }

    fn norm_rope(&mut self, x: &Var, norm: Option<HeadNorm<'_>>, rope: RopeArgs<'_>) -> Result<Var> {
        let heads = split_heads(&x.value, rope.table.head_dim())?;
        let (table, positions): (RopeTable, Vec<u32>) = (rope.table.clone(), rope.positions.to_vec());
        let Some(norm) = norm else {
            let y = ops::rope_rows(&heads, rope, heads.dtype())?;
            let x = x.clone();
            return Ok(self.record(y, move |b, dy| {
                let rope = RopeArgs { table: &table, positions: &positions };
                b.add(&x, ops::rope_backward(&dy, rope)?.reshape(x.value.shape())?)
            }));
        };
        let Norm { gain, eps } = norm.values()?;
        let y = ops::norm_rope(&heads, Norm { gain, eps }, rope)?;
        let (x, index, gain) = (x.clone(), norm.gain.index(), gain.clone());
        Ok(self.record(y, move |b, dy| {
            let (norm, rope) = (Norm { gain: &gain, eps }, RopeArgs { table: &table, positions: &positions });
            let gain = GainGradient { dw: b.grads.accumulator_mut(index), samples: b.samples };
            let dx = ops::norm_rope_backward(&heads, norm, rope, &dy, gain, x.grad_dtype)?;
            b.add(&x, dx.reshape(x.value.shape())?)
        }))
    }

    fn attention(&mut self, q: &Var, kv: KvView<'_, Var>, rows: &Rows, window: Option<usize>) -> Result<Var> {
        let (q, k, v) = (q.clone(), kv.k.clone(), kv.v.clone());
        let (slots, rows): (Slots, Rows) = (kv.slots.clone(), rows.clone());
        let (y, lse) = ops::attention(&q.value, &k.value, &v.value, &attn_mask(&rows, &slots, window))?;
        let kept = y.clone();
        Ok(self.record(y, move |b, dy| {
            let saved = ops::AttnSaved { q: &q.value, k: &k.value, v: &v.value, y: &kept, lse: &lse };
            let [dq, dk, dv] = ops::attention_backward(&saved, &dy, &attn_mask(&rows, &slots, window))?;
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

#[cfg(test)]
mod tests {
    use xtrain_tensor::Device;

    use super::*;
    use crate::config::Config;
    use crate::params::Params;

    fn params() -> Params {
        let params = Params::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0).unwrap();
        params.pack().unwrap();
        params
    }

    /// The gradients of a value of `tape` with respect to all parameters, as sums of absolute values.
    fn sums(params: &Params, tape: Tape<'_>, y: &Var) -> Result<Vec<f32>> {
        let mut grads = Grads::zeros(params)?;
        let ones = vec![1.0; y.value.len()];
        tape.backward(y, Tensor::new(&Device::cpu(), y.value.shape(), ones)?, &mut grads)?;
        let sum = |g: &Tensor| g.data::<f32>().unwrap().iter().map(|x| x.abs()).sum();
        Ok(grads.finish()?.iter().map(sum).collect())
    }

    #[test]
    fn a_value_that_is_not_used_does_not_change_the_gradient() {
        let params = params();
        let gradient = |with_unused: bool| {
            let mut tape = Tape::new(Samples::of_lengths([3]));
            let x = tape.embedding(&params.embed, &[1, 2, 3]).unwrap();
            let block = &params.blocks[0];
            let h = tape.rms_norm(&x, &block.input_norm, 1e-6).unwrap();
            let [q, k] = tape.linears(&h, [&block.q, &block.k]).unwrap();
            if with_unused {
                let _ = tape.linears(&h, [&block.v]).unwrap();
                let _ = tape.reshape(&k, &[k.value.len(), 1]).unwrap();
            }
            sums(&params, tape, &q).unwrap()
        };
        let want = gradient(false);
        assert_eq!(gradient(true), want);
        assert!(want[0] > 0.0 && want.iter().filter(|sum| **sum > 0.0).count() == 3, "{want:?}");
    }

    /// The gradients of an operation of one tape that reads a value of another one.
    fn of_two_tapes() -> Result<Vec<f32>> {
        let params = params();
        let [mut one, mut two] = [3, 3].map(|rows| Tape::new(Samples::of_lengths([rows])));
        let [x, _] = [&mut one, &mut two].map(|tape| tape.embedding(&params.embed, &[1, 2, 3]).unwrap());
        let y = two.rms_norm(&x, &params.norm, 1e-6)?;
        sums(&params, two, &y)
    }

    #[test]
    fn a_value_of_another_tape_is_an_error() {
        let error = of_two_tapes().unwrap_err().to_string();
        assert!(error.contains("expected values of this tape, found a value of another tape"), "{error}");
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_value_of_another_tape_that_is_accepted_is_found() {
        assert!(faults::with(Fault::OtherTapeAccepted, of_two_tapes).is_ok());
    }
}
