//! What `xtrain train --dry-run` prints.
use std::path::Path;

use super::train::TrainArgs;
use super::{CliError, init, out, source};
use crate::config::RunConfig;
use crate::memory;
use crate::report::units;
use crate::run::RunDir;
use crate::training;

/// Prints what would be trained, from configuration and headers: no device, no weights, no data.
///
/// # Errors
/// See [`super::Exit`].
pub(super) fn run(args: &TrainArgs) -> Result<(), CliError> {
    let config = match &args.resume {
        Some(name) => args.resumed(&RunDir::open(name)?)?.1,
        None => {
            let mut config = RunConfig::load(&args.config_layers())?;
            init::describe(&mut config)?;
            config
        }
    };
    out::print(format!("{}{}", summary(&config)?, config.to_toml()))
}

/// What a configuration amounts to, as comments of TOML.
fn summary(config: &RunConfig) -> Result<String, CliError> {
    let train = &config.train;
    let tokens = train.batch as u64 * train.context as u64;
    let tokenizer = Path::new(&config.data.tokenizer);
    let vocab = match config.model.vocab {
        0 if tokenizer.exists() || config.data.tokenizer == "bytes" => {
            Some(source::tokenizer(&config.data.tokenizer)?.vocab_size())
        }
        0 => None,
        rows => Some(rows),
    };
    let rows = match vocab {
        Some(rows) => format!("with {rows} rows of embedding"),
        None => "without the rows of embedding, which the tokenizer decides".to_string(),
    };
    let cfg = training::model_config(config, vocab.unwrap_or(1));
    let compute = training::compute(train.dtype);
    let memory = memory::memory(&cfg, compute)?;
    let at_once = train.micro_batch * train.context;
    let kept = memory::activations(&cfg, compute, training::keep(config), at_once);
    let lines = [
        ("parameters", format!("{} ({rows})", units::count(config.model.parameters(vocab.unwrap_or(0))))),
        (
            "tokens",
            format!(
                "{} a step, {} in all",
                units::count(tokens),
                units::count(tokens.saturating_mul(train.steps as u64))
            ),
        ),
        (
            "memory",
            format!(
                "about {}: weights {}, gradients {}, moments {}, packed copies {}, activations {}",
                units::bytes(memory.to_train() + kept),
                units::bytes(memory.weights),
                units::bytes(memory.gradients),
                units::bytes(memory.moments),
                units::bytes(memory.packed + memory.packed_backward),
                units::bytes(kept),
            ),
        ),
    ];
    Ok(lines.iter().map(|(what, text)| format!("# {what}: {text}\n")).collect())
}
