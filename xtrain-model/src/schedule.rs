//! Learning rate schedules, computed in f64.
use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::math;

/// The decay of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// No decay.
    Constant,
    /// Linear from `lr` to `min_lr`, which the step after the last one would have: the last of n decay steps has
    /// `min_lr + (lr - min_lr) / n`.
    Linear,
    /// Half a cosine from `lr` to `min_lr` (Loshchilov & Hutter 2017, arXiv:1608.03983).
    Cosine,
    /// Warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): `lr`, then linear to `min_lr` over the last
    /// `decay_steps` steps.
    Wsd,
    /// As [`Decay::Wsd`], with half a cosine over the last steps (transformers' `warmup_stable_decay`).
    WsdCosine,
    /// As [`Decay::Wsd`], with one minus the square root of the completed fraction over the last steps (Hägele et al.
    /// 2024, arXiv:2405.18392).
    WsdSqrt,
}

/// A learning rate for each step: linear warm-up from `warmup_start_lr` to `lr` over `warmup_steps` steps, then
/// `decay` to `min_lr` at step `steps`. Later steps have the rate `min_lr`, unless there is no decay.
///
/// ```
/// use xtrain_model::Schedule;
/// let schedule = Schedule::cosine(1e-3, 1000).with_warmup(100).with_min_lr(1e-4);
/// assert_eq!([schedule.rate(0), schedule.rate(99), schedule.rate(1000)], [1e-5, 1e-3, 1e-4]);
/// ```
///
/// For other rates, set `trainer.schedule = Schedule::constant(rate)` before each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The decay after the warm-up.
    pub decay: Decay,
    /// The rate before the first step of the warm-up. No step has this rate.
    pub warmup_start_lr: f64,
    /// The peak rate.
    pub lr: f64,
    /// The rate after the decay.
    pub min_lr: f64,
    /// Number of warm-up steps.
    pub warmup_steps: u64,
    /// Total number of steps.
    pub steps: u64,
    /// Number of decay steps of [`Decay::Wsd`], [`Decay::WsdCosine`] and [`Decay::WsdSqrt`].
    pub decay_steps: u64,
}

impl Schedule {
    /// The learning rate `lr` for every step.
    ///
    /// ```
    /// use xtrain_model::Schedule;
    /// assert_eq!(Schedule::constant(3e-4).rate(1_000_000), 3e-4);
    /// ```
    pub fn constant(lr: f64) -> Schedule {
        let decay = Decay::Constant;
        Schedule { decay, warmup_start_lr: 0.0, lr, min_lr: 0.0, warmup_steps: 0, steps: 0, decay_steps: 0 }
    }

    /// The learning rate `lr`, with half a cosine to 0 at step `steps`.
    pub fn cosine(lr: f64, steps: u64) -> Schedule {
        Schedule { decay: Decay::Cosine, steps, ..Schedule::constant(lr) }
    }

    /// The learning rate `lr`, linear to 0 at step `steps`.
    pub fn linear(lr: f64, steps: u64) -> Schedule {
        Schedule { decay: Decay::Linear, steps, ..Schedule::constant(lr) }
    }

    /// With `steps` steps of warm-up, from 0.
    #[must_use]
    pub fn with_warmup(self, steps: u64) -> Schedule {
        Schedule { warmup_steps: steps, ..self }
    }

    /// With another rate than 0 after the decay. No effect on a constant rate.
    #[must_use]
    pub fn with_min_lr(self, min_lr: f64) -> Schedule {
        Schedule { min_lr, ..self }
    }

    /// The learning rate of step `step`, counted from 0. The warm-up rises in equal increments; its last step has the
    /// rate `lr`.
    ///
    /// The rate is `lr * (share * (1 - r) + r)`, evaluated in the order of transformers. In the warm-up,
    /// `r = warmup_start_lr / lr` and `share = (step + 1) / warmup_steps`. Afterwards, `r = min_lr / lr` and `share`
    /// is the remaining fraction of the decay.
    pub fn rate(&self, step: u64) -> f64 {
        let Schedule { decay, warmup_start_lr, lr, min_lr, warmup_steps, steps, decay_steps } = *self;
        let (share, floor) = if step < warmup_steps {
            ((step + 1) as f64 / warmup_steps as f64, warmup_start_lr)
        } else {
            let start = match decay {
                Decay::Wsd | Decay::WsdCosine | Decay::WsdSqrt => {
                    let early = faults::on(Fault::WsdDecayStartsInWarmup);
                    steps.saturating_sub(decay_steps).max(if early { 0 } else { warmup_steps })
                }
                Decay::Constant | Decay::Linear | Decay::Cosine => warmup_steps,
            };
            let whole = steps.saturating_sub(start).max(1);
            (decay.remaining(step.saturating_sub(start).min(whole), whole), min_lr)
        };
        let ratio = if floor == 0.0 { 0.0 } else { floor / lr };
        lr * (share * (1.0 - ratio) + ratio)
    }
}

impl Decay {
    /// The remaining fraction of the decay after `done` of `whole` decay steps.
    fn remaining(self, done: u64, whole: u64) -> f64 {
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
            let names = all.map(|d| d.to_string()).join(", ");
            format!("unknown schedule {s:?}: expected one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decay_starts_at_the_peak_and_ends_at_the_minimum() {
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
    fn the_wsd_decays_differ_in_the_middle() {
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
        let cosine = f64::from_bits(0x3fe6_a09e_667f_3bcd); // cos(pi / 4)
        assert_eq!(at_a_quarter(Decay::WsdCosine), 0.5 * (1.0 + cosine));
    }

    #[test]
    fn a_warm_up_starts_at_its_start_rate() {
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
