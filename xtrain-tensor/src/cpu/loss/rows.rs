//! Values and gradients of rows of logits.
use super::cutoff::{Cut, Selection, last_kept};
use crate::cpu::lanes::dispatch;
use crate::cpu::{Cpu, Disjoint, softmax};
use crate::error::{Error, Result};
use crate::faults::{self, Fault};
use crate::operands::{LogProb, LossRows, Target};
use crate::tensor::Tensor;

/// Logits per work item.
pub(super) const GRAIN: usize = 8192;

/// The values of one row `z`.
pub(super) fn of_row(cpu: &Cpu, z: &[f32], target: usize) -> LogProb {
    let lse = dispatch(cpu.simd, softmax::Lse(z));
    let entropy = dispatch(cpu.simd, softmax::Entropy { z, lse });
    LogProb { lse, log_prob: z[target] - lse, entropy, kept: true }
}

/// The values of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowState {
    pub(super) value: LogProb,
    /// The last logit that the filters keep. `None`: all are kept.
    pub(super) cut: Option<Cut>,
}

/// What to compute from the logits in addition to the values of their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    None,
    /// Their gradient, in place.
    Gradient,
}

/// Consecutive rows of logits. The first one is row `first` of the loss; they start at column `column`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) loss: &'a LossRows<'a>,
    pub(super) first: usize,
    pub(super) column: usize,
    pub(super) action: Action,
}

impl Rows<'_> {
    /// Computes the values of rows with a target that are not in `known`, which requires all of their columns, then
    /// runs the action. Logits of a row without a target become zeros.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for the first row whose `lse` is not finite.
    pub(super) fn process(&self, logits: &mut Tensor, known: &mut [Option<RowState>]) -> Result<()> {
        let v = logits.width();
        let per_part = (GRAIN / v).max(1);
        let work = |i: usize, z: &mut [f32], known: &mut [Option<RowState>]| {
            let mut selection = Selection::default();
            for (j, (z, known)) in z.chunks_exact_mut(v).zip(known).enumerate() {
                let n = self.first + i * per_part + j;
                match &self.loss.targets[n] {
                    Some(target) => self.row(n, z, target, known, &mut selection),
                    None => z.fill(0.0),
                }
            }
        };
        let z = logits.data_mut::<f32>()?;
        let all = Disjoint::new(&mut *known);
        self.cpu.pool.parts(z, per_part * v, |i, z| {
            // SAFETY: the rows of this part of `z`; parts are disjoint.
            work(i, z, unsafe { all.slice(i * per_part..i * per_part + z.len() / v) });
        });
        match known.iter().position(|k| k.is_some_and(|k| !k.value.lse.is_finite())) {
            Some(at) => Err(Error::NotFinite { what: "logits".into(), row: self.first + at }),
            None => Ok(()),
        }
    }

    fn row(
        &self,
        n: usize,
        z: &mut [f32],
        target: &Target,
        known: &mut Option<RowState>,
        selection: &mut Selection,
    ) {
        let t = self.loss.temperature;
        if t != 1.0 {
            z.iter_mut().for_each(|z| *z /= t);
        }
        let id = (target.id as usize).checked_sub(self.column).filter(|&id| id < z.len());
        let set = self.loss.kept_set(n);
        let cut = match known {
            Some(known) => known.cut,
            None if set.is_some() => None,
            None => last_kept(self.cpu.simd, z, self.loss, selection),
        };
        if let Some(cut) = cut {
            let first = if faults::on(Fault::LossChunkForgetsFirstColumn) { 0 } else { self.column };
            remove_after(z, cut, first, id);
        }
        if let Some(set) = set {
            set.remove_others(z, self.column, id);
        }
        let RowState { value, .. } = *known.get_or_insert_with(|| {
            let id = id.expect("the values of a row are computed from all of its columns");
            let kept = match set {
                Some(set) => set.contains(target.id),
                None => cut.is_none_or(|cut| cut.keeps(z[id], id)),
            };
            RowState { value: LogProb { kept, ..of_row(self.cpu, z, id) }, cut }
        });
        if self.action == Action::Gradient {
            gradient(self.cpu, z, id, value, [target.weight, target.bonus, t]);
        }
    }
}

/// Sets logits after the last kept one to -inf, except that of the target. `z` starts at column `first`.
fn remove_after(z: &mut [f32], cut: Cut, first: usize, target: Option<usize>) {
    for (i, z) in z.iter_mut().enumerate() {
        let kept = cut.keeps(*z, first + i) || z.is_nan();
        if !kept && Some(i) != target {
            *z = f32::NEG_INFINITY;
        }
    }
}

/// Replaces logits by their gradients.
fn gradient(
    cpu: &Cpu,
    z: &mut [f32],
    target: Option<usize>,
    LogProb { lse, entropy, .. }: LogProb,
    [weight, bonus, temperature]: [f32; 3],
) {
    dispatch(cpu.simd, softmax::Gradient { z, target, lse, entropy, weight, bonus, temperature });
}
