//! Learning rates as a function of the step, in f64.
use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use xtrain_tensor::math;

/// The shape of a schedule after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// The peak throughout.
    Constant,
    /// Straight from the peak to the minimum at the last step.
    Linear,
    /// Half a cosine from the peak to the minimum (Loshchilov & Hutter 2017, arXiv:1608.03983).
    Cosine,
    /// Warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): the peak, then straight to the
    /// minimum over the last `fall` steps.
    Wsd,
    /// As [`Decay::Wsd`], but half a cosine over those steps (transformers' `warmup_stable_decay`).
    WsdCosine,
    /// As [`Decay::Wsd`], but down by the root of the share that is done (Hägele et al. 2024, arXiv:2405.18392).
    WsdSqrt,
}

/// A learning rate for each step: linear warm-up from `initial` to `peak` over `warmup` steps, then `decay`
/// to `min` at step `steps`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The shape after the warm-up.
    pub decay: Decay,
    /// Where the warm-up begins; no step has this rate.
    pub warmup_start_lr: f64,
    /// The highest rate.
    pub lr: f64,
    /// The rate at the end.
    pub min_lr: f64,
    /// Steps of warm-up.
    pub warmup_steps: u64,
    /// Steps in all.
    pub steps: u64,
    /// Last steps over which [`Decay::Wsd`] and its kin fall.
    pub decay_steps: u64,
}

impl Schedule {
    /// The rate of step `step`, counted from 0. The first step of a warm-up is one of
    /// `warmup` equal steps above `initial`, the last has the peak.
    ///
    /// `peak * (share * (1 - r) + r)` with r the least rate over the peak, in the order in which transformers
    /// writes it: `initial` and (step + 1) / warmup in the warm-up; then `min` and what is left of the fall.
    pub fn rate(&self, step: u64) -> f64 {
        let Schedule {
            decay,
            warmup_start_lr: initial,
            lr: peak,
            min_lr: min,
            warmup_steps: warmup,
            steps,
            decay_steps: fall,
        } = *self;
        let (share, least) = if step < warmup {
            ((step + 1) as f64 / warmup as f64, initial)
        } else {
            let start = match decay {
                Decay::Wsd | Decay::WsdCosine | Decay::WsdSqrt => warmup.max(steps.saturating_sub(fall)),
                _ => warmup,
            };
            let whole = steps.saturating_sub(start).max(1);
            (decay.left(step.saturating_sub(start).min(whole), whole), min)
        };
        let least = if least == 0.0 { 0.0 } else { least / peak };
        peak * (share * (1.0 - least) + least)
    }
}

impl Decay {
    /// What is left of the way from the peak to the minimum after `done` of the `whole` steps of the fall.
    fn left(self, done: u64, whole: u64) -> f64 {
        let part = done as f64 / whole as f64;
        match self {
            Decay::Constant => 1.0,
            Decay::Linear => (whole - done) as f64 / whole as f64,
            Decay::Wsd => 1.0 - part,
            Decay::WsdSqrt => 1.0 - part.sqrt(),
            Decay::Cosine | Decay::WsdCosine => 0.5 * (1.0 + math::cos(PI * part)),
        }
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Decay::Constant => "constant",
            Decay::Linear => "linear",
            Decay::Cosine => "cosine",
            Decay::Wsd => "wsd",
            Decay::WsdCosine => "wsd-cosine",
            Decay::WsdSqrt => "wsd-sqrt",
        })
    }
}

impl FromStr for Decay {
    type Err = String;

    fn from_str(s: &str) -> Result<Decay, String> {
        let all =
            [Decay::Constant, Decay::Linear, Decay::Cosine, Decay::Wsd, Decay::WsdCosine, Decay::WsdSqrt];
        all.into_iter().find(|d| d.to_string() == s).ok_or_else(|| {
            let known = all.map(|d| d.to_string()).join(", ");
            format!("unknown schedule {s:?}: expected one of {known}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_starts_at_the_peak_and_ends_at_the_minimum() {
        for decay in [Decay::Linear, Decay::Cosine, Decay::Wsd, Decay::WsdCosine, Decay::WsdSqrt] {
            let s = Schedule {
                decay,
                warmup_start_lr: 0.0,
                lr: 3e-3,
                min_lr: 3e-4,
                warmup_steps: 5,
                steps: 100,
                decay_steps: 20,
            };
            assert_eq!(s.rate(0), 3e-3 * (1.0 / 5.0));
            assert_eq!(s.rate(4), 3e-3);
            assert_eq!(s.rate(5), 3e-3, "{decay}");
            assert!((s.rate(100) - 3e-4).abs() < 1e-18, "{decay}");
            assert!((5..100).all(|i| s.rate(i) >= s.rate(i + 1)), "{decay}");
            assert_eq!(decay.to_string().parse(), Ok(decay));
        }
    }

    #[test]
    fn the_falls_differ_by_their_middle() {
        let at_a_quarter = |decay| {
            let s = Schedule {
                decay,
                warmup_start_lr: 0.0,
                lr: 1.0,
                min_lr: 0.0,
                warmup_steps: 5,
                steps: 100,
                decay_steps: 20,
            };
            assert_eq!((s.rate(80), s.rate(79), s.rate(100)), (1.0, 1.0, 0.0), "{decay}");
            s.rate(85)
        };
        assert_eq!((at_a_quarter(Decay::Wsd), at_a_quarter(Decay::WsdSqrt)), (0.75, 0.5));
        let cosine = f64::from_bits(0x3fe6a09e667f3bcd); // of a quarter of pi
        assert_eq!(at_a_quarter(Decay::WsdCosine), 0.5 * (1.0 + cosine));
    }

    #[test]
    fn a_warm_up_begins_where_it_is_told_to() {
        let decay = Decay::Constant;
        let s = Schedule {
            decay,
            warmup_start_lr: 0.5,
            lr: 1.5,
            min_lr: 0.0,
            warmup_steps: 4,
            steps: 9,
            decay_steps: 0,
        };
        assert_eq!([0, 1, 2, 3, 4].map(|i| s.rate(i)), [0.75, 1.0, 1.25, 1.5, 1.5]);
    }
}
