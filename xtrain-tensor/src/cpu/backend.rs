//! The operations of the SIMD CPU backend.
use half::bf16;

use super::attention::{self, Number};
use super::gemm::Beta;
use super::heads;
use super::rope::{self, Direction};
use super::rowsum::{self, ParamGrad};
use super::value::with_values;
use super::{Cpu, embedding, linear, loss, norm, optim, pack, pointwise};
use crate::backend::Backend;
use crate::compose;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::host_ring::HostRing;
use crate::operands::{
    AdamWScalars, Affine, AttnMask, AttnSaved, Heads, LogProb, LossRows, LossValues, Norm, Outcome, Packer,
    RopeArgs, SampleRing, SampleRow, Samples, SlotRange, UnrotatedHeads, Update, Updated, Weight,
};
use crate::reference::{self, rows};
use crate::tensor::{Stored, Tensor};

impl Cpu {
    fn tensor<T: Stored>(&self, shape: &[usize], values: Vec<T>) -> Result<Tensor> {
        Tensor::new(&Device::Cpu(self.clone()), shape, values)
    }

    fn rotate(&self, x: &Tensor, rope: RopeArgs<'_>, direction: Direction, out: Dtype) -> Result<Tensor> {
        let RopeArgs { table, positions } = rope;
        with_values!(values = x => match out {
            Dtype::BF16 => {
                self.tensor(x.shape(), rope::rope::<_, bf16>(self, values, table, positions, direction))
            }
            _ => self.tensor(x.shape(), rope::rope::<_, f32>(self, values, table, positions, direction)),
        })
    }

    fn attention_of<E: Stored + Number>(
        &self,
        [q, k, v]: [&Tensor; 3],
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (y, lse) = attention::attention(self, [q.data::<E>()?, k.data()?, v.data()?], heads, mask);
        Ok((self.tensor(q.shape(), y)?, self.tensor(&q.shape()[..2], lse)?))
    }

    fn attention_backward_of<E: Stored + Number>(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<[Vec<f32>; 3]> {
        let AttnSaved { q, k, v, y, lse } = *saved;
        let [q, k, v, y, dy] = [q.data::<E>()?, k.data()?, v.data()?, y.data()?, dy.data()?];
        let saved = attention::Saved { q, k, v, y, dy, lse: lse.data()? };
        Ok(attention::attention_backward(self, saved, heads, mask))
    }

    /// Updates all parameters in one job. Returns whether all updated values are finite.
    fn update(&self, all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<bool> {
        let mut parts = Vec::with_capacity(all.len());
        for Update { w, g, m, v } in all {
            let decay = if w.shape().len() > 1 { s.keep } else { 1.0 };
            let (w, m, v) = (w.data_mut()?, m.data_mut()?, v.data_mut()?);
            parts.push(optim::Update { w, m, v, g: g.data()?, decay });
        }
        Ok(optim::adamw(self, parts, clip, s))
    }

    fn sums_of_squares(&self, gs: &[&Tensor]) -> Result<Vec<f32>> {
        let rows = gs.iter().map(|g| Ok(optim::GradRows { values: g.data()?, width: g.width().max(1) }));
        Ok(optim::sums_of_squares(self, &rows.collect::<Result<Vec<_>>>()?))
    }
}

fn norm_of<'a>(norm: Norm<'a>) -> Result<norm::Norm<'a>> {
    Ok(norm::Norm { gain: norm.gain.data()?, eps: norm.eps })
}

fn rope_of(rope: RopeArgs<'_>) -> heads::RopeArgs<'_> {
    heads::RopeArgs { table: rope.table, pos: rope.positions }
}

impl Backend for Cpu {
    fn cast(&self, x: &Tensor, dtype: Dtype) -> Result<Tensor> {
        with_values!(values = x => match dtype {
            Dtype::BF16 => self.tensor(x.shape(), pointwise::cast::<_, bf16>(self, values)),
            _ => self.tensor(x.shape(), pointwise::cast::<_, f32>(self, values)),
        })
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let mut y = a.clone();
        self.accumulate(&mut y, b)?;
        Ok(y)
    }

    fn accumulate(&self, a: &mut Tensor, b: &Tensor) -> Result<()> {
        let b = b.data()?;
        pointwise::accumulate(self, a.data_mut()?, b);
        Ok(())
    }

    fn silu_mul(&self, gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
        with_values!(g = gate => match out {
            Dtype::BF16 => self.tensor(gate.shape(), pointwise::silu_mul::<_, bf16>(self, g, up.data()?)),
            _ => self.tensor(gate.shape(), pointwise::silu_mul::<_, f32>(self, g, up.data()?)),
        })
    }

    fn silu_mul_backward(&self, gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]> {
        let (shape, dy) = (gate.shape(), dy.data::<f32>()?);
        with_values!(g = gate => {
            let u = up.data()?;
            if out == Dtype::BF16 {
                let (dg, du) = pointwise::silu_mul_backward::<_, bf16>(self, g, u, dy);
                Ok([self.tensor(shape, dg)?, self.tensor(shape, du)?])
            } else {
                let (dg, du) = pointwise::silu_mul_backward::<_, f32>(self, g, u, dy);
                Ok([self.tensor(shape, dg)?, self.tensor(shape, du)?])
            }
        })
    }

    fn first_non_finite(&self, xs: &[&Tensor]) -> Result<Option<usize>> {
        for (at, x) in xs.iter().enumerate() {
            if !with_values!(values = x => pointwise::all_finite(self, values)) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn rms_norm(&self, x: &Tensor, norm: Norm<'_>, out: Dtype) -> Result<Tensor> {
        let norm = norm_of(norm)?;
        with_values!(values = x => match out {
            Dtype::BF16 => self.tensor(x.shape(), norm::rms_norm::<_, bf16>(self, values, norm)),
            _ => self.tensor(x.shape(), norm::rms_norm::<_, f32>(self, values, norm)),
        })
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor,
        norm: Norm<'_>,
        dy: &Tensor,
        dw: &mut Tensor,
        samples: &Samples,
        onto: Option<Tensor>,
    ) -> Result<Tensor> {
        let (norm, dy) = (norm_of(norm)?, dy.data::<f32>()?);
        let dw = ParamGrad { grad: dw.data_mut()?, samples };
        let (mut dx, beta) = match onto {
            Some(sum) => (sum, Beta::One),
            None => (self.tensor::<f32>(x.shape(), self.recycler.acquire(x.len()))?, Beta::Zero),
        };
        let out = dx.data_mut()?;
        with_values!(values = x => norm::rms_norm_backward(self, values, dy, norm, dw, out, beta));
        Ok(dx)
    }

    fn rope_rows(&self, x: &Tensor, rope: RopeArgs<'_>, out: Dtype) -> Result<Tensor> {
        self.rotate(x, rope, Direction::Forward, out)
    }

    fn rope_backward(&self, dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        self.rotate(dy, rope, Direction::Inverse, Dtype::F32)
    }

    fn rope_at(&self, x: &Tensor, rope: RopeArgs<'_>, _first: u32) -> Result<Tensor> {
        self.rope_rows(x, rope, x.dtype())
    }

    fn rope_pos(&self, x: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        self.rope_rows(x, rope, x.dtype())
    }

    fn norm_rope(&self, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
        let norm = norm_of(norm)?;
        with_values!(values = x => self.tensor(x.shape(), heads::norm_rope(self, values, norm, rope_of(rope))))
    }

    fn norm_rope_backward(
        &self,
        x: &Tensor,
        norm: Norm<'_>,
        rope: RopeArgs<'_>,
        dy: &Tensor,
        dw: &mut Tensor,
        samples: &Samples,
    ) -> Result<Tensor> {
        let pairs = samples.times(x.shape()[1]);
        let (norm, rope, dy) = (norm_of(norm)?, rope_of(rope), dy.data::<f32>()?);
        let dw = ParamGrad { grad: dw.data_mut()?, samples: &pairs };
        with_values!(values = x => {
            self.tensor(x.shape(), heads::norm_rope_backward(self, values, dy, norm, rope, dw))
        })
    }

    fn write_heads(&self, new: &UnrotatedHeads<'_>, pools: [&mut Tensor; 2]) -> Result<Tensor> {
        compose::write_heads(self, new, pools)
    }

    fn pack(&self, w: &Tensor, dtype: Dtype) -> Result<Weight> {
        pack::pack(self, w, dtype)
    }

    fn pack_for_training(&self, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
        pack::pack_for_training(self, ws, dtype)
    }

    fn packer(&self, shape: [usize; 2], dtype: Dtype) -> Result<Box<dyn Packer>> {
        Ok(pack::packer(self, shape, dtype))
    }

    fn linear(&self, x: &Tensor, w: Affine<'_>, out: Dtype) -> Result<Tensor> {
        let y = linear::linear(self, x, w)?;
        if out == Dtype::F32 { Ok(y) } else { self.cast(&y, out) }
    }

    fn linear_add(&self, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
        linear::linear_add(self, h, x, w)
    }

    fn linears(&self, x: &Tensor, ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
        compose::linears(self, x, ws)
    }

    fn swiglu(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
        compose::swiglu(self, x, gate_up)
    }

    fn linear_backward_input(&self, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
        linear::backward_input(self, dys, ws)
    }

    fn linear_backward_weight(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        x: &Tensor,
        samples: &Samples,
    ) -> Result<()> {
        linear::weight_part(self, dw.data_mut()?, dy, x, samples)
    }

    fn linear_backward_bias(&self, db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
        rowsum::sum_rows(self, dy.data()?, ParamGrad { grad: db.data_mut()?, samples });
        Ok(())
    }

    fn attention(
        &self,
        [q, k, v]: [&Tensor; 3],
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<(Tensor, Tensor)> {
        match q.dtype() {
            Dtype::BF16 => self.attention_of::<bf16>([q, k, v], heads, mask),
            _ => self.attention_of::<f32>([q, k, v], heads, mask),
        }
    }

    fn decode_attention(&self, [q, k, v]: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor> {
        Ok(self.attention([q, k, v], heads, mask)?.0)
    }

    fn attention_backward(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<[Tensor; 3]> {
        let [dq, dk, dv] = match saved.q.dtype() {
            Dtype::BF16 => self.attention_backward_of::<bf16>(saved, dy, heads, mask)?,
            _ => self.attention_backward_of::<f32>(saved, dy, heads, mask)?,
        };
        let wrap = |x: &Tensor, d| self.tensor(x.shape(), d);
        Ok([wrap(saved.q, dq)?, wrap(saved.k, dk)?, wrap(saved.v, dv)?])
    }

    fn cat_seq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        rows::cat_seq(a, b)
    }

    fn repeat_kv(&self, x: &Tensor, n_heads: usize) -> Result<Tensor> {
        rows::repeat_kv(x, n_heads)
    }

    fn repeat_kv_backward(&self, dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
        rows::repeat_kv_backward(dy, n_kv_heads)
    }

    fn embedding(&self, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
        embedding::embedding(self, w, id, dtype)
    }

    fn weight_rows(&self, w: &Weight, id: &[u32]) -> Result<Tensor> {
        match w.master() {
            Some(table) => embedding::embedding(self, table, id, w.dtype()),
            None => embedding::weight_rows(w, id),
        }
    }

    fn embedding_backward(&self, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
        embedding::embedding_backward(self, dw, id, dy)
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        rows::gather_rows(x, rows)
    }

    fn scatter_rows(&self, pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
        rows::scatter_rows(pool, x, slots)
    }

    fn copy_slots(&self, to: &mut Tensor, from: &Tensor, ranges: &[SlotRange]) -> Result<()> {
        rows::copy_slots(to, from, ranges)
    }

    fn copy_slots_within(&self, pool: &mut Tensor, range: SlotRange) -> Result<()> {
        rows::copy_slots_within(pool, range)
    }

    fn cross_entropy(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<Vec<Option<LogProb>>> {
        loss::values(self, x, head, rows)
    }

    fn cross_entropy_kept(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<LossValues> {
        loss::values_and_kept(self, x, head, rows)
    }

    fn cross_entropy_backward(
        &self,
        x: &Tensor,
        head: &Weight,
        rows: &LossRows<'_>,
        dhead: &mut Tensor,
    ) -> Result<(Vec<Option<LogProb>>, Tensor)> {
        loss::gradients(self, x, head, rows, dhead)
    }

    fn log_prob(&self, logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
        loss::log_prob(self, logits.data()?, target)
    }

    /// Calls the reference implementation. The decoder has its own CPU sampler, which keeps sorted rows and buffers
    /// between steps.
    fn sample_rows(&self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
        let data = logits.data::<f32>()?;
        Ok(data.chunks_exact(logits.width()).zip(rows).map(|(x, row)| reference::sample(x, row)).collect())
    }

    fn sample_ring(&self, _rows: usize, _steps: usize) -> Result<Box<dyn SampleRing>> {
        Ok(Box::new(HostRing::new(self.clone())))
    }

    fn adamw_all(&self, all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated> {
        let norm =
            compose::global_norm(&self.sums_of_squares(&all.iter().map(|one| one.g).collect::<Vec<_>>())?);
        let finite = !norm.is_finite() || self.update(all, compose::clip(norm, max_norm), s)?;
        Ok(Updated { norm, finite })
    }

    fn sum_of_squares(&self, g: &Tensor) -> Result<f32> {
        Ok(self.sums_of_squares(&[g])?[0])
    }
}
