//! The requests of a trace: when each arrives, and its lengths.
use clap::ValueEnum;
use serde::Serialize;

use crate::tensor::math::log_f64;
use crate::tensor::rng::{Purpose, draw};

/// How requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    /// One at a time; the times between them are exponentially distributed.
    Poisson,
    /// Several at the same time; the times between bursts are exponentially distributed.
    Bursty,
}

/// The parameters of a trace.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct TraceSpec {
    pub(super) pattern: Pattern,
    /// At most 1,000,000, as `burst`.
    pub(super) requests: usize,
    /// Mean arrivals per second, at least 0.001.
    pub(super) rate: f64,
    /// Requests in a burst.
    pub(super) burst: usize,
    /// Mean prompt tokens, at most 2^24: uniform from half to one and a half of it.
    pub(super) prompt_len: usize,
    /// Mean new tokens: uniform, alike.
    pub(super) max_new: usize,
    /// Share of the requests that have priority 1; that of the others is 0.
    pub(super) high_priority: f64,
    pub(super) seed: u64,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    /// Milliseconds after the start.
    pub(super) at_ms: f64,
    pub(super) prompt_len: usize,
    pub(super) max_new: usize,
    pub(super) priority: i32,
}

impl TraceSpec {
    /// The requests in the order of their arrival: a function of these parameters only.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        let burst = if self.pattern == Pattern::Bursty { self.burst } else { 1 };
        let mut at_ms = 0.0;
        let arrival = |n: usize| {
            let [gap, prompt, new, priority] = draw(self.seed, n as u64, 0, Purpose::DataOrder).map(unit);
            if n.is_multiple_of(burst) {
                at_ms += -log_f64(1.0 - gap) * 1e3 * burst as f64 / self.rate;
            }
            let high = priority < self.high_priority;
            Arrival {
                at_ms,
                prompt_len: length(self.prompt_len, prompt),
                max_new: length(self.max_new, new),
                priority: i32::from(high),
            }
        };
        (0..self.requests).map(arrival).collect()
    }

    /// Positions of the longest possible sequence.
    pub(super) fn longest(&self) -> usize {
        length(self.prompt_len, 1.0) + length(self.max_new, 1.0)
    }
}

/// A number in [0, 1).
fn unit(word: u32) -> f64 {
    f64::from(word) / 4_294_967_296.0
}

/// A length between half and one and a half of `mean`, at least 1.
fn length(mean: usize, unit: f64) -> usize {
    ((mean as f64 * (0.5 + unit)).round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: TraceSpec = TraceSpec {
        pattern: Pattern::Poisson,
        requests: 4000,
        rate: 50.0,
        burst: 8,
        prompt_len: 20,
        max_new: 10,
        high_priority: 0.25,
        seed: 3,
    };

    #[test]
    fn both_patterns_have_the_requested_rate_lengths_and_priorities() {
        for pattern in [Pattern::Poisson, Pattern::Bursty] {
            let spec = TraceSpec { pattern, ..SPEC };
            let all = spec.arrivals();
            assert_eq!(all, spec.arrivals());
            assert!(all.is_sorted_by(|a, b| a.at_ms <= b.at_ms) && all.len() == 4000);
            let mean = |of: &dyn Fn(&Arrival) -> f64| all.iter().map(of).sum::<f64>() / 4000.0;
            let rate = 4000.0 / all[3999].at_ms * 1e3;
            // 500 bursts: the standard deviation of their rate is 1 / sqrt(500) = 4.5 %
            assert!((40.0..60.0).contains(&rate), "{pattern:?}: {rate}");
            assert!((mean(&|a| a.prompt_len as f64) - 20.0).abs() < 0.5);
            assert!((mean(&|a| a.max_new as f64) - 10.0).abs() < 0.3);
            assert!((mean(&|a| f64::from(a.priority)) - 0.25).abs() < 0.03);
            assert!(all.iter().all(|a| a.prompt_len + a.max_new <= spec.longest()));
            let together = all.windows(2).filter(|pair| pair[0].at_ms == pair[1].at_ms).count();
            assert_eq!(together, if pattern == Pattern::Bursty { 3500 } else { 0 });
        }
    }
}
