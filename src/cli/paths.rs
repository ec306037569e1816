//! Paths of a configuration that do not depend on the working directory.
use std::path::{Path, absolute};

use super::CliError;
use super::loaded;
use crate::config::RunConfig;

/// Makes the paths of a configuration absolute. Those inside the commands of reward programs are relative to
/// `grpo.reward_dir`, which becomes the working directory if it is empty.
pub(super) fn make_absolute(config: &mut RunConfig) -> Result<(), CliError> {
    if !config.train.init.is_empty()
        && let Ok(found) = loaded::find(Path::new(&config.train.init))
    {
        config.train.init = found.to_string_lossy().into_owned();
    }
    let data = &mut config.data;
    let mut paths: Vec<&mut String> = data.files.iter_mut().chain(&mut data.val_files).collect();
    paths.push(&mut config.train.init);
    if data.tokenizer != "bytes" {
        paths.push(&mut data.tokenizer);
    }
    if let Some(grpo) = &mut config.grpo {
        if !grpo.reward.is_empty() && grpo.reward_dir.is_empty() {
            grpo.reward_dir = ".".into();
        }
        paths.extend([&mut grpo.prompts, &mut grpo.eval_prompts, &mut grpo.reward_dir]);
    }
    for path in paths.into_iter().filter(|path| !path.is_empty()) {
        let whole = absolute(&*path).map_err(|error| CliError::io(Path::new(&*path), &error))?;
        *path = whole.to_string_lossy().into_owned();
    }
    Ok(())
}
