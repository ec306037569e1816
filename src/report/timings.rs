//! Statistics of the times of forward passes.
use serde::Serialize;

/// One forward pass of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Pass {
    /// Time in milliseconds, including sampling.
    pub(crate) ms: f64,
    /// Number of tokens sampled from it.
    pub(crate) tokens: usize,
}

/// The passes of a rollout whose sequences started together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Timings {
    /// Passes until every sequence has its first token.
    pub(crate) prefill: Vec<Pass>,
    /// Later passes.
    pub(crate) decode: Vec<Pass>,
}

/// Summary statistics of samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) n: usize,
}

impl Timings {
    /// Time until every sequence has its first token: the sum of the prefill times.
    pub(crate) fn time_to_first_token_ms(&self) -> f64 {
        self.prefill.iter().map(|pass| pass.ms).sum()
    }

    /// Tokens of the decode passes divided by the sum of their times; (n - 1) / sum for one sequence. `None`: there
    /// are no decode passes.
    pub(crate) fn decode_tokens_per_second(&self) -> Option<f64> {
        let tokens: usize = self.decode.iter().map(|pass| pass.tokens).sum();
        let ms: f64 = self.decode.iter().map(|pass| pass.ms).sum();
        (ms > 0.0).then(|| tokens as f64 / ms * 1e3)
    }

    /// Sum of all times.
    pub(crate) fn total_ms(&self) -> f64 {
        self.prefill.iter().chain(&self.decode).map(|pass| pass.ms).sum()
    }

    /// Increase of the time from one decode pass to the next in microseconds: the slope of a least-squares line.
    /// `None`: fewer than two decode passes.
    pub(crate) fn slope_us(&self) -> Option<f64> {
        let n = self.decode.len();
        if n < 2 {
            return None;
        }
        let middle = (n - 1) as f64 / 2.0;
        let mean = self.decode.iter().map(|pass| pass.ms).sum::<f64>() / n as f64;
        let (mut cross, mut square) = (0.0, 0.0);
        for (at, pass) in self.decode.iter().enumerate() {
            let x = at as f64 - middle;
            cross += x * (pass.ms - mean);
            square += x * x;
        }
        Some(cross / square * 1e3)
    }
}

impl Spread {
    /// The statistics of `samples`. `None`: there are no samples. The quantile q is the sorted sample at position
    /// ceil(q n); the median of an even number of samples is the mean of the middle two.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut all: Vec<f64> = samples.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let n = all.len();
        let (&min, &max) = (all.first()?, all.last()?);
        let p50 = (all[(n - 1) / 2] + all[n / 2]) / 2.0;
        let p95 = all[(n * 95).div_ceil(100) - 1];
        Some(Spread { min, max, mean: all.iter().sum::<f64>() / n as f64, p50, p95, n })
    }

    /// The statistics of the times of `passes`.
    pub(crate) fn of_passes(passes: &[Pass]) -> Option<Spread> {
        Spread::of(passes.iter().map(|pass| pass.ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(ms: f64, tokens: usize) -> Pass {
        Pass { ms, tokens }
    }

    #[test]
    fn time_to_first_token_is_the_prefill_and_the_rate_is_of_the_other_tokens() {
        let prefill = vec![pass(30.0, 0), pass(10.0, 1)];
        let one = Timings { prefill: prefill.clone(), decode: vec![pass(4.0, 1), pass(6.0, 1)] };
        assert_eq!(one.time_to_first_token_ms(), 40.0);
        assert_eq!(one.decode_tokens_per_second(), Some(200.0), "(3 - 1) / 10 ms");
        assert_eq!(one.total_ms(), 50.0);
        let batch = Timings { prefill, decode: vec![pass(5.0, 8), pass(5.0, 6)] };
        assert_eq!(batch.decode_tokens_per_second(), Some(1400.0));
        assert_eq!(Timings::default().decode_tokens_per_second(), None);
    }

    #[test]
    fn the_slope_is_that_of_a_least_squares_line() {
        let line = |n: usize| (0..n).map(|at| pass(2.0 + 0.5 * at as f64, 1)).collect();
        let timings = Timings { prefill: vec![], decode: line(5) };
        assert_eq!(timings.slope_us(), Some(500.0));
        let flat = Timings { prefill: vec![], decode: vec![pass(3.0, 1); 4] };
        assert_eq!(flat.slope_us(), Some(0.0));
        assert_eq!(Timings { prefill: vec![], decode: line(1) }.slope_us(), None);
    }

    #[test]
    fn quantiles_are_samples_and_the_median_is_in_the_middle() {
        let spread = Spread::of([5.0, 1.0, 2.0, 4.0]).unwrap();
        assert_eq!((spread.min, spread.max, spread.mean), (1.0, 5.0, 3.0));
        assert_eq!((spread.p50, spread.p95, spread.n), (3.0, 5.0, 4));
        let hundred = Spread::of((1..=100).map(f64::from)).unwrap();
        assert_eq!((hundred.p50, hundred.p95), (50.5, 95.0));
        let one = Spread::of([7.0]).unwrap();
        assert_eq!((one.min, one.p50, one.p95, one.max), (7.0, 7.0, 7.0, 7.0));
        assert_eq!(Spread::of([]), None);
    }
}
