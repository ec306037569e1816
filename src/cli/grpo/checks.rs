//! Checks of a configuration before a run directory is created.
use std::path::Path;

use crate::cli::exit::{CliError, Exit};
use crate::cli::input_file::require_rereadable;
use crate::cli::{loaded, source};
use crate::config::{GrpoSection, RunConfig};
use crate::grpo;
use crate::model::store;
use crate::model::tasks::{self, PromptFile, PromptSet, Task};
use crate::model::tokenizer::Tokenizer;
use crate::report::units;
use crate::rewards::RESERVED_COLUMNS;
use crate::tensor::faults::{self, Fault};
use crate::training;

use super::prompt_limit::PromptLimit;
use super::{constraint, prompts};

/// `[grpo]` of the configuration.
pub(super) fn section(config: &RunConfig) -> Result<&GrpoSection, CliError> {
    config.grpo.as_ref().ok_or_else(|| {
        CliError::new(Exit::Usage, "the configuration has no [grpo] section")
            .hint("start with -c configs/grpo.toml, or set --task or --prompts")
    })
}

/// The task of the configuration. `None`: the prompts come from a file.
pub(super) fn task(section: &GrpoSection) -> Result<Option<Box<dyn Task + Send + Sync>>, CliError> {
    match (section.task.as_str(), section.prompts.as_str()) {
        ("", "") => Err(CliError::new(Exit::Usage, "no prompts: grpo.task and grpo.prompts are empty")
            .hint("--task NAME names a built-in task, --prompts FILE a JSONL file")),
        ("", _) if section.reward.is_empty() => {
            Err(CliError::new(Exit::Usage, "no reward: grpo.prompts requires grpo.reward")
                .hint("--reward 'python3 my_reward.py' names a reward program"))
        }
        ("", _) => Ok(None),
        (name, _) => Ok(tasks::by_name(name)),
    }
}

/// Checks the number of reward weights as far as it is known before a reward program has replied.
pub(super) fn check_weights(section: &GrpoSection) -> Result<(), CliError> {
    let (programs, found) = (section.reward.len(), section.reward_weights.len());
    if found == 0 {
        return Ok(());
    }
    if programs == 0 && found != 1 {
        return Err(grpo::Error::RewardWeights { names: vec![section.task.clone()], found }.into());
    }
    if found < programs {
        let weights = units::many(programs as u64, "weight");
        let message =
            format!("grpo.reward_weights: expected at least {weights}, one for each reward, found {found}");
        return Err(CliError::new(Exit::Usage, message));
    }
    Ok(())
}

/// Checks that no reward program occurs twice: the names of its rewards would.
pub(super) fn check_programs(section: &GrpoSection) -> Result<(), CliError> {
    let programs = &section.reward;
    match programs.iter().enumerate().find(|(at, program)| programs[..*at].contains(program)) {
        Some((_, program)) => {
            let message = format!("grpo.reward: expected different reward programs, found {program:?} twice");
            Err(CliError::new(Exit::Usage, message).hint("two rewards must not have one name"))
        }
        None => Ok(()),
    }
}

/// Checks what a new run reads before its directory is created and a base model is trained: the prompts fit in the
/// context of the model, and the constraint can be compiled.
pub(super) fn check_inputs(
    config: &RunConfig,
    section: &GrpoSection,
    task: Option<&(dyn Task + Send + Sync)>,
) -> Result<(), CliError> {
    if faults::on(Fault::InputsCheckedLate) {
        return Ok(());
    }
    let tokenizer = tokenizer(config)?;
    let cfg = training::model_config(config, tokenizer.vocab_size());
    constraint::compile(section, &tokenizer, cfg.vocab)?;
    match task {
        Some(task) => check_task_prompts(section, task, &tokenizer, cfg.max_positions)?,
        None => drop(prompts::read(section, &section.prompts, &tokenizer, &cfg)?),
    }
    if !section.eval_prompts.is_empty() {
        prompts::read(section, &section.eval_prompts, &tokenizer, &cfg)?;
    }
    Ok(())
}

/// The tokenizer of the run: that of the initial model, or else that of the configuration.
fn tokenizer(config: &RunConfig) -> Result<Tokenizer, CliError> {
    if !config.train.init.is_empty()
        && let Ok(tokenizer) = store::tokenizer_of(&loaded::find(Path::new(&config.train.init))?)
    {
        return Ok(tokenizer);
    }
    source::tokenizer(&config.data.tokenizer)
}

/// Checks that the prompts of a task have at most `grpo.max_prompt_length` tokens and fit in a context of `max_positions`.
fn check_task_prompts(
    section: &GrpoSection,
    task: &dyn Task,
    tokenizer: &Tokenizer,
    max_positions: usize,
) -> Result<(), CliError> {
    let limit = PromptLimit::new(section, max_positions);
    for text in [PromptSet::Train, PromptSet::HeldOut].into_iter().flat_map(|part| task.prompts(part)) {
        let place = format!("task {}, prompt {text:?}", task.name());
        limit.check(&place, tokenizer.encode_with_bos(&text)?.len())?;
    }
    Ok(())
}

/// Checks that the initial model and the prompts can be found, before the run directory is created.
/// A run that has a checkpoint does not need the initial model.
pub(super) fn check_files(
    config: &RunConfig,
    section: &GrpoSection,
    has_task: bool,
    started: bool,
) -> Result<(), CliError> {
    match config.train.init.as_str() {
        _ if started => {}
        "" if !has_task => return Err(no_initial_weights()),
        "" => {}
        init => drop(loaded::find(Path::new(init))?),
    }
    for file in [&section.prompts, &section.eval_prompts] {
        if !file.is_empty() {
            check_columns(section, file)?;
        }
    }
    Ok(())
}

/// Checks that no column of the prompts has a name that xtrain uses in the lines to reward programs.
fn check_columns(section: &GrpoSection, file: &str) -> Result<(), CliError> {
    require_rereadable(Path::new(file))?;
    let prompts = PromptFile::open(Path::new(file))?;
    for record in prompts.records() {
        if let Some(name) =
            ["regex", "json_schema"].into_iter().find(|name| record.columns.contains_key(*name))
        {
            let message = format!("{file}:{}: expected no field {name:?}", record.line);
            let hint = format!("set grpo.{name}, which constrains the completions of all prompts");
            return Err(CliError::new(Exit::Data, message).hint(hint));
        }
    }
    for record in prompts.records().iter().filter(|_| !section.reward.is_empty()) {
        if let Some(name) = RESERVED_COLUMNS.iter().find(|name| record.columns.contains_key(**name)) {
            let message = format!("{file}:{}: column {name:?}: expected another name", record.line);
            return Err(CliError::new(Exit::Data, message)
                .hint("this name is reserved in the lines to reward programs"));
        }
    }
    Ok(())
}

pub(super) fn no_initial_weights() -> CliError {
    CliError::new(Exit::Usage, "no initial weights: train.init is empty")
        .hint("--init MODEL names a run, a checkpoint, a Hugging Face directory or a GGUF file")
}
