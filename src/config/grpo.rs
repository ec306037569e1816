//! The section `[grpo]` and its defaults. docs/reference/config.md is generated from this file.
use serde::{Deserialize, Serialize};

use super::Result;
use super::error::require;
use super::kinds::{DecayKind, Precision};
use crate::decode::SampleOptions;
use crate::model::rl::{Baseline, ImportanceSamplingLevel, LossType, RewardAggregation, ScaleRewards};
use crate::tensor::faults::{self, Fault};

/// `[grpo]`: reinforcement learning with verifiable rewards (GRPO), read by `xtrain grpo`. Names and meanings follow
/// TRL's GRPOConfig where it has the option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrpoSection {
    /// Built-in task that provides prompts, rewards and the text of the base model; empty: `prompts` and `reward` are
    /// required.
    pub task: String,
    /// JSONL file of prompts, with `prompt` or `messages` in each line; other fields are passed to the reward. Empty:
    /// the prompts of the task.
    pub prompts: String,
    /// JSONL file of held-out prompts for evaluation. Empty: the held-out prompts of the task.
    pub eval_prompts: String,
    /// Fraction of wrong answers in the text that the base model of a task is trained on.
    pub wrong_answers: f64,
    /// Reward programs, each a command line. Empty: the reward of the task.
    pub reward: Vec<String>,
    /// Directory in which the reward programs run. Empty: that in which the run was started, or `reward` was set.
    pub reward_dir: String,
    /// Weight of each reward, in the order of the programs; several rewards of a program are in the alphabetical order
    /// of their names. Empty: 1 for each.
    pub reward_weights: Vec<f64>,
    /// Processes per reward program.
    pub reward_processes: usize,
    /// Whether reward programs score each of several equal completions of a prompt. false: they get one of them, and
    /// its reply counts for all; completions of several turns are always scored one by one. Default: false.
    pub score_duplicates: bool,
    /// Time limit of the rewards of one batch, in seconds.
    pub reward_timeout: f64,
    /// Number of optimizer steps.
    pub steps: usize,
    /// Prompts per generation batch.
    pub prompts_per_step: usize,
    /// Completions per prompt: the group size G, at least 2.
    pub num_generations: usize,
    /// Optimizer steps that one generation batch is split into.
    pub steps_per_generation: usize,
    /// Passes over one generation batch.
    pub num_iterations: usize,
    /// Completions per forward pass of the update, but at least those that share a prompt. The results are
    /// bit-identical for every value. Default: 64.
    pub micro_batch: usize,
    /// Completions of a group that share the rows of their prompt and of equal beginnings in the update. Part of the
    /// arithmetic: another value sums the gradient in another order. 1: each completion is computed with its prompt.
    /// Default: 64.
    pub prompt_sharing: usize,
    /// Compute a micro-batch with completions of the maximum length before the first step. A run without enough memory
    /// for it fails then, and later steps reuse this memory. The results are bit-identical. Default: true.
    pub preallocate: bool,
    /// Longest prompt in tokens; a longer prompt is an error.
    pub max_prompt_length: usize,
    /// Longest completion in tokens, sampled and appended.
    pub max_completion_length: usize,
    /// Maximum number of turns of a completion: a reward program can continue a completion that has fewer turns.
    pub max_turns: usize,
    /// Texts that end a turn, with the token that completes one of them. The reward gets the text before the stop text;
    /// the update includes the tokens of the stop text. Empty: only end-of-text tokens end a turn.
    pub stop: Vec<String>,
    /// Softmax temperature of the rollouts.
    pub temperature: f64,
    /// Top-k sampling: keep the k most likely tokens; 0: keep all.
    pub top_k: usize,
    /// Top-p (nucleus) sampling: keep the smallest set of tokens with this total probability; 1: keep all.
    pub top_p: f64,
    /// Min-p sampling: keep tokens with at least this fraction of the highest probability; 0: keep all.
    pub min_p: f64,
    /// Regular expression that each turn of a completion matches as a whole; the update keeps the tokens that it
    /// allows. Requires top_k = 0, top_p = 1 and min_p = 0. Empty: any text.
    pub regex: String,
    /// JSON schema that each turn of a completion is valid under: a file, or the schema itself. As `regex`. Empty: any
    /// text.
    pub json_schema: String,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Learning rate that the schedule reaches after the last step.
    pub min_learning_rate: f64,
    /// Learning rate schedule after warmup.
    pub schedule: DecayKind,
    /// Linear warmup steps.
    pub warmup: usize,
    /// AdamW weight decay.
    pub weight_decay: f64,
    /// AdamW beta1.
    pub beta1: f64,
    /// AdamW beta2.
    pub beta2: f64,
    /// AdamW epsilon.
    pub eps: f64,
    /// Maximum gradient norm; 0: no clipping.
    pub clip: f64,
    /// Loss. c: importance ratio; A: advantage; l: log-probability; n, N: tokens of the completion and of the step; B:
    /// completions of the step.
    pub loss_type: LossType,
    /// Level of the importance ratio.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// Lower clipping range of the ratio.
    pub epsilon: f64,
    /// Upper clipping range of the ratio. Default: `epsilon`.
    pub epsilon_high: f64,
    /// Upper bound of the ratio before clipping (two-sided clipping); 0: none.
    pub delta: f64,
    /// Weight of the KL divergence from the reference model; 0: no reference model.
    pub beta: f64,
    /// Multiply the KL term by the importance ratio.
    pub use_bias_correction_kl: bool,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Fraction of the tokens of a step, those with the highest entropy, that the policy term acts on.
    pub top_entropy_quantile: f64,
    /// Drop completions with a negative advantage whose mean log-ratio of sampler to policy is above this value; 0:
    /// keep all.
    pub off_policy_mask_threshold: f64,
    /// Ignore completions that reached `max_completion_length`.
    pub mask_truncated_completions: bool,
    /// Normalization of the advantages.
    pub scale_rewards: ScaleRewards,
    /// Baseline of the advantages.
    pub advantage_baseline: Baseline,
    /// How several rewards are combined.
    pub multi_objective_aggregation: RewardAggregation,
    /// How often groups whose rewards are all equal are replaced by groups of other prompts; 0: never.
    pub resample_groups: usize,
    /// Compute dtype of the reference model.
    pub ref_dtype: Precision,
    /// Update the reference model every N steps; 0: never.
    pub ref_model_sync_steps: usize,
    /// Weight of the current model in an update of the reference model.
    pub ref_model_mixup_alpha: f64,
    /// Evaluate on held-out prompts every N steps; 0: never.
    pub eval_every: usize,
    /// Held-out prompts per evaluation; 0: all.
    pub eval_limit: usize,
    /// Sampled completions per held-out prompt, for `eval/reward_sampled` and `eval/pass_at_k`.
    pub eval_samples: usize,
    /// Compare one group with the training forward pass over the whole vocabulary every N steps; 0: never.
    pub verify_every: usize,
    /// Print the best, median and worst completion every N steps, and of the first and the last batch; 0: never.
    pub show_every: usize,
    /// Save a checkpoint every N steps, at the end of the generation batch that contains such a step. The last step is
    /// always saved.
    pub save_every: usize,
    /// Number of recent checkpoints to keep; at least 2.
    pub keep: usize,
}

impl Default for GrpoSection {
    fn default() -> GrpoSection {
        GrpoSection {
            task: String::new(),
            prompts: String::new(),
            eval_prompts: String::new(),
            wrong_answers: 0.5,
            reward: Vec::new(),
            reward_dir: String::new(),
            reward_weights: Vec::new(),
            reward_processes: 1,
            score_duplicates: false,
            reward_timeout: 60.0,
            steps: 200,
            prompts_per_step: 16,
            num_generations: 16,
            steps_per_generation: 1,
            num_iterations: 1,
            micro_batch: 64,
            prompt_sharing: 64,
            preallocate: true,
            max_prompt_length: 512,
            max_completion_length: 256,
            max_turns: 1,
            stop: Vec::new(),
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            regex: String::new(),
            json_schema: String::new(),
            learning_rate: 1e-4,
            min_learning_rate: 0.0,
            schedule: DecayKind::Linear,
            warmup: 0,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            clip: 1.0,
            loss_type: LossType::Dapo,
            importance_sampling_level: ImportanceSamplingLevel::Token,
            epsilon: 0.2,
            epsilon_high: 0.2,
            delta: 0.0,
            beta: 0.0,
            use_bias_correction_kl: true,
            entropy_coef: 0.0,
            top_entropy_quantile: 1.0,
            off_policy_mask_threshold: 0.0,
            mask_truncated_completions: false,
            scale_rewards: ScaleRewards::Group,
            advantage_baseline: Baseline::GroupMean,
            multi_objective_aggregation: RewardAggregation::SumThenNormalize,
            resample_groups: 0,
            ref_dtype: Precision::F32,
            ref_model_sync_steps: 0,
            ref_model_mixup_alpha: 0.6,
            eval_every: 50,
            eval_limit: 0,
            eval_samples: 4,
            verify_every: 50,
            show_every: 50,
            save_every: 50,
            keep: 2,
        }
    }
}

impl GrpoSection {
    /// Completions of a generation batch.
    pub fn completions(&self) -> usize {
        self.prompts_per_step * self.num_generations
    }

    /// Completions of an optimizer step.
    pub fn completions_per_step(&self) -> usize {
        self.completions() / self.steps_per_generation
    }

    /// Optimizer steps that use one generation batch.
    pub fn steps_per_batch(&self) -> usize {
        self.steps_per_generation * self.num_iterations
    }

    /// Checks that all values are in range and do not contradict each other.
    ///
    /// # Errors
    /// [`Error::Invalid`](super::Error::Invalid) for the first invalid value.
    pub fn validate(&self) -> Result<()> {
        for (key, n, max) in [
            ("grpo.steps", self.steps, 1 << 31),
            ("grpo.prompts_per_step", self.prompts_per_step, 1 << 20),
            ("grpo.num_generations", self.num_generations, 1 << 16),
            ("grpo.num_iterations", self.num_iterations, 1 << 10),
            ("grpo.micro_batch", self.micro_batch, 1 << 20),
            ("grpo.prompt_sharing", self.prompt_sharing, 1 << 16),
            ("grpo.max_prompt_length", self.max_prompt_length, 1 << 20),
            ("grpo.max_completion_length", self.max_completion_length, 1 << 20),
            ("grpo.max_turns", self.max_turns, 1 << 10),
            ("grpo.reward_processes", self.reward_processes, 1 << 10),
            ("grpo.eval_samples", self.eval_samples, 1 << 16),
            ("grpo.steps_per_generation", self.steps_per_generation, self.prompts_per_step),
        ] {
            require((1..=max).contains(&n), key, n, format!("a whole number from 1 to {max}"))?;
        }
        let want = "at least 2: the advantage of a completion without others in its group is 0";
        require(self.num_generations >= 2, "grpo.num_generations", self.num_generations, want)?;
        let divides = self.prompts_per_step.is_multiple_of(self.steps_per_generation);
        let want = format!("a divisor of grpo.prompts_per_step = {}", self.prompts_per_step);
        require(divides, "grpo.steps_per_generation", self.steps_per_generation, want)?;
        let (per_batch, steps) = (self.steps_per_batch(), self.steps);
        let want = format!("a multiple of steps_per_generation x num_iterations = {per_batch}");
        require(steps.is_multiple_of(per_batch), "grpo.steps", steps, want)?;
        require(self.warmup <= steps, "grpo.warmup", self.warmup, format!("at most {steps} (grpo.steps)"))?;
        require(self.keep >= 2, "grpo.keep", self.keep, "at least 2 checkpoints")?;
        let (every, per_batch) = (self.ref_model_sync_steps, self.steps_per_batch());
        let want = format!("a multiple of steps_per_generation x num_iterations = {per_batch}");
        require(every.is_multiple_of(per_batch), "grpo.ref_model_sync_steps", every, want)?;
        let rounds = self.resample_groups;
        require(rounds <= 255, "grpo.resample_groups", rounds, "at most 255")?;
        let several = self.multi_objective_aggregation == RewardAggregation::NormalizeThenSum;
        let group =
            self.scale_rewards == ScaleRewards::Group && self.advantage_baseline == Baseline::GroupMean;
        let want = "sum_then_normalize, or scale_rewards = group and advantage_baseline = group_mean";
        require(!several || group, "grpo.multi_objective_aggregation", "normalize_then_sum", want)?;
        let clipped = self.delta == 0.0 || self.loss_type.is_clipped();
        let want = format!("0 with loss_type = {}, which is not clipped by epsilon", self.loss_type);
        require(clipped, "grpo.delta", self.delta, want)?;
        let synced = self.ref_model_sync_steps == 0 || self.beta > 0.0;
        let want = "0 without a reference model (grpo.beta = 0)";
        require(synced, "grpo.ref_model_sync_steps", self.ref_model_sync_steps, want)?;
        let tasks_text = self.task.is_empty() || self.prompts.is_empty();
        require(tasks_text, "grpo.prompts", format!("{:?}", self.prompts), "no prompts with grpo.task")?;
        let texts = self.stop.iter().all(|text| !text.is_empty());
        require(texts, "grpo.stop", "an empty text", "texts of at least one character")?;
        self.validate_constraint()?;
        self.validate_numbers()
    }

    fn validate_constraint(&self) -> Result<()> {
        let [regex, schema] = [&self.regex, &self.json_schema].map(|text| !text.is_empty());
        let want = "no schema with grpo.regex";
        require(!(regex && schema), "grpo.json_schema", &self.json_schema, want)?;
        let constraint = if regex { "grpo.regex" } else { "grpo.json_schema" };
        let (top_k, top_p, min_p) = (self.top_k, self.top_p, self.min_p);
        for (key, found, is_on, off) in [
            ("grpo.top_k", top_k as f64, top_k > 0, "0"),
            ("grpo.top_p", top_p, top_p != 1.0, "1"),
            ("grpo.min_p", min_p, min_p != 0.0, "0"),
        ] {
            require(!(is_on && (regex || schema)), key, found, format!("{off} with {constraint}"))?;
        }
        Ok(())
    }

    fn validate_numbers(&self) -> Result<()> {
        let finite = |x: f64| (x >= 0.0 || faults::on(Fault::NumberLimitsIgnored)) && x.is_finite();
        for (key, x) in [("grpo.learning_rate", self.learning_rate), ("grpo.eps", self.eps)] {
            require(x > 0.0 && x.is_finite(), key, x, "a finite number above 0")?;
        }
        for (key, x) in [
            ("grpo.weight_decay", self.weight_decay),
            ("grpo.clip", self.clip),
            ("grpo.delta", self.delta),
            ("grpo.beta", self.beta),
            ("grpo.entropy_coef", self.entropy_coef),
            ("grpo.off_policy_mask_threshold", self.off_policy_mask_threshold),
        ] {
            require(finite(x), key, x, "a number of at least 0")?;
        }
        let limit = self.reward_timeout;
        let valid = limit > 0.0 && limit <= 1e6;
        require(valid, "grpo.reward_timeout", limit, "a number above 0 and at most 1000000 seconds")?;
        let weight = self.reward_weights.iter().find(|weight| !weight.is_finite());
        require(weight.is_none(), "grpo.reward_weights", weight.unwrap_or(&0.0), "finite numbers")?;
        for (key, x) in [("grpo.beta1", self.beta1), ("grpo.beta2", self.beta2)] {
            require((0.0..1.0).contains(&x), key, x, "a number from 0 to below 1")?;
        }
        for (key, x) in [
            ("grpo.wrong_answers", self.wrong_answers),
            ("grpo.min_p", self.min_p),
            ("grpo.ref_model_mixup_alpha", self.ref_model_mixup_alpha),
        ] {
            require((0.0..=1.0).contains(&x), key, x, "a number from 0 to 1")?;
        }
        for (key, x) in [("grpo.top_p", self.top_p), ("grpo.top_entropy_quantile", self.top_entropy_quantile)]
        {
            require(x as f32 > 0.0 && x <= 1.0, key, x, "a number above 0 and at most 1")?;
        }
        let (rate, peak) = (self.min_learning_rate, self.learning_rate);
        let want = format!("0 to {peak} (grpo.learning_rate)");
        require((0.0..=peak).contains(&rate), "grpo.min_learning_rate", rate, want)?;
        for (key, x) in [("grpo.epsilon", self.epsilon), ("grpo.epsilon_high", self.epsilon_high)] {
            require(x >= 0.0, key, x, "a number of at least 0")?;
        }
        let t = self.temperature;
        let divides = (SampleOptions::COLDEST..=f32::MAX).contains(&(t as f32));
        require(divides, "grpo.temperature", t, "a number of at least 1e-30")
    }
}
