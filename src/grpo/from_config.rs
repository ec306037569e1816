//! Options of the loop from `[grpo]`.
use super::examples::Examples;
use super::rollout::RolloutOptions;
use super::update::Updater;
use crate::config::GrpoSection;
use crate::decode::{EngineOptions, SampleOptions};
use crate::model::rl::{AdvantageOptions, PolicyLoss};
use crate::model::{OptimConfig, Schedule};
use crate::tensor::faults::{self, Fault};
use crate::training;

/// The optimizer.
pub fn optim_config(section: &GrpoSection) -> OptimConfig {
    let GrpoSection { beta1, beta2, eps, weight_decay, clip, .. } = *section;
    OptimConfig { beta1, beta2, eps, weight_decay, clip: training::max_norm(clip) }
}

/// The learning rates.
pub fn schedule(section: &GrpoSection) -> Schedule {
    Schedule {
        decay: training::decay(section.schedule),
        warmup_start_lr: 0.0,
        lr: section.learning_rate,
        min_lr: section.min_learning_rate,
        warmup_steps: section.warmup as u64,
        steps: section.steps as u64,
        decay_steps: section.steps as u64 / 5,
    }
}

/// The sampling options of the rollouts.
pub fn sampling(section: &GrpoSection) -> SampleOptions {
    let GrpoSection { temperature, top_k, top_p, min_p, .. } = *section;
    SampleOptions::filtered(temperature as f32, top_k, top_p as f32, min_p as f32)
}

/// Maximum number of sequences that run concurrently in a rollout.
pub const MAX_BATCH: usize = 256;

/// The rollouts of a run with this seed, without a constraint.
pub fn rollout_options(section: &GrpoSection, seed: u64, engine: EngineOptions) -> RolloutOptions {
    let engine = EngineOptions { max_batch: section.completions().min(MAX_BATCH), ..engine };
    let (max_new, max_turns) = (section.max_completion_length, section.max_turns);
    let stop_texts = section.stop.clone();
    RolloutOptions {
        seed,
        sampling: sampling(section),
        constraint: None,
        stop_texts,
        max_new,
        max_turns,
        engine,
    }
}

/// The advantages, without weights.
pub fn advantage_options(section: &GrpoSection) -> AdvantageOptions {
    AdvantageOptions {
        group: section.num_generations,
        weights: Vec::new(),
        scale: section.scale_rewards,
        baseline: section.advantage_baseline,
        aggregation: section.multi_objective_aggregation,
    }
}

/// The updates.
pub fn updater(section: &GrpoSection) -> Updater {
    let optional = |x: f64| (x > 0.0).then_some(x);
    let loss = PolicyLoss {
        loss_type: section.loss_type,
        level: section.importance_sampling_level,
        epsilon: section.epsilon,
        epsilon_high: Some(section.epsilon_high),
        delta: optional(section.delta),
        beta: section.beta,
        bias_corrected_kl: section.use_bias_correction_kl,
        entropy_coef: section.entropy_coef,
        top_entropy_quantile: section.top_entropy_quantile,
        off_policy_mask_threshold: optional(section.off_policy_mask_threshold),
        mask_truncated_completions: section.mask_truncated_completions,
        max_completion_length: Some(section.max_completion_length),
        sampler_correction: None,
    };
    let mut sampling = sampling(section);
    if faults::on(Fault::UpdateForgetsTopP) {
        sampling.top_p = None;
    }
    let examples = Examples {
        shared: section.prompt_sharing.min(section.num_generations),
        micro_batch: section.micro_batch,
    };
    Updater { loss, sampling, examples }
}
