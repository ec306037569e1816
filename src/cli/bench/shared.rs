//! Flags of every `xtrain bench` command.
use clap::Args;

use crate::cli::CliError;
use crate::cli::common::{Common, Layers, whole};
use crate::config::RunConfig;

/// Flags of every `xtrain bench` command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Shared {
    /// Print one JSON object with all samples.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) layers: Layers,
    /// Random seed of the weights [default: train.seed of the configuration].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub(super) seed: Option<u64>,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Shared {
    /// The configuration, with the dtype and the seed of the flags.
    pub(super) fn config(&self) -> Result<RunConfig, CliError> {
        let mut config = RunConfig::load(&self.layers.layers())?;
        config.train.dtype = self.common.dtype.unwrap_or(config.train.dtype);
        config.train.seed = self.seed.unwrap_or(config.train.seed);
        Ok(config)
    }
}
