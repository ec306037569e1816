//! Sums, means, standard deviations and quantiles in the order of docs/numerics.md, section 8.
use xtrain_tensor::faults::{self, Fault};

/// The sum from +0, in ascending order.
pub(super) fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |sum, x| sum + x)
}

/// The mean, or `None` of no values. The mean of equal values is that value exactly.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    let &first = values.first()?;
    Some(if has_spread(values) { sum(values.iter().copied()) / values.len() as f64 } else { first })
}

/// The standard deviation with n - 1, or `None` of fewer than two values. That of equal values is 0 exactly.
pub(super) fn std(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    if !has_spread(values) {
        return Some(0.0);
    }
    let n = if faults::on(Fault::RewardStdOfPopulation) { values.len() } else { values.len() - 1 };
    Some((sum(values.iter().map(|x| (x - mean) * (x - mean))) / n as f64).sqrt())
}

/// Whether two of the values differ.
pub(super) fn has_spread(values: &[f64]) -> bool {
    values.iter().any(|x| *x != values[0])
}

/// The quantile at `0 <= q <= 1` with linear interpolation, or `None` of no values. Sorts the values.
pub(super) fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let position = q * last as f64;
    let at = (position as usize).min(last);
    let next = values[(at + 1).min(last)];
    Some(values[at] + (next - values[at]) * (position - at as f64))
}
