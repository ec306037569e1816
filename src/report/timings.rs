//! What the times of forward passes amount to: pure functions of the samples.
use serde::Serialize;

/// One forward pass of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pass {
    /// What it took, sampling included.
    pub ms: f64,
    /// Tokens that were drawn from it.
    pub tokens: usize,
}

/// The passes of a rollout of `sequences` that began together: those of the prompts, until every
/// sequence has its first token, and those after.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Passes up to the one that gave the last sequence its first token.
    pub prefill: Vec<Pass>,
    /// Passes after that.
    pub decode: Vec<Pass>,
}

/// Samples in five numbers and their count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each is its name")]
pub struct Spread {
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub n: usize,
}

impl Timings {
    /// From the first pass to the first token (of every sequence): the sum of the prefill's times.
    pub fn time_to_first_token_ms(&self) -> f64 {
        self.prefill.iter().map(|pass| pass.ms).sum()
    }

    /// Tokens of the decode passes over the sum of their times; of one sequence (n - 1) / sum. None
    /// without a decode pass.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        let tokens: usize = self.decode.iter().map(|pass| pass.tokens).sum();
        let ms: f64 = self.decode.iter().map(|pass| pass.ms).sum();
        (ms > 0.0).then(|| tokens as f64 / ms * 1e3)
    }

    /// All times added up.
    pub fn total_ms(&self) -> f64 {
        self.prefill.iter().chain(&self.decode).map(|pass| pass.ms).sum()
    }

    /// By how many microseconds a decode pass gets longer from one to the next: the slope of the line
    /// of least squares. None for fewer than two.
    pub fn slope_us(&self) -> Option<f64> {
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
    /// Of `samples`; none of none. A quantile q is the sample at place ceil(q n) of the sorted ones; the
    /// median of an even number is the mean of the two in the middle.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut all: Vec<f64> = samples.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let n = all.len();
        let (&min, &max) = (all.first()?, all.last()?);
        let p50 = (all[(n - 1) / 2] + all[n / 2]) / 2.0;
        let p95 = all[(n * 95).div_ceil(100) - 1];
        Some(Spread { min, max, mean: all.iter().sum::<f64>() / n as f64, p50, p95, n })
    }

    /// Of the times of `passes`.
    pub fn of_passes(passes: &[Pass]) -> Option<Spread> {
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
    fn the_first_token_takes_the_prefill_and_the_rate_is_that_of_the_others() {
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
    fn the_slope_is_that_of_a_line_through_the_times() {
        let line = |n: usize| (0..n).map(|at| pass(2.0 + 0.5 * at as f64, 1)).collect();
        let timings = Timings { prefill: vec![], decode: line(5) };
        assert_eq!(timings.slope_us(), Some(500.0));
        let flat = Timings { prefill: vec![], decode: vec![pass(3.0, 1); 4] };
        assert_eq!(flat.slope_us(), Some(0.0));
        assert_eq!(Timings { prefill: vec![], decode: line(1) }.slope_us(), None);
    }

    #[test]
    fn quantiles_are_samples_and_the_median_lies_in_the_middle() {
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
