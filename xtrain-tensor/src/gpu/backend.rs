//! The operations of the GPU backend. Their caller holds the device's issue lock ([`crate::dispatch`]).
use super::attention::shared_prefix::attention_backward;
use super::attention::{self, check_head_size};
use super::deferred::{self, DeferredNorm};
use super::linear::several::{self, Source};
use super::linear::{self, Epilogue};
use super::linear::{input, weights};
use super::pack;
use super::rope::{self, RopeKernel};
use super::{Gpu, embedding, finite, heads, int8, kv, loss, norm, optim, pointwise, rows, sample};
use crate::backend::{Backend, RowOps, SharedOps};
use crate::compose;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{
    AdamWScalars, Affine, AttnMask, AttnSaved, GainGradient, Heads, LogProb, LossRows, LossValues, Norm,
    Outcome, Packer, QuantFormat, RopeArgs, SampleRing, SampleRow, Samples, SlotRange, UnrotatedHeads,
    Update, Updated, Weight,
};
use crate::tensor::{Tensor, Tensors};

/// Runs a fused kernel on `x`, or on the operand of its deferred norm. `None`: none supports these operands.
fn fused_products<T>(
    x: &Tensor,
    ws: &[Affine<'_>],
    run: impl FnOnce(Source<'_>) -> Result<T>,
) -> Option<Result<T>> {
    if let Some(norm) = deferred_norm(x) {
        let source = norm.source();
        if several::supports_fused(source, ws) {
            return Some(run(source));
        }
    }
    several::supports_fused(Source::Plain(x), ws).then(|| run(Source::Plain(x)))
}

/// The norm that `x` is, if it is deferred.
fn deferred_norm(x: &Tensor) -> Option<DeferredNorm> {
    // A reshaped tensor shares the buffer and its deferred norm, but has other rows.
    x.deferred().filter(|norm: &DeferredNorm| norm.x.shape() == x.shape())
}

impl Backend for Gpu {
    fn cast(&self, x: &Tensor, dtype: Dtype) -> Result<Tensor> {
        let fused = if dtype == Dtype::BF16 { input::rounded(self, x) } else { None };
        fused.unwrap_or_else(|| pointwise::cast(self, x, dtype))
    }
    fn accumulate(&self, a: &mut Tensor, b: &Tensor) -> Result<()> {
        pointwise::accumulate(self, a, b)
    }
    fn silu_mul(&self, gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
        pointwise::silu_mul(self, gate, up, out)
    }
    fn silu_mul_backward(&self, gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]> {
        let fused = input::swiglu_gradient(self, [gate, up], dy, out);
        fused.unwrap_or_else(|| pointwise::silu_mul_backward(self, [gate, up], dy, out))
    }
    fn first_non_finite(&self, xs: &[&Tensor]) -> Result<Option<usize>> {
        finite::first_non_finite(self, xs)
    }
    fn rms_norm(&self, x: &Tensor, norm: Norm<'_>, out: Dtype) -> Result<Tensor> {
        deferred::rms_norm(self, x, norm, out)
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
        norm::rms_norm_backward(self, x, norm, dy, dw, samples, onto)
    }

    fn rope_rows(&self, x: &Tensor, rope: RopeArgs<'_>, out: Dtype) -> Result<Tensor> {
        rope::rope(self, x, rope, RopeKernel::Rows, out)
    }
    fn rope_backward(&self, dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        rope::rope(self, dy, rope, RopeKernel::Back, Dtype::F32)
    }
    fn norm_rope(&self, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
        heads::norm_rope(self, x, norm, rope)
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
        heads::norm_rope_backward(self, x, norm, rope, dy, gain, out)
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
    fn quantized_packer(&self, shape: [usize; 2], _: QuantFormat) -> Result<Box<dyn Packer>> {
        // products read f32 values, which are those of the blocks
        Ok(pack::packer(self, shape, Dtype::F32))
    }
    fn quantized_bytes(&self, _: [usize; 2], _: QuantFormat) -> Option<usize> {
        None
    }
    fn linear(&self, x: &Tensor, w: Affine<'_>, out: Dtype) -> Result<Tensor> {
        if let Some(norm) = deferred_norm(x).filter(|_| out == Dtype::F32) {
            let source = norm.source();
            if several::supports_fused(source, &[w]) {
                return several::normed_linear(self, source, w);
            }
        }
        linear::linear(self, x, w.weight, Epilogue { bias: w.bias, ..Epilogue::default() }, out)
    }
    fn linear_add(&self, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
        let epilogue = linear::Epilogue { bias: w.bias, residual: Some(h) };
        linear::linear(self, x, w.weight, epilogue, Dtype::F32)
    }
    fn linear_backward_input(&self, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
        input::input_gradient(self, dys, ws)
    }

    fn linear_backward_weight(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        x: &Tensor,
        samples: &Samples,
    ) -> Result<()> {
        weights::weight_gradient(self, dw, dy, x, samples)
    }

    fn linear_backward_bias(&self, db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
        linear::bias_gradient(self, db, dy, samples)
    }

    fn attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<(Tensor, Tensor)> {
        check_head_size("attention", heads.hd)?;
        attention::attention(self, qkv, heads, mask)
    }

    fn int8_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor> {
        int8::int8_attention(self, qkv, heads, mask)
    }

    fn attention_backward(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<[Tensor; 3]> {
        check_head_size("attention_backward", heads.hd)?;
        attention_backward(self, saved, dy, heads, mask)
    }

    fn embedding(&self, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
        embedding::embedding(self, w, id, dtype)
    }
    fn weight_rows(&self, w: &Weight, id: &[u32]) -> Result<Tensor> {
        embedding::embedding(self, w.table()?, id, w.dtype())
    }
    fn embedding_backward(&self, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
        embedding::embedding_backward(self, dw, id, dy)
    }
    fn cross_entropy(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<Vec<Option<LogProb>>> {
        Ok(loss::loss(self, x, head, rows, None)?.0)
    }
    fn cross_entropy_kept(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<LossValues> {
        loss::values_and_kept(self, x, head, rows, loss::MAX_LOGITS)
    }

    fn cross_entropy_backward(
        &self,
        x: &Tensor,
        head: &Weight,
        rows: &LossRows<'_>,
        dhead: &mut Tensor,
    ) -> Result<(Vec<Option<LogProb>>, Tensor)> {
        loss::loss(self, x, head, rows, Some(dhead))
    }

    fn log_prob(&self, logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
        loss::log_prob(self, logits, target)
    }
}

impl RowOps for Gpu {
    fn cat_seq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let shape = [&[a.shape()[0] + b.shape()[0]], &a.shape()[1..]].concat();
        kv::cat_seq(self, a, b, &shape)
    }

    fn repeat_kv(&self, x: &Tensor, n_heads: usize) -> Result<Tensor> {
        kv::repeat_kv(self, x, n_heads)
    }
    fn repeat_kv_backward(&self, dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
        kv::repeat_kv_backward(self, dy, n_kv_heads)
    }
    fn gather_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        rows::gather_rows(self, x, rows)
    }
    fn scatter_rows(&self, pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
        rows::scatter_rows(self, pool, x, slots)
    }
    fn copy_slots(&self, to: &mut Tensor, from: &Tensor, ranges: &[SlotRange]) -> Result<()> {
        rows::copy_slots(self, to, from, ranges)
    }
    fn copy_slots_within(&self, pool: &mut Tensor, range: SlotRange) -> Result<()> {
        rows::copy_slots_within(self, pool, range)
    }
}

impl SharedOps for Gpu {
    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        pointwise::add(self, a, b)
    }
    fn rope_at(&self, x: &Tensor, rope: RopeArgs<'_>, first: u32) -> Result<Tensor> {
        rope::rope(self, x, rope, RopeKernel::At(first), x.dtype())
    }
    fn rope_pos(&self, x: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        rope::rope(self, x, rope, RopeKernel::Pos, x.dtype())
    }
    fn write_heads(&self, new: &UnrotatedHeads<'_>, pools: [&mut Tensor; 2]) -> Result<Tensor> {
        deferred::heads::write_heads(self, new, pools)
    }

    fn linears(&self, x: &Tensor, ws: &[Affine<'_>]) -> Result<Tensors> {
        let fused = fused_products(x, ws, |source| several::linears(self, source, ws));
        fused.unwrap_or_else(|| compose::linears(self, x, ws))
    }

    fn swiglu_kept(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<[Tensor; 3]> {
        match several::supports_fused(Source::Plain(x), &gate_up) {
            true => several::swiglu_kept(self, x, gate_up),
            false => compose::swiglu_kept(self, x, gate_up),
        }
    }

    fn swiglu(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
        let fused = fused_products(x, &gate_up, |source| several::swiglu(self, source, gate_up));
        fused.unwrap_or_else(|| compose::swiglu(self, x, gate_up))
    }

    fn decode_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor> {
        check_head_size("decode_attention", heads.hd)?;
        attention::decode_attention(self, qkv, heads, mask)
    }
    fn quantize_heads(&self, x: &Tensor) -> Result<Tensor> {
        int8::quantize_heads(self, x)
    }

    fn sample_rows(&self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
        sample::sample_rows(self, logits, rows)
    }
    fn sample_ring(&self, rows: usize, steps: usize) -> Result<Box<dyn SampleRing>> {
        Ok(Box::new(sample::GpuSampleRing::new(self, rows, steps)?))
    }
    fn adamw_all(&self, all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated> {
        optim::adamw_all(self, all, max_norm, s)
    }
    fn sum_of_squares(&self, g: &Tensor) -> Result<f32> {
        optim::sum_of_squares(self, g)
    }
}
