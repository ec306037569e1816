//! A run that starts from the weights of a model: its sizes, and the parts of the configuration that it does not use.
use std::path::Path;

use crate::cli::exit::{CliError, Exit};
use crate::cli::{init, loaded, source};
use crate::config::check::{SHARED, tree};
use crate::config::{Layer, ModelSection, RunConfig};
use crate::model::store;

/// Whether a key of `[train]` may be set for a run with initial weights. The others describe a base model.
fn is_used(key: &str) -> bool {
    SHARED.contains(&key) || key == "train.context"
}

/// Checks the values of `[model]` and `[train]` and `data.val_files` in `layers` for a run with initial weights: it trains
/// no base model. A file may have been written for a base model. Returns the note about such files.
///
/// # Errors
/// `--set` sets a size that is not the model's, or a key without effect; a file for the validation of a base model does
/// not exist.
pub(super) fn check_unused(layers: &[Layer], config: &RunConfig) -> Result<Option<String>, CliError> {
    let init = &config.train.init;
    if init.is_empty() {
        source::require_validation_files(config)?;
        return Ok(None);
    }
    let own = store::config_of(&loaded::find(Path::new(init))?)?;
    let own = tree(&RunConfig { model: init::section(&own), ..RunConfig::default() });
    let mut files = Vec::new();
    for layer in layers {
        for (key, value) in layer.values()? {
            let size = key.strip_prefix("model.").map(|size| &own["model"][size]);
            let unused = key.starts_with("train.") && !is_used(&key) || key == "data.val_files";
            match (layer, size) {
                (Layer::File(path), size) if unused || size.is_some_and(|own| *own != value) => {
                    files.push(path.display().to_string());
                }
                (Layer::Set(_), Some(own)) if *own != value => {
                    let message =
                        format!("`{key}` = {value}: the sizes in [model] differ from those of {init}: {own}");
                    return Err(CliError::new(Exit::Usage, message)
                        .hint("remove [model]: the sizes are those of --init"));
                }
                (Layer::Set(_), _) if unused => {
                    let message = format!("`{key}` = {value}: expected no such key with initial weights");
                    return Err(CliError::new(Exit::Usage, message).hint(
                        "[train] and data.val_files are for the base model of a task; the options of this run are in \
                         [grpo]",
                    ));
                }
                _ => {}
            }
        }
    }
    files.dedup();
    Ok((!files.is_empty()).then(|| {
        format!(
            "note: [model] and [train] of {} describe a base model and are not used: the model is {init}",
            files.join(", ")
        )
    }))
}

/// The configuration with the sizes of the model that `train.init` names, whatever `[model]` says.
pub(super) fn with_sizes_of_init(mut config: RunConfig) -> Result<RunConfig, CliError> {
    if !config.train.init.is_empty() {
        let context = store::config_of(&loaded::find(Path::new(&config.train.init))?)?.max_positions;
        config.model = ModelSection::default();
        // No base model is trained: the context of its windows has no meaning.
        config.train.context = config.train.context.min(context);
        init::describe(&mut config)?;
    }
    Ok(config)
}
