//! The configuration that a resumed run continues with.
use crate::cli::exit::{CliError, Exit};
use crate::cli::resumed::{ResumedConfig, resumed};
use crate::config::{GrpoSection, Layer, RunConfig};
use crate::run::RunDir;

/// The keys that a resume may change: the learning rate, its schedule, and keys on which no weight, no metric and no
/// completion depends. The reward programs and the prompts are the same at other places.
const MAY_CHANGE: [&str; 16] = [
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
    let programs = |config: &RunConfig| config.grpo.as_ref().map(|grpo: &GrpoSection| grpo.reward.len());
    if programs(&config.old) == programs(&config.new.config) {
        return Ok(config);
    }
    let message = "--resume cannot change grpo.reward in the number of its commands";
    Err(CliError::new(Exit::Usage, message).hint("start a new run with other rewards"))
}
