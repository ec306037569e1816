//! The operands and the result of a policy loss.
use super::error::{Result, RlError};
use super::metrics::PolicyMetrics;
use super::options::PolicyLoss;

/// One completion: a row of a policy loss. All lists have one value for each of its T tokens. Values at tokens
/// outside the loss mask are not read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyRow<'a> {
    /// The log-probabilities under the current weights, after temperature and filters.
    pub logp: &'a [f64],
    /// The log-probabilities under the weights before the update. On-policy: the same bits as `logp`.
    pub old: &'a [f64],
    /// The log-probabilities under the reference model.
    pub reference: Option<&'a [f64]>,
    /// The log-probabilities that the sampler returned.
    pub sampler: Option<&'a [f64]>,
    /// The entropies under the current weights.
    pub entropy: Option<&'a [f64]>,
    /// The loss mask: which tokens the policy generated.
    pub mask: &'a [bool],
    /// The advantage.
    pub advantage: f64,
    /// Whether the completion reached the maximum length.
    pub truncated: bool,
}

/// The value of a policy loss, its gradients and its metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyOutput {
    /// The loss, with the KL divergence and the entropy bonus.
    pub loss: f64,
    /// `w = -dL/dlogp` of each token of each row. +0 at tokens outside the loss mask. Round it once to f32 to get the
    /// loss weight of a [`Target`](xtrain_tensor::ops::Target).
    pub weights: Vec<Vec<f64>>,
    /// The weight of the negative entropy of each token of each row in the loss: the `bonus` of a
    /// [`Target`](xtrain_tensor::ops::Target).
    pub bonus: Vec<Vec<f64>>,
    /// The metrics.
    pub metrics: PolicyMetrics,
}

impl<'a> PolicyRow<'a> {
    /// A completion whose old log-probabilities are the current ones, without reference, sampler and entropies.
    pub fn on_policy(logp: &'a [f64], mask: &'a [bool], advantage: f64) -> PolicyRow<'a> {
        let (reference, sampler, entropy) = (None, None, None);
        PolicyRow { logp, old: logp, reference, sampler, entropy, mask, advantage, truncated: false }
    }

    /// Checks the row at index `completion` against the options of `loss`: lengths, required lists, finite values.
    pub(super) fn check(&self, completion: usize, loss: &PolicyLoss) -> Result<()> {
        let want = self.logp.len();
        if self.mask.len() != want {
            return Err(RlError::Length { completion, field: "mask", want, got: self.mask.len() });
        }
        let required = [
            ("logp", Some(self.logp), None),
            ("old", Some(self.old), None),
            ("reference", self.reference, loss.needs_reference().then_some("beta")),
            ("sampler", self.sampler, loss.needs_sampler().then_some("sampler_correction")),
            ("entropy", self.entropy, loss.needs_entropy().then_some(entropy_option(loss))),
        ];
        for (field, values, option) in required {
            let Some(values) = values else {
                match option {
                    Some(option) => return Err(RlError::Missing { completion, field, option }),
                    None => continue,
                }
            };
            if values.len() != want {
                return Err(RlError::Length { completion, field, want, got: values.len() });
            }
            if let Some(token) = (0..want).find(|&t| self.mask[t] && !values[t].is_finite()) {
                return Err(RlError::NotFinite {
                    completion,
                    token: Some(token),
                    what: field,
                    got: values[token],
                });
            }
        }
        if !self.advantage.is_finite() {
            let got = self.advantage;
            return Err(RlError::NotFinite { completion, token: None, what: "advantage", got });
        }
        Ok(())
    }
}

fn entropy_option(loss: &PolicyLoss) -> &'static str {
    if loss.entropy_coef == 0.0 { "top_entropy_quantile" } else { "entropy_coef" }
}
