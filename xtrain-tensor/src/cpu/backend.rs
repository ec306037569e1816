//! The operations of the SIMD CPU backend.
use super::gemm::{Beta, QuantPanels};
use super::rope::{self, Direction};
use super::rowsum::{self, ParamGrad};
use super::value::with_values;
use super::{Cpu, attention, embedding, linear, loss, norm, pack, pointwise};
use crate::backend::Backend;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{
    Affine, AttnMask, AttnSaved, GainGradient, Heads, LogProb, LossRows, LossValues, Norm, Packer,
    QuantFormat, RopeArgs, Samples, Weight,
};
use crate::reference::AttentionSaved;
use crate::tensor::{Stored, Tensor};

impl Cpu {
    fn tensor<T: Stored>(&self, shape: &[usize], values: Vec<T>) -> Result<Tensor> {
        Tensor::new(&Device::Cpu(self.clone()), shape, values)
    }
}

fn norm_of<'a>(norm: Norm<'a>) -> Result<norm::Norm<'a>> {
    Ok(norm::Norm { gain: norm.gain.data()?, eps: norm.eps })
}

impl Backend for Cpu {
    fn cast(&self, x: &Tensor, dtype: Dtype) -> Result<Tensor> {
        with_values!(values = x, O = dtype => self.tensor(x.shape(), pointwise::cast::<_, O>(self, values)))
    }

    fn accumulate(&self, a: &mut Tensor, b: &Tensor) -> Result<()> {
        let b = b.data()?;
        pointwise::accumulate(self, a.data_mut()?, b);
        Ok(())
    }

    fn silu_mul(&self, gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
        with_values!(g = gate, O = out => {
            self.tensor(gate.shape(), pointwise::silu_mul::<_, O>(self, g, up.data()?))
        })
    }

    fn silu_mul_backward(&self, gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]> {
        let (shape, dy) = (gate.shape(), dy.data::<f32>()?);
        with_values!(g = gate, O = out => {
            let (dg, du) = pointwise::silu_mul_backward::<_, O>(self, g, up.data()?, dy);
            Ok([self.tensor(shape, dg)?, self.tensor(shape, du)?])
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
        with_values!(values = x, O = out => self.tensor(x.shape(), norm::rms_norm::<_, O>(self, values, norm)))
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
        with_values!(values = x, O = out => {
            self.tensor(x.shape(), rope::rope::<_, O>(self, values, rope, Direction::Forward))
        })
    }

    fn rope_backward(&self, dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        with_values!(values = dy => {
            self.tensor(dy.shape(), rope::rope::<_, f32>(self, values, rope, Direction::Inverse))
        })
    }

    fn norm_rope(&self, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
        let norm = norm_of(norm)?;
        with_values!(values = x => self.tensor(x.shape(), rope::norm_rope(self, values, norm, rope)))
    }

    fn norm_rope_backward(
        &self,
        x: &Tensor,
        norm: Norm<'_>,
        rope: RopeArgs<'_>,
        dy: &Tensor,
        gain: GainGradient<'_>,
        out: Dtype,
    ) -> Result<Tensor> {
        let pairs = gain.samples.times(x.shape()[1]);
        let (norm, dy) = (norm_of(norm)?, dy.data::<f32>()?);
        let dw = ParamGrad { grad: gain.dw.data_mut()?, samples: &pairs };
        let dx = with_values!(values = x => {
            self.tensor(x.shape(), rope::norm_rope_backward(self, values, dy, norm, rope, dw))
        });
        dx?.cast(out)
    }

    fn pack(&self, w: &Tensor, dtype: Dtype) -> Result<Weight> {
        pack::pack(self, w, dtype)
    }
    fn pack_for_training(&self, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
        pack::pack_for_training(self, ws, dtype)
    }
    fn packer(&self, shape: [usize; 2], dtype: Dtype) -> Result<Box<dyn Packer>> {
        pack::packer(self, shape, dtype)
    }
    fn quantized_packer(&self, shape: [usize; 2], format: QuantFormat) -> Result<Box<dyn Packer>> {
        pack::quantized_packer(self, shape, format)
    }
    fn quantized_bytes(&self, [out, width]: [usize; 2], format: QuantFormat) -> Option<usize> {
        Some(QuantPanels::bytes_of([width, out], format))
    }

    fn linear(&self, x: &Tensor, w: Affine<'_>, out: Dtype) -> Result<Tensor> {
        if out == Dtype::F32 { linear::linear(self, x, w) } else { linear::linear_rounded(self, x, w) }
    }

    fn linear_add(&self, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
        linear::linear_add(self, h, x, w)
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

    fn attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<(Tensor, Tensor)> {
        let [q, k, v] = qkv;
        with_values!(values = q => {
            let (y, lse) = attention::attention(self, [values, k.data()?, v.data()?], heads, mask);
            Ok((self.tensor(q.shape(), y)?, self.tensor(&q.shape()[..2], lse)?))
        })
    }

    fn int8_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor> {
        let [q, k, v] = qkv;
        let codes = [k.data::<u32>()?, v.data::<u32>()?];
        with_values!(values = q => {
            let (y, lse) = attention::attention_over(self, values, codes, heads, mask);
            self.tensor(&q.shape()[..2], lse)?; // its memory is used again
            self.tensor(q.shape(), y)
        })
    }

    fn attention_backward(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<[Tensor; 3]> {
        let AttnSaved { q, k, v, y, lse } = *saved;
        let [dq, dk, dv] = with_values!(values = q => {
            let (k, v, y, dy) = (k.data()?, v.data()?, y.data()?, dy.data()?);
            let saved = AttentionSaved { q: values, k, v, y, dy, lse: lse.data()? };
            attention::attention_backward(self, saved, heads, mask)
        });
        let wrap = |x: &Tensor, d| self.tensor(x.shape(), d);
        Ok([wrap(q, dq)?, wrap(k, dk)?, wrap(v, dv)?])
    }

    fn embedding(&self, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
        embedding::embedding(self, w, id, dtype)
    }

    fn weight_rows(&self, w: &Weight, id: &[u32]) -> Result<Tensor> {
        match w.master() {
            Some(table) => embedding::embedding(self, table, id, w.dtype()),
            None => embedding::weight_rows(self, w, id),
        }
    }

    fn embedding_backward(&self, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
        embedding::embedding_backward(self, dw, id, dy)
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
}
