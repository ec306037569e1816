//! The directory in which reward programs run.
use crate::cli::exit::CliError;
use crate::config::{Layer, RunConfig};

/// Clears `grpo.reward_dir` if `grpo.reward` is set, and the directory only in an earlier file or not at all: relative
/// paths of these commands are meant from the working directory. Flags and `--set` are later than all files.
///
/// # Errors
/// A layer is invalid.
pub(super) fn clear_if_older(config: &mut RunConfig, layers: &[Layer]) -> Result<(), CliError> {
    let is_typed = |layer: &&Layer| matches!(layer, Layer::Set(_) | Layer::Flag { .. });
    let (typed, files): (Vec<&Layer>, Vec<&Layer>) = layers.iter().partition(is_typed);
    let mut is_older = false;
    for place in files.chunks(1).chain([&typed[..]]) {
        let mut keys = Vec::new();
        for layer in place {
            keys.extend(layer.values()?.into_iter().map(|(key, _)| key));
        }
        let sets = |name: &str| keys.iter().any(|key| key == name);
        is_older = !sets("grpo.reward_dir") && (is_older || sets("grpo.reward"));
    }
    if let Some(grpo) = config.grpo.as_mut().filter(|_| is_older) {
        grpo.reward_dir.clear();
    }
    Ok(())
}
