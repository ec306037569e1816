//! Flags and report of preemption.
use clap::{Args, ValueEnum};

use super::CliError;
use super::layer_offload::LayerOffloadFlags;
use crate::decode::{Counters, Engine, EngineOptions, KvMemory, Preemption};
use crate::report::units;
use crate::tensor::Device;

/// Preemption flags. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scheduler")]
pub(super) struct OffloadFlags {
    /// What happens to the keys and values of a sequence that is preempted because the cache is full.
    #[arg(long, value_name = "HOW", default_value = "recompute")]
    preempt: PreemptArg,
    #[command(flatten)]
    layers: LayerOffloadFlags,
}

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

    /// The memory of the KV cache of these flags.
    ///
    /// # Errors
    /// A flag that has no effect; the directory does not exist or cannot be written.
    pub(super) fn memory(&self, device: &Device) -> Result<KvMemory, CliError> {
        let also = "add --preempt offload, --preempt auto or --kv-resident";
        self.layers.memory(device, (self.preempt == PreemptArg::Recompute).then_some(also))
    }

    /// Gives the store of these flags to `engine`.
    ///
    /// # Errors
    /// The directory does not exist or cannot be written.
    pub(super) fn set_store(&self, engine: &mut Engine<'_>) -> Result<(), CliError> {
        match self.preempt {
            PreemptArg::Recompute => Ok(()),
            PreemptArg::Offload | PreemptArg::Auto => Ok(engine.offload_to(self.layers.store()?)?),
        }
    }

    /// Prints the error of a file that failed.
    pub(super) fn warn(&self, engine: &Engine<'_>) {
        if let Some(error) = engine.offload_store().error() {
            eprintln!("warning: the offload file failed ({error}): sequences were computed again instead");
        }
    }

    /// What preemption did. `None`: no sequence was preempted.
    pub(super) fn report(&self, engine: &Engine<'_>) -> Option<String> {
        let Counters { preemptions, offloaded_rows, restored_rows, .. } = engine.counters();
        let rows = match self.preempt {
            PreemptArg::Recompute => String::new(),
            _ => format!(", {offloaded_rows} tokens offloaded, {restored_rows} restored"),
        };
        (preemptions > 0).then(|| units::many(preemptions, "preemption") + &rows)
    }
}
