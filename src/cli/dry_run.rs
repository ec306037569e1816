//! The output of `xtrain train --dry-run`.
use std::path::Path;

use super::{CliError, out, source};
use crate::config::RunConfig;
use crate::memory;
use crate::report::units;
use crate::training;

/// Prints parameters, tokens and memory of the run as comments, followed by the configuration as TOML.
pub(super) fn print(config: &RunConfig) -> Result<(), CliError> {
    out::print(format!("{}{}", summary(config)?, config.to_toml()))
}

/// The size and memory use of a run, as TOML comments.
fn summary(config: &RunConfig) -> Result<String, CliError> {
    let train = &config.train;
    let tokens = train.batch as u64 * train.context as u64;
    let tokenizer = Path::new(&config.data.tokenizer);
    let vocab = match config.model.vocab {
        0 if tokenizer.exists() || config.data.tokenizer == "bytes" => {
            Some(source::tokenizer(&config.data.tokenizer)?.vocab_size())
        }
        0 => None,
        vocab => Some(vocab),
    };
    let embedding = match vocab {
        Some(vocab) => format!("vocabulary of {vocab}"),
        None => "without the embedding: the vocabulary size depends on the tokenizer".to_string(),
    };
    let cfg = training::model_config(config, vocab.unwrap_or(1));
    let compute = training::compute(train.dtype);
    let memory = memory::memory(&cfg, compute)?;
    let rows = train.micro_batch * train.context;
    let activations = memory::activations(&cfg, compute, training::activation_checkpointing(config), rows);
    Ok(format!(
        "# parameters: {} ({embedding})\n\
         # tokens: {} per step, {} in total\n\
         # memory: about {}: weights {}, gradients {}, optimizer state {}, packed weights {}, activations {}\n",
        units::count(config.model.parameters(vocab.unwrap_or(0))),
        units::count(tokens),
        units::count(tokens.saturating_mul(train.steps as u64)),
        units::bytes(memory.to_train() + activations),
        units::bytes(memory.weights),
        units::bytes(memory.gradients),
        units::bytes(memory.moments),
        units::bytes(memory.packed + memory.packed_backward),
        units::bytes(activations),
    ))
}
