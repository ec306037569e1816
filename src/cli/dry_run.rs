//! The output of `xtrain train --dry-run`.
use std::path::Path;

use super::estimate::{GrpoMemory, PROGRAM, TrainingMemory, grpo_model};
use super::{CliError, estimate, out, preflight, source};
use crate::config::{DataSection, Resolved};
use crate::report::units;

/// Warns of data files that do not exist.
pub(super) fn warn_of_missing(data: &DataSection) {
    for file in data.files.iter().chain(&data.val_files).filter(|file| !Path::new(file).exists()) {
        eprintln!("warning: {file}: not found");
    }
}

/// Prints parameters, tokens and memory of the run as comments, followed by the configuration as TOML.
pub(super) fn print(resolved: &Resolved, processes: usize) -> Result<(), CliError> {
    let config = &resolved.config;
    let train = &config.train;
    let tokenizer = &config.data.tokenizer;
    let tokens = match tokenizer == "bytes" || Path::new(tokenizer).exists() {
        true => Some(source::tokenizer(tokenizer)?.vocab_size()),
        false => None,
    };
    tokens.map_or(Ok(()), |tokens| preflight::check_vocabulary(config, tokens))?;
    let vocab = if config.model.vocab == 0 { tokens } else { Some(config.model.vocab) };
    let embedding = match vocab {
        Some(vocab) => format!("vocabulary of {vocab}"),
        None => "without the embedding: the vocabulary size depends on the tokenizer".to_string(),
    };
    let per_step = train.batch as u64 * train.context as u64;
    let memory = TrainingMemory::of(config, vocab.unwrap_or(1), processes)?;
    let TrainingMemory { model, activations, program, exchange } = memory;
    let of_processes = of_processes(exchange, processes);
    out::print(format!(
        "# parameters: {} ({embedding})\n\
         # tokens: {} per step, {} in total\n\
         # memory: about {}: weights {}, gradients {}, optimizer state {}, packed weights {}, activations {}, \
         program {}{of_processes}\n{}",
        units::count(estimate::model(config, vocab.unwrap_or(0)).n_params() as u64),
        units::count(per_step),
        units::count(per_step.saturating_mul(train.steps as u64)),
        units::bytes(memory.total()),
        units::bytes(model.weights),
        units::bytes(model.gradients),
        units::bytes(model.moments),
        units::bytes(model.packed + model.packed_backward),
        units::bytes(activations),
        units::bytes(program),
        resolved.to_toml(),
    ))
}

/// The part of a line of memory about several processes.
fn of_processes(exchange: u64, processes: usize) -> String {
    match processes {
        1 => String::new(),
        _ => format!(", exchange between processes {}", units::bytes(exchange)),
    }
}

/// Prints parameters, batch and memory of a run of reinforcement learning as comments, followed by the configuration.
pub(super) fn print_grpo(resolved: &Resolved, prompt_len: usize, processes: usize) -> Result<(), CliError> {
    let config = &resolved.config;
    let section = config.grpo.clone().unwrap_or_default();
    let memory = GrpoMemory::of(config, prompt_len, processes)?;
    let GrpoMemory { train, activations, cache, reference, base, exchange } = memory;
    out::print(format!(
        "# parameters: {}\n\
         # batch: {} prompts x {} completions of at most {} tokens; {} completions per generation batch\n\
         # memory: about {}: weights, gradients and optimizer {}, activations and logits {}, KV cache {}, reference \
         model {}, base model {}, program {}{}\n{}",
        units::count(grpo_model(config)?.n_params() as u64),
        section.prompts_per_step,
        section.num_generations,
        section.max_completion_length,
        section.completions(),
        units::bytes(memory.total()),
        units::bytes(train),
        units::bytes(activations),
        units::bytes(cache),
        units::bytes(reference),
        units::bytes(base),
        units::bytes(PROGRAM),
        of_processes(exchange, processes),
        resolved.to_toml(),
    ))
}
