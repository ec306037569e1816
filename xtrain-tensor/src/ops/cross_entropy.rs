//! The weighted negative log-probability of targets, fused with the head's product.
use std::ops::Range;

use super::{LogProb, Samples, Weight, linear, linear_backward_input, linear_backward_weight, shapes};
use crate::reference::{self, RowLoss};
use crate::{Dtype, Error, Result, Stored, Tensor};

/// The token that a row should predict, and what that is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The token.
    pub id: u32,
    /// Factor of its negative log-probability: 1 / targets of the whole step, or an advantage.
    pub weight: f32,
    /// Factor of the row's entropy, which is subtracted from the gradient's loss (not from the
    /// reported one).
    pub bonus: f32,
}

/// The rows of a loss.
#[derive(Debug, Clone, Copy)]
pub struct LossRows<'a> {
    /// One entry a row; a row without a target has no part in the loss.
    pub targets: &'a [Option<Target>],
    /// The samples that the rows belong to.
    pub samples: &'a Samples,
    /// The logits are divided by it.
    pub temperature: f32,
}

/// Adds `rowsum w (lse - z_y)` to `loss` and returns each row's log-probability and entropy, where it
/// has a target. `z = (x headᵀ) / temperature`; `x [N, C]` in the dtype of `head [V, C]`.
///
/// The logits of all rows together are never in memory. Order: *dot*, `lse` and *rowsum* of
/// docs/numerics.md.
///
/// # Errors
/// [`Error::Shape`], [`Error::Dtype`] or [`Error::Index`] when operands do not fit;
/// [`Error::NotFinite`] for a row whose `lse` is not finite.
pub fn cross_entropy(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    loss: &mut f32,
) -> Result<Vec<Option<LogProb>>> {
    run(x, head, rows, loss, None).map(|(values, _)| values)
}

/// [`cross_entropy`], its gradient by `x [N, C]` (f32), and its gradient by the head added into
/// `dhead [V, C]`.
///
/// # Errors
/// As [`cross_entropy`]; [`Error::Shape`] unless `dhead` has the head's shape.
pub fn cross_entropy_backward(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    (loss, dhead): (&mut f32, &mut Tensor),
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    if dhead.shape() != [head.out(), head.width()] {
        let got = vec![dhead.shape().to_vec(), vec![head.out(), head.width()]];
        return Err(Error::Shape { op: "cross_entropy", want: "dhead as the head", got });
    }
    run(x, head, rows, loss, Some(dhead))
}

fn run(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    loss: &mut f32,
    mut dhead: Option<&mut Tensor>,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    check(x, head, rows)?;
    let mut values = vec![None; x.shape()[0]];
    let mut dx = vec![0f32; if dhead.is_some() { x.len() } else { 0 }];
    for sample in rows.samples.ranges() {
        for start in sample.clone().step_by(256) {
            let block = start..sample.end.min(start + 256);
            let xs = part(x, &block)?;
            let dz = values_of(&xs, head, rows, (&block, &mut values))?;
            *loss += block.clone().zip(rows.targets[block.clone()].iter()).fold(0f32, |sum, (n, t)| {
                match (t, values[n]) {
                    (Some(t), Some(v)) => t.weight.mul_add(-v.log_prob, sum),
                    _ => sum,
                }
            });
            let Some(dhead) = dhead.as_deref_mut() else { continue };
            let dz = Tensor::new(x.device(), &[block.len(), head.out()], dz)?.cast(head.dtype())?;
            linear_backward_weight(dhead, &dz, &xs, &Samples::of_lengths([block.len()]))?;
            let width = head.width();
            let d = linear_backward_input(&[&dz], &[head])?;
            dx[block.start * width..block.end * width].copy_from_slice(d.data()?);
        }
    }
    let shape = if dhead.is_some() { x.shape() } else { &[0] };
    Ok((values, Tensor::new(x.device(), shape, dx)?))
}

/// Fills in the values of the rows of `block`; returns their `dz [len, V]`.
fn values_of(
    xs: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    (block, values): (&Range<usize>, &mut [Option<LogProb>]),
) -> Result<Vec<f32>> {
    let t = rows.temperature;
    let logits = linear(xs, head, None, Dtype::F32)?;
    let mut dz = Vec::with_capacity(logits.len());
    for (n, x) in block.clone().zip(logits.data::<f32>()?.chunks_exact(head.out())) {
        let Some(target) = rows.targets[n] else {
            dz.resize(dz.len() + head.out(), 0.0);
            continue;
        };
        let z: Vec<f32> = x.iter().map(|x| x / t).collect();
        let row: RowLoss<f32> = reference::log_prob(&z, target.id as usize);
        if !row.lse.is_finite() {
            return Err(Error::NotFinite { what: "logits".into(), row: n });
        }
        values[n] = Some(LogProb { lse: row.lse, log_prob: row.log_prob, entropy: row.entropy });
        dz.extend(reference::dlogits(&z, target.id as usize, row, [target.weight, target.bonus, t]));
    }
    Ok(dz)
}

/// Rows `range` of a matrix.
fn part(x: &Tensor, range: &Range<usize>) -> Result<Tensor> {
    fn of<T: Stored>(x: &Tensor, range: &Range<usize>) -> Result<Tensor> {
        let c = x.width();
        Tensor::new(x.device(), &[range.len(), c], x.data::<T>()?[range.start * c..range.end * c].to_vec())
    }
    match x.dtype() {
        Dtype::BF16 => of::<half::bf16>(x, range),
        _ => of::<f32>(x, range),
    }
}

fn check(x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<()> {
    const OP: &str = "cross_entropy";
    if x.shape().len() != 2 || x.width() != head.width() || x.shape()[0] != rows.targets.len() {
        let mut got = shapes(&[x]);
        got.extend([vec![head.out(), head.width()], vec![rows.targets.len()]]);
        return Err(Error::Shape { op: OP, want: "x [N, C], head [V, C], N targets", got });
    }
    if !(rows.temperature > 0.0 && rows.temperature.is_finite()) {
        let got = rows.temperature.to_string();
        return Err(Error::Argument { op: OP, want: "a positive temperature", got });
    }
    rows.samples.check(OP, rows.targets.len())?;
    let outside = |t: &Option<Target>| t.is_some_and(|t| t.id as usize >= head.out());
    match rows.targets.iter().position(outside) {
        Some(at) => {
            let got = rows.targets[at].map_or(0, |t| u64::from(t.id));
            Err(Error::Index { op: OP, what: "target", at, got, bound: head.out() as u64 })
        }
        None => Ok(()),
    }
}
