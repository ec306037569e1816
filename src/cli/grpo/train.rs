//! The loop of `xtrain grpo` with its rewards and logs.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::constraint;
use super::monitor::GrpoMonitor;
use super::prompts;
use super::reward_command::warn_of_shell_syntax;
use super::setup::{Changes, Setup};
use super::start::Ready;
use crate::cli::exit::{CliError, Exit, shell_word};
use crate::cli::interrupt::Interrupt;
use crate::cli::job::warn_of_damage;
use crate::cli::logs;
use crate::cli::resumable;
use crate::config::{self, RunConfig};
use crate::grpo::batch::Prompt;
use crate::grpo::constraint::RolloutConstraint;
use crate::grpo::metrics::StepMetrics;
use crate::grpo::prompts::PromptSource;
use crate::grpo::rollout::RolloutOptions;
use crate::grpo::score::Scorer;
use crate::grpo::{self, Grpo, GrpoFiles, GrpoObserver, Warnings, from_config, reference};
use crate::model::checkpoint::CheckpointDir;
use crate::model::store::{self, RunState};
use crate::model::tasks;
use crate::report::{EventFile, units};
use crate::rewards::{DistinctReward, ExternalOptions, ExternalReward, Reward, TaskReward};
use crate::run::{RECORD, RunDir, has_checkpoint};
use crate::tensor::faults::{self, Fault};
use crate::training::End;

/// What a run reads apart from its models.
pub(super) struct Inputs {
    /// The prompts of a file. `None`: the task draws them.
    listed: Option<Vec<Arc<Prompt>>>,
    held_out: Vec<Arc<Prompt>>,
    constraint: Option<RolloutConstraint>,
}

impl Setup<'_> {
    /// The reward programs, or the reward of the task.
    pub(super) fn rewards(&self, run: &RunDir) -> Result<Vec<Box<dyn Reward>>, CliError> {
        if self.section.reward.is_empty() {
            let task = tasks::by_name(&self.section.task).expect("the configuration was checked");
            return Ok(vec![Box::new(TaskReward::new(task))]);
        }
        let dir = Path::new(&self.section.reward_dir);
        if !dir.is_dir() {
            let message = format!("grpo.reward_dir: {}: directory not found", dir.display());
            return Err(CliError::new(Exit::Missing, message).hint("--set grpo.reward_dir=DIR"));
        }
        let logs = run.path().join("logs");
        self.section.reward.iter().for_each(|command| warn_of_shell_syntax(command));
        let start = |(at, command): (usize, &String)| -> Result<Box<dyn Reward>, CliError> {
            let options = ExternalOptions {
                processes: self.section.reward_processes,
                time_limit: Duration::from_secs_f64(self.section.reward_timeout),
                dir: (!faults::on(Fault::RewardsRunWhereResumed)).then(|| dir.to_path_buf()),
                log_dir: Some(logs.clone()),
                first_log: if faults::on(Fault::RewardLogsShared) {
                    at
                } else {
                    at * self.section.reward_processes
                },
            };
            let reward: Box<dyn Reward> = Box::new(ExternalReward::start(command, &options)?);
            Ok(if self.scores_duplicates() { reward } else { Box::new(DistinctReward::new(reward)) })
        };
        self.section.reward.iter().enumerate().map(start).collect()
    }

    /// Whether reward programs get every completion, not one of several equal completions.
    fn scores_duplicates(&self) -> bool {
        self.section.score_duplicates || self.section.max_turns > 1
    }

    /// Whether a resumed run has no step left and had none before.
    pub(super) fn is_complete(&self, ready: &Ready) -> bool {
        let step = ready.trainer.step_number();
        let had_none = |changes: Changes<'_>| step >= steps_of(changes.old);
        let is_complete = step >= self.section.steps as u64;
        self.changes.is_some_and(had_none) && is_complete && !faults::on(Fault::CompleteRunStoresChanges)
    }

    /// Checks that a resume does not reduce the number of steps below that which is done.
    pub(super) fn require_not_passed(&self, run: &RunDir, step: u64) -> Result<(), CliError> {
        let now = self.section.steps as u64;
        self.changes
            .map_or(Ok(()), |changes| resumable::require_not_passed(run, step, (steps_of(changes.old), now)))
    }

    /// Runs the loop, as a session of the run. If it has no step left and had none before, its settings and its session
    /// stay as they are.
    pub(super) fn train(
        &self,
        run: &RunDir,
        ready: &mut Ready,
        rewards: Vec<Box<dyn Reward>>,
        checkpoints: &CheckpointDir,
        interrupt: Interrupt,
    ) -> Result<(), CliError> {
        let step = ready.trainer.step_number();
        if self.is_complete(ready)
            && let Some(Changes { old, .. }) = self.changes
        {
            let next = resumable::more_steps(run, "grpo", step);
            return resumable::print_complete(run, step, &config::differing(old, self.config), next);
        }
        logs::session(run, self.device, step, || self.run_loop(run, ready, rewards, checkpoints, interrupt))
    }

    /// Stores the changes of a resume in `config.toml` and in the newest checkpoint. A run without one saves its first one
    /// later.
    fn store(
        &self,
        Changes { old, text }: Changes<'_>,
        run: &RunDir,
        Ready { trainer, tokenizer, .. }: &Ready,
        checkpoints: &CheckpointDir,
    ) -> Result<(), CliError> {
        let record = config::record(self.config);
        if has_checkpoint(run.path()) && config::record(old) != record {
            resumable::print_changes(&config::record(old), self.config)?;
            run.write_pending_config(text)?;
            let state = RunState { seed: self.config.train.seed, best: None };
            let _saved = store::save(checkpoints, trainer, tokenizer, state, &[(RECORD, record.as_bytes())])?;
        }
        Ok(run.write_config(text)?)
    }

    fn run_loop(
        &self,
        run: &RunDir,
        ready: &mut Ready,
        rewards: Vec<Box<dyn Reward>>,
        checkpoints: &CheckpointDir,
        interrupt: Interrupt,
    ) -> Result<(), CliError> {
        let section = self.section;
        let inputs = self.inputs(ready)?;
        let trainer = &ready.trainer;
        let (step, steps) = (trainer.step_number(), section.steps as u64);
        let reference_checkpoints = reference::checkpoints(run, section)?;
        let (mut metrics, timings) = run.logs_from(step)?;
        run.remove_rollouts_after(step)?;
        warn_of_damage([&metrics, &timings]);
        let record = config::record(self.config);
        if let Some(changes) = self.changes {
            self.store(changes, run, ready, checkpoints)?;
        }
        if step > 0 {
            eprintln!("resuming {} at step {step} of {steps}", run.path().display());
        }
        eprintln!(
            "{} parameters, {} prompts x {} completions per step, {}, writing to {}",
            units::count(trainer.model.config().n_params() as u64),
            section.prompts_per_step,
            section.num_generations,
            units::many(steps, "step"),
            run.path().display(),
        );
        let (events, warnings) = self.history(run, step)?;
        if step == 0 && inputs.held_out.is_empty() && section.eval_every > 0 {
            eprintln!("note: grpo.eval_prompts names no held-out prompts, so the run has no evaluation");
        }
        let mut monitor = GrpoMonitor::new(section, timings, events, interrupt, step, warnings);
        let files = GrpoFiles {
            run,
            checkpoints,
            reference_checkpoints: reference_checkpoints.as_ref(),
            record: &record,
            metrics: &mut metrics,
        };
        let end = self.steps(ready, inputs, rewards, Some(files), &mut monitor);
        let signal = monitor.finish();
        let resume = format!("to resume: xtrain grpo --resume {}", shell_word(run.path()));
        let repeats = |error: &grpo::Error| {
            use grpo::Error::{FiltersDiffer, NoPrompts, RewardWeights};
            matches!(error, RewardWeights { .. } | NoPrompts | FiltersDiffer { .. })
        };
        match (end, signal) {
            (Ok(End::Stopped), Some(exit)) => {
                Err(CliError::new(exit, "stopped by a signal; checkpoint saved").hint(resume))
            }
            (Ok(_), _) => Ok(()),
            (Err(error @ grpo::Error::RewardWeights { .. }), _) if ready.trainer.step_number() == 0 => {
                let base = run.path().join("base");
                let init = format!(" and --init {}", shell_word(&base));
                let init = if base.is_dir() { init } else { String::new() };
                Err(self.failure(error).hint(format_args!("start again with another --run{init}")))
            }
            // A resume would end with the same error.
            (Err(error), _) if repeats(&error) => Err(self.failure(error)),
            (Err(error), _) => {
                let error = self.failure(error);
                let half = section.learning_rate / 2.0;
                let mut rate = format!(
                    "a resume repeats these steps bit for bit unless it changes the learning rate; if that fails, too, --init \
                     an older checkpoint; {resume} --set grpo.learning_rate={half:?}"
                );
                if section.min_learning_rate > half {
                    rate.push_str(&format!(" --set grpo.min_learning_rate={half:?}"));
                }
                let diverged = error.exit() == Exit::Diverged;
                Err(error.hint(if diverged { rate } else { resume }))
            }
        }
    }

    /// The prompts of the run and what its completions have to match.
    pub(super) fn inputs(&self, ready: &Ready) -> Result<Inputs, CliError> {
        let Ready { trainer, tokenizer, .. } = ready;
        let cfg = trainer.model.config();
        let constraint = constraint::compile(self.section, tokenizer, cfg.vocab)?;
        let held_out = self.held_out(tokenizer, cfg)?;
        let listed = match self.task {
            Some(_) => None,
            None => Some(prompts::read(self.section, &self.section.prompts, tokenizer, cfg)?),
        };
        Ok(Inputs { listed, held_out, constraint })
    }

    /// Runs the loop. `files`: those that this process writes.
    pub(super) fn steps(
        &self,
        ready: &mut Ready,
        Inputs { listed, held_out, constraint }: Inputs,
        rewards: Vec<Box<dyn Reward>>,
        files: Option<GrpoFiles<'_>>,
        observer: &mut dyn GrpoObserver,
    ) -> Result<End, grpo::Error> {
        let (section, seed) = (self.section, self.config.train.seed);
        let Ready { trainer, reference, tokenizer, processes, .. } = ready;
        let prompts = match self.task {
            Some(task) => PromptSource::task(task, tokenizer, seed),
            None => PromptSource::list(listed.unwrap_or_default(), seed),
        };
        let mut scorer = Scorer::new(rewards, section.reward_weights.clone());
        let rollout = from_config::rollout_options(section, seed, self.engine);
        Grpo {
            reference: reference.take(),
            held_out: &held_out,
            rollout: RolloutOptions { constraint, ..rollout },
            files,
            processes: processes.clone(),
            ..Grpo::new(section, seed, trainer, tokenizer, &prompts, &mut scorer)
        }
        .run(observer)
    }

    /// The event file of TensorBoard with the metrics so far, and the state of the warnings after them.
    fn history(&self, run: &RunDir, step: u64) -> Result<(EventFile, Warnings), CliError> {
        // A new run has no line yet.
        let metrics = run.read_metrics().unwrap_or_default();
        logs::warn_of_gap(run, &metrics, step);
        let events = logs::event_file(run, &metrics)?;
        let mut lines = Vec::new();
        for (step, values) in metrics.steps() {
            let mut line = StepMetrics::new(step);
            line.extend(values.into_iter().map(|(name, value)| (name.to_string(), value)));
            lines.push(line);
        }
        Ok((events, Warnings::after(lines)))
    }

    /// A failure of the loop. Two reward programs with one reward name are named by their command lines.
    fn failure(&self, error: grpo::Error) -> CliError {
        match &error {
            grpo::Error::RewardNames { name, rewards } if !self.section.reward.is_empty() => {
                let [first, second] = rewards.map(|at| &self.section.reward[at]);
                let message = format!(
                    "reward programs {first:?} and {second:?}: expected different reward names, found {name:?} in both"
                );
                CliError::new(Exit::Data, message)
                    .hint("a reply names its reward itself: {\"id\": 0, \"rewards\": {\"NAME\": 1.0}}")
            }
            _ => error.into(),
        }
    }
}

/// The number of steps of a run with rewards.
fn steps_of(config: &RunConfig) -> u64 {
    config.grpo.as_ref().map_or(0, |grpo| grpo.steps as u64)
}
