//! The directory in which reward programs run.
use crate::cli::exit::CliError;
use crate::config::{Layer, RunConfig};

/// Clears `grpo.reward_dir` if a layer sets `grpo.reward`, and neither it nor a later one sets the directory: relative
/// paths of these commands are meant from the working directory.
///
/// # Errors
/// A layer is invalid.
pub(super) fn forget_older(config: &mut RunConfig, layers: &[Layer]) -> Result<(), CliError> {
    let mut is_older = false;
    for layer in layers {
        let values = layer.values()?;
        let sets = |name: &str| values.iter().any(|(key, _)| key == name);
        is_older = !sets("grpo.reward_dir") && (is_older || sets("grpo.reward"));
    }
    if let Some(grpo) = config.grpo.as_mut().filter(|_| is_older) {
        grpo.reward_dir.clear();
    }
    Ok(())
}
