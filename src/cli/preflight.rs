//! Checks of a training run before its first step.
use std::collections::HashMap;
use std::fs;

use super::exit::{CliError, Exit};
use crate::config::{DataSection, DecayKind, RunConfig, TaskKind};
use crate::model::tokenizer::Tokenizer;
use crate::report::units;
use crate::tensor::faults::{self, Fault};

/// Checks that the model has a row for every token, and that `sample.prompt` can be continued. Warns of files that are
/// named twice.
pub(super) fn check(config: &RunConfig, tokenizer: &Tokenizer) -> Result<(), CliError> {
    check_vocabulary(config, tokenizer.vocab_size())?;
    if config.train.sample_every > 0 {
        check_prompt(config, tokenizer)?;
    }
    repeated_files(&config.data).iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(())
}

/// Warns of settings that the number of steps leaves without effect.
pub(super) fn warn_of_steps(config: &RunConfig) {
    warn_of_patience(config);
    warn_of_short_decay(config);
}

/// What to say about files that are named more than once.
fn repeated_files(data: &DataSection) -> Vec<String> {
    let train = data.files.iter().map(|file| (file, "data.files"));
    let validation = data.val_files.iter().map(|file| (file, "data.val_files"));
    let (mut seen, mut warnings) = (HashMap::new(), Vec::new());
    for (file, key) in train.chain(validation) {
        let path = fs::canonicalize(file).unwrap_or_else(|_| file.into());
        match seen.insert(path, key) {
            _ if faults::on(Fault::RepeatedFilesUnreported) => {}
            None => {}
            Some(first) if first == key => warnings.push(format!("`{key}` has {file} more than once")),
            Some(_) => warnings.push(format!(
                "{file} is training and validation data: the validation loss measures what was trained"
            )),
        }
    }
    warnings
}

/// Compares the vocabulary of the model with that of the tokenizer, `tokens` ids.
pub(super) fn check_vocabulary(config: &RunConfig, tokens: usize) -> Result<(), CliError> {
    let (rows, name, init) = (config.model.vocab, &config.data.tokenizer, &config.train.init);
    if rows == 0 {
        return Ok(());
    }
    if rows < tokens && init.is_empty() {
        let message = format_args!(
            "`model.vocab` = {rows}: expected at least {tokens}, the vocabulary of the tokenizer {name}"
        );
        return Err(CliError::new(Exit::Usage, message)
            .hint("remove model.vocab: its default is the vocabulary of the tokenizer"));
    }
    if rows < tokens {
        let message = format_args!(
            "`data.tokenizer` = {name}: expected a vocabulary of at most {rows}, that of {init}, found {tokens}"
        );
        return Err(CliError::new(Exit::Usage, message)
            .hint("remove data.tokenizer: the tokenizer is that of --init"));
    }
    if init.is_empty() && rows / 2 >= tokens {
        eprintln!(
            "warning: `model.vocab` = {rows}: {name} has {tokens} tokens; the other {} rows are not trained",
            rows - tokens
        );
    }
    Ok(())
}

/// Checks that `sample.prompt` has at least one token and leaves room for another one.
pub(super) fn check_prompt(config: &RunConfig, tokenizer: &Tokenizer) -> Result<(), CliError> {
    let prompt = &config.sample.prompt;
    if prompt.is_empty() && config.train.task == TaskKind::Sft {
        return Ok(()); // the first held-out turn
    }
    let refused = |problem: String| {
        let message = format_args!("`sample.prompt`: {problem}");
        CliError::new(Exit::Usage, message).hint("set another prompt, or train.sample_every=0 for no samples")
    };
    let ids = tokenizer.encode_with_bos(prompt);
    let ids =
        ids.map_err(|error| refused(format!("expected text of the tokenizer, found {prompt:?}: {error}")))?;
    let context = config.train.context.max(config.model.max_positions);
    match ids.len() {
        0 => Err(refused(format!("expected at least 1 token, found none in {prompt:?}"))),
        n if n >= context => {
            let want = format!("at most {} tokens, one less than the context of the model", context - 1);
            Err(refused(format!("expected {want}, found {n}")))
        }
        _ => Ok(()),
    }
}

/// Warns if the warm-up takes steps of the decay.
pub(super) fn warn_of_short_decay(config: &RunConfig) {
    let RunConfig { train, .. } = config;
    let decays = matches!(train.schedule, DecayKind::Wsd | DecayKind::WsdCosine | DecayKind::WsdSqrt);
    let left = train.steps - train.warmup;
    if decays && train.decay > left {
        eprintln!(
            "warning: the decay is cut to {}: `train.decay` = {}, but `train.warmup` = {} leaves {left} of `train.steps` = {}",
            units::many(left as u64, "step"),
            train.decay,
            train.warmup,
            train.steps
        );
    }
}

/// Warns if the run has too few evaluations for `train.patience`.
fn warn_of_patience(config: &RunConfig) {
    let (patience, steps) = (config.train.patience, config.train.steps);
    // the run ends at the last step anyway
    let evaluations = (steps - 1) / config.train.eval_every.max(1);
    if patience > 0 && evaluations <= patience {
        eprintln!(
            "warning: `train.patience` = {patience} has no effect: expected at least {} evaluations before the last \
             step, found {evaluations}",
            patience + 1
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_named_twice_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            fs::write(&path, "text").unwrap();
            path.to_string_lossy().into_owned()
        };
        let (a, b) = (file("a"), file("b"));
        let again = dir.path().join(".").join("a").to_string_lossy().into_owned();
        let warnings = |files: &[&String], val_files: &[&String]| {
            let [files, val_files] =
                [files, val_files].map(|all| all.iter().map(|file| file.to_string()).collect());
            repeated_files(&DataSection { files, val_files, ..DataSection::default() })
        };
        assert_eq!(warnings(&[&a], &[&b]), Vec::<String>::new());
        assert_eq!(warnings(&[&a, &b, &again], &[]), [format!("`data.files` has {again} more than once")]);
        let both = "is training and validation data: the validation loss measures what was trained";
        assert_eq!(warnings(&[&a, &b], &[&again]), [format!("{again} {both}")]);
        #[cfg(feature = "faults")]
        assert!(faults::with(Fault::RepeatedFilesUnreported, || warnings(&[&a, &a], &[])).is_empty());
    }
}
