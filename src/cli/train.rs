//! `xtrain train`: a model from text.
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use toml::Value;

use super::common::{Common, Layers, Seed};
use super::{CliError, out};
use crate::config::{Layer, RunConfig};
use crate::report::units;

/// Flags of `xtrain train`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Ctrl-C finishes the step and saves; --resume goes on to the bytes that the run would have had.

Examples:
  xtrain train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt
  xtrain train -c configs/shakespeare.toml --set train.steps=500 --set train.schedule=wsd --dry-run
  xtrain train --resume runs/shakespeare")]
pub struct TrainArgs {
    /// Text, JSONL or packed tokens to train on; stands for data.files.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// Directory of the new run [default: runs/ and the name of the last configuration file].
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Goes on with a run: its directory, or its name under runs/.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "run", "data"])]
    pub resume: Option<PathBuf>,
    /// Prints the resolved configuration and what it takes, and ends.
    #[arg(long)]
    pub dry_run: bool,
    /// The configuration.
    #[command(flatten)]
    pub layers: Layers,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Trains, or says what would be trained.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &TrainArgs) -> Result<(), CliError> {
    args.common.check()?;
    let config = RunConfig::load(&args.config_layers())?;
    if args.dry_run {
        return out::print(format!("{}{}", summary(&config), config.to_toml()));
    }
    Err(CliError::absent("train"))
}

impl TrainArgs {
    /// The configuration's layers: files, `--set`, and the flags that stand for a key.
    pub fn config_layers(&self) -> Vec<Layer> {
        let mut layers = self.layers.layers();
        if !self.data.is_empty() {
            let files = self.data.iter().map(|file| Value::String(file.to_string_lossy().into_owned()));
            layers.push(Layer::Flag {
                flag: "--data",
                key: "data.files",
                value: Value::Array(files.collect()),
            });
        }
        if let Some(seed) = self.seed.seed {
            let value = i64::try_from(seed).map_or_else(|_| Value::String(seed.to_string()), Value::Integer);
            layers.push(Layer::Flag { flag: "--seed", key: "train.seed", value });
        }
        if let Some(name) = self.common.dtype.and_then(|dtype| dtype.to_possible_value()) {
            let value = Value::String(name.get_name().to_string());
            layers.push(Layer::Flag { flag: "--dtype", key: "train.dtype", value });
        }
        layers
    }

    /// The directory of a new run: `--run`, or `runs/` and the stem of the last configuration file.
    pub fn new_run(&self) -> PathBuf {
        let stem = self.layers.config.last().and_then(|file| file.file_stem());
        let named = || Path::new("runs").join(stem.unwrap_or("train".as_ref()));
        self.run.clone().unwrap_or_else(named)
    }
}

/// What a configuration amounts to, as comments of TOML.
fn summary(config: &RunConfig) -> String {
    let train = &config.train;
    let tokens = train.batch as u64 * train.context as u64;
    let rows = match (config.model.vocab, config.data.tokenizer.as_str()) {
        (0, "bytes") => "with 256 rows of embedding",
        (0, _) => "without the rows of embedding, which the tokenizer decides",
        _ => "in all",
    };
    let known = if config.data.tokenizer == "bytes" { 256 } else { 0 };
    format!(
        "# parameters: {} ({rows})\n# tokens: {} a step, {} in all\n",
        units::count(config.model.parameters(known)),
        units::count(tokens),
        units::count(tokens.saturating_mul(train.steps as u64)),
    )
}
