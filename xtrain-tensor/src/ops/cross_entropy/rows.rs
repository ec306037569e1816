//! What is done with each row of logits.
use super::super::LogProb;
use super::super::log_prob::{GRAIN, of_row};
use super::{LossRows, Target};
use crate::cpu::lanes::dispatch;
use crate::cpu::{Disjoint, softmax};
use crate::reference::{self, RowLoss};
use crate::{Device, Error, Result, Tensor};

/// What a row has been found to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) value: LogProb,
    /// The last logit that the row keeps, in the order (falling, index rising): its value and its index.
    cut: Option<(f32, usize)>,
}

/// What becomes of logits whose row is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing of use.
    Nothing,
    /// Their gradients, in place.
    Gradient,
}

/// Rows of logits from the row `first` of a loss on; their columns begin at `column`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) loss: &'a LossRows<'a>,
    pub(super) first: usize,
    pub(super) column: usize,
    pub(super) then: Then,
}

impl Rows<'_> {
    /// Fills in what is not `known` of rows that have a target, which takes all of their columns; then does
    /// with `logits` what is to be done. Those of a row without a target become zeros.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for the first row whose `lse` is not finite.
    pub(super) fn walk(&self, logits: &mut Tensor, known: &mut [Option<Known>]) -> Result<()> {
        let (device, v) = (logits.device().clone(), logits.width());
        let per_part = (GRAIN / v).max(1);
        let work = |i: usize, z: &mut [f32], known: &mut [Option<Known>]| {
            let mut scratch = Scratch::default();
            for (j, (z, known)) in z.chunks_exact_mut(v).zip(known).enumerate() {
                match &self.loss.targets[self.first + i * per_part + j] {
                    Some(target) => self.row(&device, z, (target, known), &mut scratch),
                    None => z.fill(0.0),
                }
            }
        };
        let z = logits.data_mut::<f32>()?;
        match device.fast() {
            Some(cpu) => {
                let all = Disjoint::new(&mut *known);
                cpu.pool.parts(z, per_part * v, |i, z| {
                    // SAFETY: the rows of this part of `z`, and parts do not meet.
                    work(i, z, unsafe { all.slice(i * per_part..i * per_part + z.len() / v) });
                });
            }
            None => z
                .chunks_mut(per_part * v)
                .zip(known.chunks_mut(per_part))
                .enumerate()
                .for_each(|(i, (z, x))| work(i, z, x)),
        }
        match known.iter().position(|k| k.is_some_and(|k| !k.value.lse.is_finite())) {
            Some(at) => Err(Error::NotFinite { what: "logits".into(), row: self.first + at }),
            None => Ok(()),
        }
    }

    fn row(
        &self,
        device: &Device,
        z: &mut [f32],
        (target, known): (&Target, &mut Option<Known>),
        scratch: &mut Scratch,
    ) {
        let t = self.loss.temperature;
        if t != 1.0 {
            z.iter_mut().for_each(|z| *z /= t);
        }
        let id = (target.id as usize).checked_sub(self.column).filter(|&id| id < z.len());
        let cut = match known {
            Some(known) => known.cut,
            None => self.loss.top_k.and_then(|k| last_kept(z, k, &mut scratch.order)),
        };
        if let Some(cut) = cut {
            remove_after(z, cut, (self.column, id));
        }
        let Known { value, .. } = *known.get_or_insert_with(|| {
            let id = id.expect("a row is made known from all of its columns");
            Known { value: of_row(device, z, id, &mut scratch.parts), cut }
        });
        if self.then == Then::Gradient {
            gradient(device, z, id, (value, [target.weight, target.bonus, t]));
        }
    }
}

/// Lists that are used again for each row.
#[derive(Default)]
struct Scratch {
    parts: Vec<[f32; 2]>,
    order: Vec<u32>,
}

/// The `k`-th of the logits, the largest first and of equal ones the first; none where all are kept.
fn last_kept(z: &[f32], k: usize, order: &mut Vec<u32>) -> Option<(f32, usize)> {
    if k >= z.len() {
        return None;
    }
    order.clear();
    order.extend(0..z.len() as u32);
    // + 0 makes zeros of both signs equal
    let value = |i: &u32| z[*i as usize] + 0.0;
    let (_, &mut last, _) =
        order.select_nth_unstable_by(k - 1, |a, b| value(b).total_cmp(&value(a)).then(a.cmp(b)));
    Some((z[last as usize], last as usize))
}

/// Logits after the last kept one become -inf, except the target's; `z` begins at column `first`.
fn remove_after(z: &mut [f32], (last, at): (f32, usize), (first, target): (usize, Option<usize>)) {
    for (i, z) in z.iter_mut().enumerate() {
        let kept = *z > last || *z == last && first + i <= at || z.is_nan();
        if !kept && Some(i) != target {
            *z = f32::NEG_INFINITY;
        }
    }
}

/// Logits become their gradients.
fn gradient(device: &Device, z: &mut [f32], target: Option<usize>, (value, factors): (LogProb, [f32; 3])) {
    let (LogProb { lse, log_prob, entropy }, [weight, bonus, temperature]) = (value, factors);
    match device.fast() {
        Some(cpu) => {
            dispatch(cpu.simd, softmax::Gradient { z, target, lse, entropy, weight, bonus, temperature });
        }
        None => {
            let row = RowLoss { lse, log_prob, entropy };
            z.copy_from_slice(&reference::dlogits(z, target, row, weight, bonus, temperature));
        }
    }
}
