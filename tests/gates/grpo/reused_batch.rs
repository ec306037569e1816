//! An optimizer step on a reused batch computes its loss weights during the pass of its gradient. It has the bits
//! of a forward pass over all completions, then the weights, then the gradient.
use xtrain::config::RunConfig;
use xtrain::grpo::batch::{Group, samples};
use xtrain::grpo::examples::Weighted;
use xtrain::grpo::from_config;
use xtrain::grpo::update::{Policy, StepInput, UpdateReport, Updater};
use xtrain::model::rl::{ImportanceSamplingLevel, LossType, PolicyMetrics, PolicyOutput, PolicyRow};
use xtrain::model::{ActivationCheckpointing, StepReport, Trainer, objective};
use xtrain::tensor::ops::LogProb;

use super::config;
use super::zero_weights::{ADVANTAGES, examples, groups, trainer};
use crate::gpu::{compare, state};

/// Advantages of the step on the reused batch. Some have another sign than those of the update before, so that ratios
/// are clipped and not clipped.
const REUSED: [f64; 12] = [0.75, 1.25, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, -0.5, -1.5, -1.0, 0.0];

/// A rollout, and the steps on it.
struct Case {
    config: RunConfig,
    updater: Updater,
    groups: Vec<Group>,
    /// The log-probabilities of the sampler, which are also those of the reference model.
    old: Vec<Vec<f64>>,
    masks: Vec<Vec<bool>>,
}

/// A step: its report, its loss weights and the state after it.
struct Step {
    report: StepReport,
    output: PolicyOutput,
    state: Vec<(String, Vec<u32>)>,
}

impl Case {
    fn new(keys: &[&str]) -> Case {
        let config = config(keys);
        let groups = groups(&config, &trainer(&config).model);
        let widen = |logprobs: &[f32]| logprobs.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let old: Vec<_> = samples(&groups).map(|(_, sample)| widen(&sample.logprobs)).collect();
        let masks = old.iter().map(|row| vec![true; row.len()]).collect();
        Case { updater: from_config::updater(config.grpo.as_ref().unwrap()), config, groups, old, masks }
    }

    fn completions(&self, advantages: &[f64]) -> Vec<Weighted<'_>> {
        let with_reference = self.updater.loss.beta > 0.0;
        samples(&self.groups)
            .enumerate()
            .map(|(i, (group, sample))| Weighted {
                group,
                sample,
                advantage: advantages[i],
                reference: with_reference.then(|| self.old[i].clone()),
                kept: &[],
            })
            .collect()
    }

    /// A trainer whose weights have been updated once since the rollout.
    fn updated(&self) -> Trainer {
        let mut trainer = trainer(&self.config);
        self.step(&mut trainer, &ADVANTAGES, Policy::Sampling).unwrap();
        trainer
    }

    fn tokens(&self) -> f64 {
        self.old.iter().map(Vec::len).sum::<usize>() as f64
    }

    /// The step of the update.
    fn step(
        &self,
        trainer: &mut Trainer,
        advantages: &[f64],
        policy: Policy,
    ) -> Result<UpdateReport, String> {
        let (completions, loss_tokens) = (self.completions(advantages), self.tokens());
        let input = StepInput { completions: &completions, policy, loss_tokens, new_tokens: 0 };
        self.updater.step(trainer, &input).map_err(|e| format!("gate grpo, seed 0: {e}"))
    }

    /// The values of all completions under the current weights.
    fn values(&self, trainer: &Trainer) -> [Vec<Vec<f64>>; 2] {
        let examples = examples(&self.updater, &self.completions(&ADVANTAGES), None);
        let found = objective::values(&trainer.model, &examples, self.updater.processing()).unwrap();
        let found: Vec<LogProb> = found.into_iter().flatten().collect();
        [|value: &LogProb| value.log_prob, |value: &LogProb| value.entropy].map(|value| {
            let mut rest = found.iter().map(|found| f64::from(value(found)));
            self.old.iter().map(|row| rest.by_ref().take(row.len()).collect()).collect()
        })
    }

    /// The step as a pass for values, the weights and a pass for the gradient.
    fn two_passes(&self, trainer: &mut Trainer) -> Step {
        let completions = self.completions(&REUSED);
        let [logp, entropy] = self.values(trainer);
        let row = |i: usize| PolicyRow {
            logp: &logp[i],
            old: &self.old[i],
            reference: completions[i].reference.as_deref(),
            sampler: None,
            entropy: Some(&entropy[i]),
            mask: &self.masks[i],
            advantage: completions[i].advantage,
            truncated: completions[i].sample.truncated(),
        };
        let rows: Vec<PolicyRow<'_>> = (0..completions.len()).map(row).collect();
        let output = self.updater.loss.evaluate_part(&rows, self.tokens()).unwrap();
        let examples = examples(&self.updater, &completions, Some(&output));
        let gradient = trainer.gradient(&examples, self.updater.processing(), 2).unwrap();
        let report = trainer.apply(gradient, 0).unwrap();
        Step { report, output, state: state(trainer) }
    }

    /// Compares the update with two passes, for several micro-batches. Returns the number of compared values and the
    /// share of clipped ratios.
    fn check(&mut self, what: &str) -> Result<(usize, f64), String> {
        let want = self.two_passes(&mut self.updated());
        let differ = |what: String| Err(format!("gate grpo, seed 0: reused batch, {what}"));
        for (micro_batch, checkpointing) in [
            (1, ActivationCheckpointing::Off),
            (3, ActivationCheckpointing::PerLayer),
            (5, ActivationCheckpointing::Off),
            (1000, ActivationCheckpointing::Off),
        ] {
            let what = format!("{what}, micro-batch {micro_batch}");
            self.updater.examples.micro_batch = micro_batch;
            let mut trainer = self.updated();
            trainer.checkpointing = checkpointing;
            let found = self.step(&mut trainer, &REUSED, Policy::Updated)?;
            // the entropy of a step is that of its backward pass
            let metrics = PolicyMetrics { entropy: None, ..want.output.metrics };
            if found.loss.to_bits() != want.output.loss.to_bits() || found.metrics != metrics {
                let bits = [found.loss, want.output.loss].map(f64::to_bits);
                return differ(format!(
                    "{what}: found loss {} and {:?}, expected {} and {metrics:?}, bits of the loss {bits:016x?}",
                    found.loss, found.metrics, want.output.loss
                ));
            }
            if found.step != want.report {
                return differ(format!("{what}: found {:?}, expected {:?}", found.step, want.report));
            }
            if let Err(difference) = compare(&state(&trainer), &want.state, &what) {
                return differ(difference);
            }
            if found.trained == 0 {
                return differ(format!("{what}: no completion was trained"));
            }
        }
        let values: usize = want.state.iter().map(|(_, bits)| bits.len()).sum();
        Ok((4 * values, want.output.metrics.clip_ratio.map_or(0.0, |clip| clip.region_mean)))
    }
}

/// The whole gate. Returns the number of compared values.
pub(crate) fn over() -> Result<usize, String> {
    let options: [&[&str]; 4] = [
        &["grpo.prompt_sharing=1", "grpo.epsilon=0.05"],
        &["grpo.beta=0.05", "grpo.epsilon=8", "train.dtype=bf16"],
        &["grpo.prompt_sharing=2", "grpo.beta=0.05", "grpo.entropy_coef=0.01", "grpo.epsilon=0.05"],
        &["grpo.temperature=1.3", "grpo.top_p=0.95", "grpo.off_policy_mask_threshold=0.01"],
    ];
    let (mut compared, mut clipped, mut free) = (0, 0, 0);
    for (at, loss_type) in LossType::ALL.iter().enumerate() {
        for (of, level) in ImportanceSamplingLevel::ALL.iter().enumerate() {
            let loss =
                [format!("grpo.loss_type={loss_type}"), format!("grpo.importance_sampling_level={level}")];
            for options in [options[(at + of) % 4], options[(at + of + 2) % 4]] {
                let keys = [options, &[&loss[0], &loss[1]]].concat();
                let (n, share) = Case::new(&keys).check(&keys.join(" "))?;
                compared += n;
                *(if share > 0.0 { &mut clipped } else { &mut free }) += 1;
            }
        }
    }
    if clipped == 0 || free == 0 {
        return Err(format!("gate grpo, seed 0: reused batch: {clipped} clipped cases, {free} others"));
    }
    Ok(compared)
}

#[test]
fn a_step_on_a_reused_batch_has_the_bits_of_two_passes() {
    assert!(over().unwrap() > 100_000);
}

/// At sequence level without a tolerance, an advantage with the sign of the change of the ratio is clipped.
#[test]
fn a_step_whose_ratios_are_all_clipped_is_skipped() {
    let case =
        Case::new(&["grpo.importance_sampling_level=sequence", "grpo.epsilon=0", "grpo.prompt_sharing=1"]);
    let mut trainer = case.updated();
    let [logp, _] = case.values(&trainer);
    let change = |(new, old): (&Vec<f64>, &Vec<f64>)| {
        new.iter().sum::<f64>() / new.len() as f64 - old.iter().sum::<f64>() / old.len() as f64
    };
    let advantages: Vec<f64> = logp.iter().zip(&case.old).map(|pair| change(pair).signum()).collect();
    let before = state(&trainer);
    let report = case.step(&mut trainer, &advantages, Policy::Updated).unwrap();
    assert_eq!((report.trained, report.rows, report.entropy), (0, 0, None));
    assert_eq!((report.step.grad_norm, trainer.step_number()), (0.0, 2));
    compare(&state(&trainer), &before, "weights after a step without a gradient").unwrap();
}

#[cfg(feature = "faults")]
#[test]
fn stale_values_change_a_step_on_a_reused_batch() {
    use xtrain::tensor::faults::{Fault, with};
    let text = with(Fault::WeightsFromStaleValues, over).unwrap_err();
    assert!(text.contains("reused batch"), "{text}");
}
