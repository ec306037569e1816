//! The loss over blocks of rows and chunks of the vocabulary: the logits of all rows are never in memory at the same
//! time.
use std::ops::Range;

use half::bf16;

use super::gemm::Beta;
use super::{Cpu, linear};
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::operands::loss::blocks;
use crate::operands::{KeptSet, LogProb, LossRows, LossValues, Weight};
use crate::tensor::{Stored, Tensor};

mod cutoff;
mod rows;

use rows::{Action, GRAIN, RowState, Rows, of_row};

fn max_logits(head: &Weight) -> usize {
    blocks::max_loss_logits(head.out_features(), head.in_features())
}

/// The values of each row with a target.
pub(super) fn values(
    cpu: &Cpu,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
) -> Result<Vec<Option<LogProb>>> {
    Ok(values_of(LossPass { cpu, x, head, rows, max_logits: max_logits(head) }.values(|_, _, _| {})?))
}

/// The values of each row with a target, and its kept set. `None`: all tokens are kept.
pub(super) fn values_and_kept(
    cpu: &Cpu,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
) -> Result<LossValues> {
    let mut kept = vec![None; rows.targets.len()];
    let known = LossPass { cpu, x, head, rows, max_logits: max_logits(head) }.values(|n, z, known| {
        let computed = || known.cut.map(|cut| KeptSet::of(z.len(), |i| cut.keeps(z[i], i)));
        kept[n] = rows.kept_set(n).cloned().or_else(computed);
    })?;
    Ok(LossValues { log_probs: values_of(known), kept })
}

/// The values of each row with a target, and `dx`. Adds the head's gradient to `dhead`.
pub(super) fn gradients(
    cpu: &Cpu,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    dhead: &mut Tensor,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    let (known, dx) = LossPass { cpu, x, head, rows, max_logits: max_logits(head) }.gradients(dhead)?;
    Ok((values_of(known), dx))
}

/// The values of each row of `z [N, V]`.
pub(super) fn log_prob(cpu: &Cpu, z: &[f32], target: &[u32]) -> Result<Vec<LogProb>> {
    let v = z.len() / target.len().max(1);
    let mut values = vec![LogProb::default(); target.len()];
    let per_part = (GRAIN / v.max(1)).max(1);
    cpu.pool.parts(&mut values, per_part, |i, values| {
        for (n, value) in (i * per_part..).zip(values) {
            *value = of_row(cpu, &z[n * v..][..v], target[n] as usize);
        }
    });
    Ok(values)
}

fn values_of(known: Vec<Option<RowState>>) -> Vec<Option<LogProb>> {
    known.into_iter().map(|k| k.map(|k| k.value)).collect()
}

/// The operands of a loss, and the maximum number of logits in memory.
#[derive(Clone, Copy)]
struct LossPass<'a> {
    cpu: &'a Cpu,
    x: &'a Tensor,
    head: &'a Weight,
    rows: &'a LossRows<'a>,
    max_logits: usize,
}

impl LossPass<'_> {
    /// The values of each row with a target, from blocks of rows over the whole vocabulary. Calls `visit` for each
    /// such row, in order, with its logits after the removal.
    fn values(&self, mut visit: impl FnMut(usize, &[f32], &RowState)) -> Result<Vec<Option<RowState>>> {
        let n = self.x.shape()[0];
        let mut known = vec![None; n];
        let step = (self.max_logits / self.head.out_features()).max(1);
        for start in (0..n).step_by(step) {
            let block = start..n.min(start + step);
            let mut z = linear::outputs(
                self.cpu,
                &part(self.cpu, self.x, &block)?,
                self.head,
                0..self.head.out_features(),
            )?;
            let rows = Rows { cpu: self.cpu, loss: self.rows, first: start, column: 0, action: Action::None };
            rows.process(&mut z, &mut known[block.clone()])?;
            let z = z.data::<f32>()?.chunks_exact(self.head.out_features());
            let first = if faults::on(Fault::RowsVisitedByBlock) { block.start } else { 0 };
            for (n, z) in block.zip(z) {
                known[n].iter().for_each(|known| visit(n - first, z, known));
            }
        }
        Ok(known)
    }

    /// Returns the values of the rows and `dx`. Adds the head's gradient to `dhead`.
    ///
    /// If 256 rows of logits fit, each block of rows is one product with the whole head, and its logits become the
    /// gradient in place. Otherwise the vocabulary is split into chunks, whose logits are computed a second time. The
    /// gradient of a chunk is a slice of `dhead`. `dx` continues from one chunk to the next, because each chunk but
    /// the last has a multiple of 256 columns.
    fn gradients(&self, dhead: &mut Tensor) -> Result<(Vec<Option<RowState>>, Tensor)> {
        let (width, out) = (self.head.in_features(), self.head.out_features());
        let whole = 256 * out <= self.max_logits;
        let mut known = if whole { vec![None; self.x.shape()[0]] } else { self.values(|_, _, _| {})? };
        let mut dx = self.cpu.recycler.acquire::<f32>(self.x.len());
        let dhead = dhead.data_mut::<f32>()?;
        for (block, samples) in blocks::of_rows(self.rows.samples, self.max_logits, out) {
            let xs = part(self.cpu, self.x, &block)?;
            let dx = &mut dx[block.start * width..block.end * width];
            for columns in blocks::of_columns(out, if whole { out } else { self.max_logits / block.len() }) {
                let mut z = linear::outputs(self.cpu, &xs, self.head, columns.clone())?;
                let action = Action::Gradient;
                let rows = Rows {
                    cpu: self.cpu,
                    loss: self.rows,
                    first: block.start,
                    column: columns.start,
                    action,
                };
                rows.process(&mut z, &mut known[block.clone()])?;
                let dz = match self.head.dtype() {
                    Dtype::BF16 => self.cpu.cast(&z, Dtype::BF16)?,
                    _ => z,
                };
                let slice = &mut dhead[columns.start * width..columns.end * width];
                linear::weight_part(self.cpu, slice, &dz, &xs, &samples)?;
                add_input(self.cpu, dx, &dz, self.head, columns)?;
            }
        }
        Ok((known, Tensor::new(self.x.device(), self.x.shape(), dx)?))
    }
}

/// Accumulates `dx` over the outputs `columns`; the first columns initialize it.
fn add_input(cpu: &Cpu, dx: &mut [f32], dz: &Tensor, head: &Weight, columns: Range<usize>) -> Result<()> {
    if columns.start == 0 {
        return linear::input_part(cpu, dx, dz, head, columns, Beta::Zero);
    }
    if faults::on(Fault::VocabChunkSubtotal) {
        let mut total = vec![0.0; dx.len()];
        linear::input_part(cpu, &mut total, dz, head, columns, Beta::Zero)?;
        dx.iter_mut().zip(total).for_each(|(dx, total)| *dx += total);
        return Ok(());
    }
    linear::input_part(cpu, dx, dz, head, columns, Beta::One)
}

/// Rows `range` of a matrix.
fn part(cpu: &Cpu, x: &Tensor, range: &Range<usize>) -> Result<Tensor> {
    fn of<T: Stored>(cpu: &Cpu, x: &Tensor, range: &Range<usize>) -> Result<Tensor> {
        let (c, values) = (x.width(), x.data::<T>()?);
        let mut rows = cpu.recycler.acquire(range.len() * c);
        rows.copy_from_slice(&values[range.start * c..range.end * c]);
        Tensor::new(x.device(), &[range.len(), c], rows)
    }
    if range.len() == x.shape()[0] {
        return Ok(x.clone());
    }
    match x.dtype() {
        Dtype::BF16 => of::<bf16>(cpu, x, range),
        _ => of::<f32>(cpu, x, range),
    }
}

#[cfg(test)]
mod tests;
