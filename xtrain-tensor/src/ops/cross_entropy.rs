//! The weighted negative log-probability of targets, fused with the head's product.
use std::ops::Range;

use super::log_prob::{GRAIN, of_row};
use super::{LogProb, Samples, Weight, linear, linear_backward_input, linear_backward_weight, shapes};
use crate::cpu::lanes::dispatch;
use crate::cpu::{Disjoint, softmax};
use crate::reference::{self, RowLoss};
use crate::{Device, Dtype, Error, Result, Stored, Tensor};

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
    let width = head.width();
    let mut values = vec![None; x.shape()[0]];
    let mut dx = vec![0f32; if dhead.is_some() { x.len() } else { 0 }];
    for (block, samples) in blocks(rows.samples, (LOGITS / head.out()).max(1)) {
        let xs = part(x, &block)?;
        let mut logits = linear(&xs, head, None, Dtype::F32)?;
        turn_into_gradients(&mut logits, rows, (&block, &mut values[block.clone()]))?;
        if let Some(dhead) = dhead.as_deref_mut() {
            let dz = logits.cast(head.dtype())?;
            linear_backward_weight(dhead, &dz, &xs, &samples)?;
            let d = linear_backward_input(&[&dz], &[head])?;
            dx[block.start * width..block.end * width].copy_from_slice(d.data()?);
        }
    }
    add_loss(rows, &values, loss);
    let shape = if dhead.is_some() { x.shape() } else { &[0] };
    Ok((values, Tensor::new(x.device(), shape, dx)?))
}

/// Logits in memory at a time, unless 256 rows have more.
const LOGITS: usize = 1 << 22;

/// Rows that are taken together: whole samples up to `most` rows, or 256 rows of a sample and
/// multiples, so that no chunk of a sum over rows is cut.
fn blocks(samples: &Samples, most: usize) -> Vec<(Range<usize>, Samples)> {
    let most = most.div_ceil(256) * 256;
    let mut blocks: Vec<(Range<usize>, Vec<usize>)> = Vec::new();
    for sample in samples.ranges() {
        for start in sample.clone().step_by(most) {
            let piece = start..sample.end.min(start + most);
            match blocks.last_mut() {
                Some((rows, lengths)) if rows.len() + piece.len() <= most => {
                    rows.end = piece.end;
                    lengths.push(piece.len());
                }
                _ => blocks.push((piece.clone(), vec![piece.len()])),
            }
        }
    }
    blocks.into_iter().map(|(rows, lengths)| (rows, Samples::of_lengths(lengths))).collect()
}

/// Fills in the values of the rows of `block`; their logits become `dz`, in place.
fn turn_into_gradients(
    logits: &mut Tensor,
    rows: &LossRows<'_>,
    (block, values): (&Range<usize>, &mut [Option<LogProb>]),
) -> Result<()> {
    let (device, v) = (logits.device().clone(), logits.width());
    let per_part = (GRAIN / v).max(1);
    let work = |i: usize, z: &mut [f32], values: &mut [Option<LogProb>]| {
        let mut parts = Vec::new();
        for (j, (z, value)) in z.chunks_exact_mut(v).zip(values).enumerate() {
            match rows.targets[block.start + i * per_part + j] {
                Some(target) => *value = Some(row(&device, z, &target, (rows.temperature, &mut parts))),
                None => z.fill(0.0),
            }
        }
    };
    let z = logits.data_mut::<f32>()?;
    match device.fast() {
        Some(cpu) => {
            let all = Disjoint::new(&mut *values);
            cpu.pool.parts(z, per_part * v, |i, z| {
                // SAFETY: the rows of this part of `z`, and parts do not meet.
                work(i, z, unsafe { all.slice(i * per_part..i * per_part + z.len() / v) });
            });
        }
        None => z
            .chunks_mut(per_part * v)
            .zip(values.chunks_mut(per_part))
            .enumerate()
            .for_each(|(i, (z, x))| work(i, z, x)),
    }
    let bad = values.iter().position(|x| x.is_some_and(|x| !x.lse.is_finite()));
    match bad {
        Some(at) => Err(Error::NotFinite { what: "logits".into(), row: block.start + at }),
        None => Ok(()),
    }
}

/// The values of one row of logits, which become its `dz`.
fn row(device: &Device, z: &mut [f32], target: &Target, (t, parts): (f32, &mut Vec<[f32; 2]>)) -> LogProb {
    if t != 1.0 {
        z.iter_mut().for_each(|z| *z /= t);
    }
    let id = target.id as usize;
    let value = of_row(device, z, id, parts);
    let factors = [target.weight, target.bonus, t];
    match device.fast() {
        Some(cpu) => {
            let LogProb { lse, entropy, .. } = value;
            dispatch(cpu.simd, softmax::Gradient { z, target: id, lse, entropy, factors });
        }
        None => {
            let r = RowLoss { lse: value.lse, log_prob: value.log_prob, entropy: value.entropy };
            z.copy_from_slice(&reference::dlogits(z, id, r, factors));
        }
    }
    value
}

/// `loss = loss + chunk`, each the sum by fma of `w (lse - z_y)` over 256 rows of a sample.
fn add_loss(rows: &LossRows<'_>, values: &[Option<LogProb>], loss: &mut f32) {
    for sample in rows.samples.ranges() {
        for start in sample.clone().step_by(256) {
            let chunk = start..sample.end.min(start + 256);
            *loss += chunk.fold(0f32, |sum, n| match (rows.targets[n], values[n]) {
                (Some(t), Some(v)) => t.weight.mul_add(-v.log_prob, sum),
                _ => sum,
            });
        }
    }
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
