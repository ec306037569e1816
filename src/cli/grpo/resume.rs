//! The configuration that a resumed run continues with.
use crate::cli::exit::{CliError, Exit};
use crate::cli::resumed::{ResumedConfig, resumed};
use crate::config::{Layer, RunConfig};
use crate::run::{RunDir, has_checkpoint};
use crate::tensor::faults::{self, Fault};

/// The keys that a resume may change: the number of steps, the learning rate, its schedule, and keys on which no weight,
/// no metric and no completion depends. The reward programs and the prompts are the same at other places.
const MAY_CHANGE: [&str; 17] = [
    "grpo.steps",
    "grpo.learning_rate",
    "grpo.min_learning_rate",
    "grpo.schedule",
    "grpo.warmup",
    "grpo.prompts",
    "grpo.eval_prompts",
    "grpo.reward",
    "grpo.reward_dir",
    "grpo.reward_processes",
    "grpo.reward_timeout",
    "grpo.micro_batch",
    "grpo.preallocate",
    "grpo.verify_every",
    "grpo.show_every",
    "grpo.save_every",
    "grpo.keep",
];

/// The configuration of `run` with the changes of `layers`. Fails for other changes than those of [`MAY_CHANGE`].
pub(super) fn resumed_config(run: &RunDir, layers: &[Layer]) -> Result<ResumedConfig, CliError> {
    let config = resumed(run, layers, &MAY_CHANGE)?;
    let programs = |config: &RunConfig| config.grpo.as_ref().map_or(Vec::new(), |grpo| grpo.reward.clone());
    require_same_held_out(run, &config)?;
    let (old, new) = (programs(&config.old.config), programs(&config.new.config));
    if old.len() == new.len() {
        let has_steps = has_checkpoint(run.path());
        for (old, new) in old.iter().zip(&new).filter(|(old, new)| has_steps && old != new) {
            if !faults::on(Fault::ChangedRewardUnreported) {
                eprintln!(
                    "warning: {old:?} computed the rewards so far; {new:?}, which replaces it, must compute the same rewards"
                );
            }
        }
        return Ok(config);
    }
    let message = "--resume cannot change grpo.reward in the number of its commands";
    Err(CliError::new(Exit::Usage, message).hint("start a new run with other rewards"))
}

/// Checks that a resume of a run with a checkpoint neither adds nor removes the held-out prompts of a file.
fn require_same_held_out(run: &RunDir, config: &ResumedConfig) -> Result<(), CliError> {
    let listed = |config: &RunConfig| config.grpo.as_ref().is_some_and(|grpo| !grpo.eval_prompts.is_empty());
    let path = run.path().display();
    let message = match (listed(&config.old.config), listed(&config.new.config)) {
        (false, true) => format!(
            "grpo.eval_prompts: {path} names no file of held-out prompts, and a resume cannot add one"
        ),
        (true, false) => {
            format!(
                "grpo.eval_prompts: {path} names a file of held-out prompts, and a resume cannot remove it"
            )
        }
        _ => return Ok(()),
    };
    if !has_checkpoint(run.path()) || faults::on(Fault::HeldOutFileMayChange) {
        return Ok(());
    }
    Err(CliError::new(Exit::Usage, message).hint("start a new run"))
}
