//! Cross-entropy of weighted targets, fused with the LM head.
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::faults::{self, Fault};
use crate::math::fma;
use crate::operands::{LogProb, LossRows, LossValues, Target, Weight};
use crate::tensor::Tensor;

/// Adds `rowsum w (lse - z_y)` to `loss` and returns the log-probability and entropy of each row with a target.
/// `z = (x headᵀ) / temperature`, -inf where a filter removes a token other than the target; `x [N, C]` in the dtype
/// of `head [V, C]`.
///
/// The SIMD CPU holds at most [`max_loss_logits`](crate::max_loss_logits) logits in memory; a GPU at most 512 MiB of
/// them. Order: *dot*, `lse` and *rowsum* of docs/numerics.md.
///
/// # Errors
/// [`Error::Shape`], [`Error::Dtype`] or [`Error::Index`] if operands do not match; [`Error::Argument`] for a
/// temperature or a filter outside its range, or top-p over more than 2^19 logits; [`Error::NotFinite`] for a row
/// whose `lse` is not finite.
pub fn cross_entropy(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    loss: &mut f32,
) -> Result<Vec<Option<LogProb>>> {
    check(x, head, rows)?;
    let values = backend(x.device()).cross_entropy(x, head, rows)?;
    add_loss(rows, &values, loss);
    Ok(values)
}

/// [`cross_entropy`], and the kept set of each row with a target: the tokens that the filters keep, or the set that
/// `rows` gives. `None`: the row has no target, or no filter is set. A set takes at most `4 ceil(V / 32)` bytes.
///
/// # Errors
/// As [`cross_entropy`].
pub fn cross_entropy_kept(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    loss: &mut f32,
) -> Result<LossValues> {
    check(x, head, rows)?;
    let values = backend(x.device()).cross_entropy_kept(x, head, rows)?;
    if !faults::on(Fault::LossOfKeptSetsNotAdded) {
        add_loss(rows, &values.log_probs, loss);
    }
    Ok(values)
}

/// [`cross_entropy`], and its gradient with respect to `x`, `[N, C]` f32. Adds the gradient with respect to the head
/// to `dhead [V, C]`.
///
/// # Errors
/// As [`cross_entropy`]; [`Error::Shape`] unless `dhead` has the head's shape.
pub fn cross_entropy_backward(
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    loss: &mut f32,
    dhead: &mut Tensor,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    if dhead.shape() != [head.out_features(), head.in_features()] {
        let got = vec![dhead.shape().to_vec(), vec![head.out_features(), head.in_features()]];
        return Err(Error::Shape { op: "cross_entropy", want: "dhead as the head", got });
    }
    check(x, head, rows)?;
    let (values, dx) = backend(x.device()).cross_entropy_backward(x, head, rows, dhead)?;
    add_loss(rows, &values, loss);
    Ok((values, dx))
}

/// `loss = loss + chunk`, where a chunk is the sum by fma of `w (lse - z_y)` over 256 rows of a sample.
fn add_loss(rows: &LossRows<'_>, values: &[Option<LogProb>], loss: &mut f32) {
    for sample in rows.samples.ranges() {
        for start in sample.clone().step_by(256) {
            let chunk = start..sample.end.min(start + 256);
            *loss += chunk.fold(0f32, |sum, n| match (rows.targets[n], values[n]) {
                (Some(t), Some(v)) => fma(t.weight, -v.log_prob, sum),
                _ => sum,
            });
        }
    }
}

/// Maximum number of logits of a row with top-p: the sum of their integer weights fits in 64 bits.
const MAX_TOP_P_VOCAB: usize = 1 << 19;

fn check(x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<()> {
    const OP: &str = "cross_entropy";
    if x.shape().len() != 2 || x.width() != head.in_features() || x.shape()[0] != rows.targets.len() {
        let mut got = vec![x.shape().to_vec()];
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
    if !(rows.top_p > 0.0 && rows.top_p <= 1.0) {
        let got = rows.top_p.to_string();
        return Err(Error::Argument { op: OP, want: "a top-p in (0, 1]", got });
    }
    if !(0.0..=1.0).contains(&rows.min_p) {
        let got = rows.min_p.to_string();
        return Err(Error::Argument { op: OP, want: "a min-p in [0, 1]", got });
    }
    if rows.top_p < 1.0 && head.out_features() > MAX_TOP_P_VOCAB {
        let got = head.out_features().to_string();
        return Err(Error::Argument { op: OP, want: "at most 524288 logits per row with top-p", got });
    }
    if !rows.kept.is_empty() && rows.kept.len() != rows.targets.len() {
        let got = format!("{} for {} rows", rows.kept.len(), rows.targets.len());
        return Err(Error::Argument { op: OP, want: "no kept sets or one entry per row", got });
    }
    if let Some(set) = rows.kept.iter().flatten().find(|set| set.vocab() != head.out_features()) {
        let got = format!("{} for {} logits", set.vocab(), head.out_features());
        return Err(Error::Argument { op: OP, want: "kept sets of the vocabulary of the head", got });
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
