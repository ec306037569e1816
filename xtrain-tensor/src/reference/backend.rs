//! The operations of the reference backend.
use std::borrow::Cow;

use half::bf16;

use super::pack::{self, Rows};
use super::{Ampere, Bf16, F32, Hopper, Mma};
use crate::backend::{Backend, HostBackend};
use crate::compose;
use crate::device::{Device, Reference};
use crate::dtype::{Dtype, from_bf16, to_bf16};
use crate::error::{Error, Result};
use crate::faults::{self, Fault};
use crate::operands::{
    AdamWScalars, Affine, AttnMask, AttnSaved, GainGradient, Heads, Int8Head, KeptSet, LogProb, LossRows,
    LossValues, Norm, Packer, QuantFormat, RopeArgs, Samples, Update, Weight,
};
use crate::tensor::Tensor;
use crate::tensor_core::TensorCore;

/// Calls a function of a mode, in the mode of `dtype` on the device.
macro_rules! in_mode {
    ($device:expr, $dtype:expr, $f:ident($($arg:expr),*)) => {
        match ($dtype, $device.tensor_core) {
            (Dtype::BF16, None) => super::$f::<Bf16>($($arg),*),
            (Dtype::BF16, Some(TensorCore::Ampere)) => super::$f::<Mma<Ampere>>($($arg),*),
            (Dtype::BF16, Some(TensorCore::Hopper)) => super::$f::<Mma<Hopper>>($($arg),*),
            _ => super::$f::<F32>($($arg),*),
        }
    };
}

/// The values of a floating-point tensor, widened if they are bf16.
fn widened(x: &Tensor) -> Result<Cow<'_, [f32]>> {
    match x.dtype() {
        Dtype::BF16 => Ok(Cow::Owned(x.data::<bf16>()?.iter().map(|&x| from_bf16(x)).collect())),
        _ => Ok(Cow::Borrowed(x.data::<f32>()?)),
    }
}

impl Reference {
    /// A tensor of f32 values, rounded to `out`.
    fn tensor(&self, shape: &[usize], values: Vec<f32>, out: Dtype) -> Result<Tensor> {
        let device = Device::Reference(self.clone());
        match out {
            Dtype::BF16 => Tensor::new(&device, shape, values.into_iter().map(to_bf16).collect::<Vec<_>>()),
            _ => Tensor::new(&device, shape, values),
        }
    }
}

/// Rotates every head of a copy of `x`.
fn rotated(x: &Tensor, rope: RopeArgs<'_>, rotate: fn(&mut [f32], &[f32], &[f32])) -> Result<Vec<f32>> {
    let (h, hd) = (x.shape()[1], x.shape()[2]);
    let mut y = widened(x)?.into_owned();
    for (row, &position) in y.chunks_exact_mut((h * hd).max(1)).zip(rope.positions) {
        let (cos, sin) = rope.table.row(position as usize);
        row.chunks_exact_mut(hd).for_each(|head| rotate(head, cos, sin));
    }
    Ok(y)
}

/// Each row of `x` in reverse order: the planted fault [`Fault::SingleRowSumReversed`].
fn reversed(x: &[f32], width: usize) -> Vec<f32> {
    x.chunks_exact(width).flat_map(|row| row.iter().rev().copied()).collect()
}

/// `x wᵀ`, `[N, out]`.
fn product(device: &Reference, x: &Tensor, w: &Weight) -> Result<Vec<f32>> {
    let (mut x_values, width) = (widened(x)?, w.in_features());
    let mut w_values = Cow::Borrowed(&w.forward::<Rows>()?.0);
    if x.shape()[0] == 1 && faults::on(Fault::SingleRowSumReversed) {
        x_values = Cow::Owned(reversed(&x_values, width));
        w_values = Cow::Owned(reversed(&w_values, width));
    }
    Ok(in_mode!(device, w.dtype(), linear(&x_values, &w_values, width)))
}

struct RowOfLoss {
    z: Vec<f32>,
    value: Option<LogProb>,
    /// `None`: all tokens are kept.
    kept: Option<KeptSet>,
}

/// Divides the logits of row `n` by the temperature, sets those that the filters remove to -inf, except that of the
/// target, and computes the row's values.
fn row_of_loss(z: &[f32], n: usize, rows: &LossRows<'_>) -> RowOfLoss {
    let Some(target) = rows.targets[n] else { return RowOfLoss { z: z.to_vec(), value: None, kept: None } };
    let (mut z, id): (Vec<f32>, _) = (z.iter().map(|z| z / rows.temperature).collect(), target.id as usize);
    let kept = rows.kept_set(n).cloned().or_else(|| kept_by_filters(&z, rows));
    if let Some(set) = &kept {
        set.remove_others(&mut z, 0, Some(id));
    }
    let is_kept = kept.as_ref().is_none_or(|set| set.contains(target.id));
    let super::RowLoss { lse, log_prob, entropy } = super::log_prob(&z, id);
    RowOfLoss { z, value: Some(LogProb { lse, log_prob, entropy, kept: is_kept }), kept }
}

/// The tokens that the filters keep. `None`: all, also for a NaN or an infinite maximum, whose `lse` is not finite.
fn kept_by_filters(z: &[f32], rows: &LossRows<'_>) -> Option<KeptSet> {
    let max = super::largest(z);
    if !rows.filters(z.len()) || !max.is_finite() || z.iter().any(|z| z.is_nan()) {
        return None;
    }
    let weights = super::integer_weights(z, max);
    let mut kept = vec![true; z.len()];
    for i in super::removed(z, max, &weights, rows.top_k.unwrap_or(0), rows.top_p, rows.min_p) {
        kept[i] = false;
    }
    Some(KeptSet::of(z.len(), |i| kept[i]))
}

/// The rows of a loss over all of their logits.
fn rows_of_loss(
    device: &Reference,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
) -> Result<Vec<RowOfLoss>> {
    let logits = product(device, x, head)?;
    let all = logits.chunks_exact(head.out_features()).enumerate();
    let all: Vec<_> = all.map(|(n, z)| row_of_loss(z, n, rows)).collect();
    match all.iter().position(|row| row.value.is_some_and(|v| !v.lse.is_finite())) {
        Some(row) => Err(Error::NotFinite { what: "logits".into(), row }),
        None => Ok(all),
    }
}

impl HostBackend for Reference {
    fn row_squares(&self, gs: &[&Tensor]) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        for g in gs {
            rows.extend(super::row_squares(g.data::<f32>()?, g.width().max(1)));
        }
        Ok(rows)
    }

    fn sum(&self, x: &[f32]) -> f32 {
        super::sum32(x.len(), |v, i| v + x[i])
    }

    fn update(&self, all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<bool> {
        let mut finite = true;
        for Update { w, g, m, v } in all {
            let decay = if w.shape().len() > 1 { s.keep } else { 1.0 };
            let (w, g) = (w.data_mut::<f32>()?, g.data::<f32>()?);
            let (m, v) = (m.data_mut::<f32>()?, v.data_mut::<f32>()?);
            for i in 0..w.len() {
                (w[i], m[i], v[i]) = super::adamw(w[i], g[i] * clip, m[i], v[i], s, decay);
            }
            finite &= w.iter().all(|w| w.is_finite());
        }
        Ok(finite)
    }
}

impl Backend for Reference {
    fn cast(&self, x: &Tensor, dtype: Dtype) -> Result<Tensor> {
        self.tensor(x.shape(), widened(x)?.into_owned(), dtype)
    }

    fn accumulate(&self, a: &mut Tensor, b: &Tensor) -> Result<()> {
        let b = b.data::<f32>()?;
        a.data_mut::<f32>()?.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        Ok(())
    }

    fn silu_mul(&self, gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
        let (g, u) = (widened(gate)?, widened(up)?);
        let y = g.iter().zip(u.iter()).map(|(&g, &u)| super::silu_mul(g, u)).collect();
        self.tensor(gate.shape(), y, out)
    }

    fn silu_mul_backward(&self, gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]> {
        let (g, u, dy) = (widened(gate)?, widened(up)?, dy.data::<f32>()?);
        let (dg, du) = (0..dy.len()).map(|i| super::silu_mul_backward(g[i], u[i], dy[i])).unzip();
        Ok([self.tensor(gate.shape(), dg, out)?, self.tensor(gate.shape(), du, out)?])
    }

    fn first_non_finite(&self, xs: &[&Tensor]) -> Result<Option<usize>> {
        for (at, x) in xs.iter().enumerate() {
            if !widened(x)?.iter().all(|x| x.is_finite()) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn rms_norm(&self, x: &Tensor, norm: Norm<'_>, out: Dtype) -> Result<Tensor> {
        self.tensor(x.shape(), super::rms_norm(&widened(x)?, norm.gain.data()?, norm.eps), out)
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
        let (values, gain, dw) = (widened(x)?, norm.gain.data()?, dw.data_mut()?);
        let dx = super::rms_norm_backward::<F32>(&values, gain, dy.data()?, norm.eps, dw, samples);
        let dx = self.tensor(x.shape(), dx, Dtype::F32)?;
        match onto {
            None => Ok(dx),
            Some(mut sum) => self.accumulate(&mut sum, &dx).map(|()| sum),
        }
    }

    fn rope_rows(&self, x: &Tensor, rope: RopeArgs<'_>, out: Dtype) -> Result<Tensor> {
        self.tensor(x.shape(), rotated(x, rope, super::rotate)?, out)
    }
    fn rope_backward(&self, dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        self.tensor(dy.shape(), rotated(dy, rope, super::rotate_back)?, Dtype::F32)
    }
    fn norm_rope(&self, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
        compose::norm_rope(self, x, norm, rope)
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
        compose::norm_rope_backward(self, x, norm, rope, dy, gain, out)
    }

    fn pack(&self, w: &Tensor, dtype: Dtype) -> Result<Weight> {
        pack::pack(w, dtype)
    }
    fn pack_for_training(&self, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
        ws.iter().map(|w| pack::pack(w, dtype)).collect()
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
        let mut y = product(self, x, w.weight)?;
        if let Some(bias) = w.bias {
            let bias = bias.data::<f32>()?;
            y.chunks_exact_mut(bias.len()).for_each(|y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        self.tensor(&[x.shape()[0], w.weight.out_features()], y, out)
    }

    fn linear_add(&self, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
        let mut y = self.linear(x, w, Dtype::F32)?;
        self.accumulate(&mut y, h)?;
        Ok(y)
    }

    fn linear_backward_input(&self, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
        let (n, width) = (dys[0].shape()[0], ws[0].in_features());
        let mut dx = vec![0.0; n * width];
        for (dy, w) in dys.iter().zip(ws) {
            let rows = &w.forward::<Rows>()?.0;
            in_mode!(self, w.dtype(), linear_dx(&mut dx, &widened(dy)?, rows, width));
        }
        self.tensor(&[n, width], dx, Dtype::F32)
    }

    fn linear_backward_weight(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        x: &Tensor,
        samples: &Samples,
    ) -> Result<()> {
        let (dy_values, x_values, width) = (widened(dy)?, widened(x)?, x.width());
        let add = |dw: &mut [f32]| {
            in_mode!(self, x.dtype(), linear_dw(dw, &dy_values, &x_values, width, samples));
        };
        let dw = dw.data_mut::<f32>()?;
        if faults::on(Fault::MicroBatchSubtotal) {
            let mut total = vec![0.0; dw.len()];
            add(&mut total);
            dw.iter_mut().zip(total).for_each(|(dw, total)| *dw += total);
            return Ok(());
        }
        add(dw);
        Ok(())
    }

    fn linear_backward_bias(&self, db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()> {
        super::linear_db::<F32>(db.data_mut()?, dy.data()?, samples);
        Ok(())
    }

    fn attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<(Tensor, Tensor)> {
        let [q, k, v] = qkv;
        let operands = [&*widened(q)?, &*widened(k)?, &*widened(v)?];
        let done = in_mode!(self, q.dtype(), attention(operands, heads, mask));
        let y = self.tensor(q.shape(), done.y, q.dtype())?;
        Ok((y, self.tensor(&q.shape()[..2], done.lse, Dtype::F32)?))
    }

    fn int8_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor> {
        let [q, k, v] = qkv;
        let values = |x: &Tensor| {
            let shape = [x.shape()[0], heads.nkv, heads.hd];
            self.tensor(&shape, Int8Head::dequantize(x.data()?, heads.hd), q.dtype())
        };
        Ok(self.attention([q, &values(k)?, &values(v)?], heads, mask)?.0)
    }

    fn attention_backward(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<[Tensor; 3]> {
        let AttnSaved { q, k, v, y, lse } = *saved;
        let [q_, k_, v_, y_, dy_] = [&widened(q)?, &widened(k)?, &widened(v)?, &widened(y)?, &widened(dy)?];
        let operands = super::AttentionSaved { q: q_, k: k_, v: v_, y: y_, lse: lse.data()?, dy: dy_ };
        let [dq, dk, dv] = in_mode!(self, q.dtype(), attention_backward(operands, heads, mask));
        let wrap = |x: &Tensor, d| self.tensor(x.shape(), d, Dtype::F32);
        Ok([wrap(q, dq)?, wrap(k, dk)?, wrap(v, dv)?])
    }

    fn embedding(&self, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
        let (table, c) = (w.data::<f32>()?, w.width());
        let y: Vec<f32> = id.iter().flat_map(|&i| table[i as usize * c..][..c].iter().copied()).collect();
        let y = match dtype {
            Dtype::BF16 => y.into_iter().map(crate::dtype::round_bf16).collect(),
            _ => y,
        };
        self.tensor(&[id.len(), c], y, Dtype::F32)
    }

    fn weight_rows(&self, w: &Weight, id: &[u32]) -> Result<Tensor> {
        let (rows, c) = (&w.forward::<Rows>()?.0, w.in_features());
        let y = id.iter().flat_map(|&i| rows[i as usize * c..][..c].iter().copied()).collect();
        self.tensor(&[id.len(), c], y, Dtype::F32)
    }

    fn embedding_backward(&self, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
        let (c, dy) = (dw.width(), dy.data::<f32>()?);
        let dw = dw.data_mut::<f32>()?;
        for (&i, dy) in id.iter().zip(dy.chunks_exact(c.max(1))) {
            dw[i as usize * c..][..c].iter_mut().zip(dy).for_each(|(a, b)| *a += b);
        }
        Ok(())
    }

    fn cross_entropy(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<Vec<Option<LogProb>>> {
        Ok(rows_of_loss(self, x, head, rows)?.into_iter().map(|row| row.value).collect())
    }

    fn cross_entropy_kept(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<LossValues> {
        let rows = rows_of_loss(self, x, head, rows)?;
        let (log_probs, kept) = rows.into_iter().map(|row| (row.value, row.kept)).unzip();
        Ok(LossValues { log_probs, kept })
    }

    fn cross_entropy_backward(
        &self,
        x: &Tensor,
        head: &Weight,
        rows: &LossRows<'_>,
        dhead: &mut Tensor,
    ) -> Result<(Vec<Option<LogProb>>, Tensor)> {
        let all = rows_of_loss(self, x, head, rows)?;
        let mut dz = Vec::with_capacity(all.len() * head.out_features());
        for (row, target) in all.iter().zip(rows.targets) {
            let (Some(LogProb { lse, log_prob, entropy, .. }), Some(target)) = (row.value, target) else {
                dz.extend(row.z.iter().map(|_| 0.0));
                continue;
            };
            let (id, loss) = (Some(target.id as usize), super::RowLoss { lse, log_prob, entropy });
            dz.extend(super::dlogits(&row.z, id, loss, target.weight, target.bonus, rows.temperature));
        }
        let dz = self.tensor(&[all.len(), head.out_features()], dz, head.dtype())?;
        self.linear_backward_weight(dhead, &dz, x, rows.samples)?;
        let dx = self.linear_backward_input(&[&dz], &[head])?;
        Ok((all.into_iter().map(|row| row.value).collect(), dx))
    }

    fn log_prob(&self, logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
        let rows = logits.data::<f32>()?.chunks_exact(logits.width().max(1)).zip(target);
        let one = |(z, &target): (&[f32], &u32)| {
            let super::RowLoss { lse, log_prob, entropy } = super::log_prob(z, target as usize);
            LogProb { lse, log_prob, entropy, kept: true }
        };
        Ok(rows.map(one).collect())
    }
}
