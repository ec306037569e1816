//! Flags and report of preemption.
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::byte_size::byte_size;
use super::{CliError, Exit};
use crate::decode::{Counters, Engine, EngineOptions, OffloadStore, Preemption};

/// Preemption flags. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scheduler")]
pub(super) struct OffloadFlags {
    /// What happens to the keys and values of a sequence that is preempted because the cache is full.
    #[arg(long, value_name = "HOW", default_value = "recompute")]
    preempt: PreemptArg,
    /// Off-load to a file in this directory instead of host memory. It has no name: a killed command leaves nothing.
    #[arg(long, value_name = "DIR")]
    offload_dir: Option<PathBuf>,
    /// Maximum size of what is off-loaded, for example 500MB or 2GiB. What does not fit is computed again
    /// [default: 1GiB].
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    offload_limit: Option<u64>,
}

/// The default of `--offload-limit`.
const LIMIT: u64 = 1 << 30;

/// What happens to the keys and values of a preempted sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PreemptArg {
    /// They are computed again when it continues.
    Recompute,
    /// They move to host memory or to a file, and return when it continues.
    Offload,
    /// The one that an estimate finds cheaper.
    Auto,
}

impl OffloadFlags {
    /// `options` with these flags.
    pub(super) fn apply(&self, options: EngineOptions) -> EngineOptions {
        let preemption = match self.preempt {
            PreemptArg::Recompute => Preemption::Recompute,
            PreemptArg::Offload => Preemption::Offload,
            PreemptArg::Auto => Preemption::Auto,
        };
        EngineOptions { preemption, ..options }
    }

    /// Gives the store of these flags to `engine`.
    ///
    /// # Errors
    /// The directory does not exist or cannot be written.
    pub(super) fn set_store(&self, engine: &mut Engine<'_>) -> Result<(), CliError> {
        if self.preempt == PreemptArg::Recompute {
            let flag = match (&self.offload_dir, self.offload_limit) {
                (None, None) => return Ok(()),
                (Some(dir), _) => format!("--offload-dir {}", dir.display()),
                (None, Some(_)) => "--offload-limit".to_string(),
            };
            let message = format_args!("{flag}: nothing is off-loaded");
            return Err(CliError::new(Exit::Usage, message).hint("add --preempt offload or --preempt auto"));
        }
        let limit = usize::try_from(self.offload_limit.unwrap_or(LIMIT)).unwrap_or(usize::MAX);
        let store = match &self.offload_dir {
            None => OffloadStore::in_memory(limit),
            Some(dir) => OffloadStore::in_directory(dir, limit).map_err(|error| {
                let message = format_args!("--offload-dir {}: {error}", dir.display());
                CliError::new(Exit::of_io(error.kind()), message)
            })?,
        };
        Ok(engine.offload_to(store)?)
    }

    /// Prints the error of a file that failed.
    pub(super) fn warn(&self, engine: &Engine<'_>) {
        if let Some(error) = engine.offload_store().error() {
            eprintln!("warning: the off-load file failed ({error}): sequences were computed again instead");
        }
    }

    /// What preemption did. `None`: no sequence was preempted.
    pub(super) fn report(&self, engine: &Engine<'_>) -> Option<String> {
        let Counters { preemptions, offloaded_rows, restored_rows, .. } = engine.counters();
        let rows = match self.preempt {
            PreemptArg::Recompute => String::new(),
            _ => format!(", {offloaded_rows} tokens off-loaded, {restored_rows} restored"),
        };
        (preemptions > 0).then(|| format!("{preemptions} preemptions{rows}"))
    }
}
