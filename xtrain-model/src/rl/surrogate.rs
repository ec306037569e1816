//! The policy term of one token and its derivatives.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::math::exp_f64;

use super::options::{LossType, PolicyLoss};

/// tau of `sapo` for an advantage that is not positive: TRL's 1.05, an f32.
const SAPO_TAU_NEGATIVE: f32 = 1.05;

/// The term and its derivatives.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Term {
    /// The value.
    pub(super) value: f64,
    /// The derivative with respect to the logarithm of the ratio.
    pub(super) by_ratio: f64,
    /// The derivative with respect to the log-probability, the ratio held fixed.
    pub(super) by_logp: f64,
}

impl PolicyLoss {
    /// The term of a token with importance ratio `c` and log-probability `logp`. `phi` is that of `vespo`. An
    /// advantage of 0 gives zeros.
    pub(super) fn term(&self, c: f64, phi: f64, logp: f64, advantage: f64) -> Term {
        if advantage == 0.0 {
            return Term::default();
        }
        match self.loss_type {
            LossType::Grpo | LossType::Bnpo | LossType::DrGrpo | LossType::Dapo | LossType::Luspo => {
                self.clipped(c, advantage)
            }
            LossType::Cispo => {
                detached(if c < self.epsilon_high() { c } else { self.epsilon_high() }, logp, advantage)
            }
            LossType::Vespo => detached(phi, logp, advantage),
            LossType::Sapo => {
                let tau = if advantage > 0.0 { 1.0 } else { f64::from(SAPO_TAU_NEGATIVE) };
                let s = 1.0 / (1.0 + exp_f64(-(tau * (c - 1.0))));
                let value = -((4.0 / tau) * s) * advantage;
                Term { value, by_ratio: -(((4.0 * s) * (1.0 - s)) * c) * advantage, by_logp: 0.0 }
            }
        }
    }

    /// The ratio that is clipped: at most `delta`.
    pub(super) fn bounded(&self, c: f64) -> f64 {
        self.delta.map_or(c, |delta| if c < delta { c } else { delta })
    }

    /// `-min(min(c, delta) A, clip(c, 1 - epsilon, 1 + epsilon_high) A)`. Where both are equal, the derivative is the
    /// mean of both, as in PyTorch.
    fn clipped(&self, c: f64, advantage: f64) -> Term {
        let (low, high) = (1.0 - self.epsilon, 1.0 + self.epsilon_high());
        let slope = c * advantage;
        let x = self.bounded(c) * advantage;
        let y = (if c < low {
            low
        } else if c > high {
            high
        } else {
            c
        }) * advantage;
        let inside = c >= low && c <= high || faults::on(Fault::ClippedTokenGradientKept);
        let dx = if self.delta.is_none_or(|delta| c <= delta) { slope } else { 0.0 };
        let dy = if inside { slope } else { 0.0 };
        let (value, derivative) = if x < y {
            (x, dx)
        } else if y < x {
            (y, dy)
        } else {
            (x, 0.5 * (dx + dy))
        };
        Term { value: -value, by_ratio: -derivative, by_logp: 0.0 }
    }
}

/// `-factor A l` with a factor that has no gradient.
fn detached(factor: f64, logp: f64, advantage: f64) -> Term {
    let by_logp = -factor * advantage;
    Term { value: by_logp * logp, by_ratio: 0.0, by_logp }
}
