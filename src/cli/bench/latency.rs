//! Quantiles of latencies.
use serde::Serialize;

/// Quantiles in milliseconds: the quantile q is the sorted sample at position ceil(q n).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
    pub(super) n: usize,
}

impl Latency {
    /// The quantiles of `samples`. `None`: there are no samples.
    pub(super) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Latency> {
        let mut all: Vec<f64> = samples.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let n = all.len();
        let max = *all.last()?;
        let quantile = |percent: usize| all[(n * percent).div_ceil(100) - 1];
        Some(Latency { p50: quantile(50), p95: quantile(95), p99: quantile(99), max, n })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_sample() {
        let of = |n: u32| Latency::of((1..=n).rev().map(f64::from)).unwrap();
        assert_eq!(of(200), Latency { p50: 100.0, p95: 190.0, p99: 198.0, max: 200.0, n: 200 });
        assert_eq!(of(1), Latency { p50: 1.0, p95: 1.0, p99: 1.0, max: 1.0, n: 1 });
        assert_eq!(Latency::of([]), None);
    }
}
