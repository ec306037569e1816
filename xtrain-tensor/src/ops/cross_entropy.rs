//! The weighted negative log-probability of targets, fused with the head's product.
use std::ops::Range;

use super::{LogProb, Samples, Weight, linear, shapes};
use crate::cpu::gemm::Beta;
use crate::{Device, Dtype, Error, Result, Stored, Tensor, faults, gpu};

pub(crate) mod blocks;
mod rows;

use rows::{Known, Rows, Then};

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
    /// A row keeps so many of its largest logits, of equal ones the first, and its target; the others
    /// count as -inf. None: it keeps all.
    pub top_k: Option<usize>,
}

/// Adds `rowsum w (lse - z_y)` to `loss` and returns each row's log-probability and entropy, where it
/// has a target. `z = (x headᵀ) / temperature`; `x [N, C]` in the dtype of `head [V, C]`.
///
/// The logits of all rows together are never in memory: 16 MiB of them are, or one row. Order: *dot*,
/// `lse` and *rowsum* of docs/numerics.md.
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
    if dhead.shape() != [head.out_features(), head.in_features()] {
        let got = vec![dhead.shape().to_vec(), vec![head.out_features(), head.in_features()]];
        return Err(Error::Shape { op: "cross_entropy", want: "dhead as the head", got });
    }
    run(x, head, rows, loss, Some(dhead))
}

/// Logits in memory at a time: 16 MiB of them.
const LOGITS: usize = 1 << 22;

fn run(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    loss: &mut f32,
    dhead: Option<&mut Tensor>,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    check(x, head, rows)?;
    if let Device::Gpu(gpu) = x.device() {
        let (values, dx) = gpu::loss(gpu, (x, head), rows, dhead)?;
        add_loss(rows, &values, loss);
        return Ok((values, dx));
    }
    let walk = Walk { x, head, rows, most: LOGITS };
    let (known, dx) = match dhead {
        None => (walk.values()?, Tensor::zeros(x.device(), &[0], Dtype::F32)?),
        Some(dhead) => walk.gradients(dhead)?,
    };
    let values: Vec<_> = known.into_iter().map(|k| k.map(|k| k.value)).collect();
    add_loss(rows, &values, loss);
    Ok((values, dx))
}

/// What the logits of a loss are made of, and how many of them may be there at a time.
#[derive(Clone, Copy)]
struct Walk<'a> {
    x: &'a Tensor,
    head: &'a Weight,
    rows: &'a LossRows<'a>,
    most: usize,
}

impl Walk<'_> {
    /// What each row with a target gives, a few rows of the whole vocabulary at a time.
    fn values(&self) -> Result<Vec<Option<Known>>> {
        let n = self.x.shape()[0];
        let mut known = vec![None; n];
        let step = (self.most / self.head.out_features()).max(1);
        for start in (0..n).step_by(step) {
            let block = start..n.min(start + step);
            let mut z = linear::outputs(&part(self.x, &block)?, self.head, 0..self.head.out_features())?;
            let these = Rows { loss: self.rows, first: start, column: 0, then: Then::Nothing };
            these.walk(&mut z, &mut known[block])?;
        }
        Ok(known)
    }

    /// The values of the rows and `dx`; the head's gradient is added into `dhead`.
    ///
    /// Where 256 rows of logits fit, each block of rows is one product with the whole head, and its
    /// logits become the gradient in place. Otherwise the vocabulary is taken in chunks, whose logits
    /// are computed a second time: a chunk's columns are a slice of `dhead`, and `dx` runs on from one
    /// chunk to the next, since each but the last is a multiple of 256.
    fn gradients(&self, dhead: &mut Tensor) -> Result<(Vec<Option<Known>>, Tensor)> {
        let (width, out) = (self.head.in_features(), self.head.out_features());
        let whole = 256 * out <= self.most;
        let mut known = if whole { vec![None; self.x.shape()[0]] } else { self.values()? };
        let mut dx = self.x.device().as_cpu()?.recycler.acquire::<f32>(self.x.len());
        let dhead = dhead.data_mut::<f32>()?;
        for (block, samples) in blocks::of_rows(self.rows.samples, self.most, out) {
            let xs = part(self.x, &block)?;
            let dx = &mut dx[block.start * width..block.end * width];
            for columns in blocks::of_columns(out, if whole { out } else { self.most / block.len() }) {
                let mut z = linear::outputs(&xs, self.head, columns.clone())?;
                let then = Then::Gradient;
                let these = Rows { loss: self.rows, first: block.start, column: columns.start, then };
                these.walk(&mut z, &mut known[block.clone()])?;
                let dz = z.cast(self.head.dtype())?;
                let slice = &mut dhead[columns.start * width..columns.end * width];
                linear::weight_part(slice, &dz, &xs, &samples)?;
                add_input(dx, &dz, (self.head, columns))?;
            }
        }
        Ok((known, Tensor::new(self.x.device(), self.x.shape(), dx)?))
    }
}

/// `dx` goes on with the outputs `columns`; the first ones begin it.
fn add_input(dx: &mut [f32], dz: &Tensor, (head, columns): (&Weight, Range<usize>)) -> Result<()> {
    if columns.start == 0 {
        return linear::input_part(dx, dz, (head, columns), Beta::Zero);
    }
    if faults::on(crate::faults::Fault::VocabularyChunkStartsAnew) {
        let mut total = vec![0.0; dx.len()];
        linear::input_part(&mut total, dz, (head, columns), Beta::Zero)?;
        dx.iter_mut().zip(total).for_each(|(dx, total)| *dx += total);
        return Ok(());
    }
    linear::input_part(dx, dz, (head, columns), Beta::One)
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
        let (c, values) = (x.width(), x.data::<T>()?);
        let mut rows = x.device().as_cpu()?.recycler.acquire(range.len() * c);
        rows.copy_from_slice(&values[range.start * c..range.end * c]);
        Tensor::new(x.device(), &[range.len(), c], rows)
    }
    if range.len() == x.shape()[0] {
        return Ok(x.clone());
    }
    match x.dtype() {
        Dtype::BF16 => of::<half::bf16>(x, range),
        _ => of::<f32>(x, range),
    }
}

fn check(x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<()> {
    const OP: &str = "cross_entropy";
    if x.shape().len() != 2 || x.width() != head.in_features() || x.shape()[0] != rows.targets.len() {
        let mut got = shapes(&[x]);
        got.extend([vec![head.out_features(), head.in_features()], vec![rows.targets.len()]]);
        return Err(Error::Shape { op: OP, want: "x [N, C], head [V, C], N targets", got });
    }
    if !(rows.temperature > 0.0 && rows.temperature.is_finite()) {
        let got = rows.temperature.to_string();
        return Err(Error::Argument { op: OP, want: "a positive temperature", got });
    }
    if rows.top_k == Some(0) {
        return Err(Error::Argument { op: OP, want: "a top-k of at least 1", got: "0".into() });
    }
    rows.samples.check(OP, rows.targets.len())?;
    let outside = |t: &Option<Target>| t.is_some_and(|t| t.id as usize >= head.out_features());
    match rows.targets.iter().position(outside) {
        Some(at) => {
            let got = rows.targets[at].map_or(0, |t| u64::from(t.id));
            Err(Error::Index { op: OP, what: "target", at, got, bound: head.out_features() as u64 })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
