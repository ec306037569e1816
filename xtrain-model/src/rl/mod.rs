//! Reinforcement learning with verifiable rewards: advantages and policy losses.
//!
//! Everything here is a pure function in f64 on the host, with the formulas and the order of every sum in
//! docs/numerics.md, section 8. A policy loss returns one weight for each token; the cross-entropy of
//! [`objective`](crate::objective) turns the weights into gradients. What they need of the whole step is formed
//! before them, so no bit depends on the split into micro-batches.
//!
//! ```
//! use xtrain_model::rl::{AdvantageOptions, PolicyLoss, PolicyRow, advantages};
//!
//! // Two prompts with two completions each, one reward function.
//! let rewards = [1.0, 0.0, 1.0, 1.0].map(|r| vec![Some(r)]);
//! let advantages = advantages(&rewards, &AdvantageOptions::new(2, vec![1.0]))?;
//! assert!(advantages.values[0] > 0.0 && advantages.values[1] < 0.0);
//! assert_eq!(advantages.values[2..], [0.0, 0.0]);
//!
//! // Log-probabilities of the sampled tokens. On-policy, the old ones are the current ones.
//! let logp = [vec![-0.5, -1.25], vec![-0.75], vec![-2.0], vec![-0.25, -0.5]];
//! let rows: Vec<PolicyRow> = logp
//!     .iter()
//!     .zip(&advantages.values)
//!     .map(|(logp, &advantage)| PolicyRow::on_policy(logp, &[true, true][..logp.len()], advantage))
//!     .collect();
//! let output = PolicyLoss::default().evaluate(&rows)?;
//! assert_eq!(output.weights[0], [advantages.values[0] / 6.0; 2]);
//! # Ok::<(), xtrain_model::rl::RlError>(())
//! ```
mod advantage;
mod error;
mod measure;
mod metrics;
mod named;
mod options;
mod policy_loss;
mod ratio;
mod row;
mod row_output;
mod stats;
mod step_weights;
mod surrogate;
#[cfg(test)]
mod tests;

pub use advantage::{
    AdvantageOptions, Advantages, Baseline, MeanStd, RewardAggregation, ScaleRewards, advantages,
    weighted_reward,
};
pub use error::{Result, RlError};
pub use metrics::{ClipRatios, PolicyMetrics, SamplingMetrics};
pub use options::{ImportanceSamplingLevel, LossType, PolicyLoss, SamplerCorrection, SamplerCorrectionMode};
pub use row::{PolicyOutput, PolicyRow};
pub use step_weights::{PolicyWeights, StepSizes};
