//! The flag of layer-wise offload: how much of a KV cache stays in memory.
use clap::Args;

use super::CliError;
use super::byte_size::{byte_size, saturating_usize};
use super::offload_place::OffloadPlace;
use crate::decode::{KvMemory, OffloadStore};
use crate::tensor::Device;

/// Which layers and preempted sequences are offloaded. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Offload")]
pub(super) struct LayerOffloadFlags {
    /// Maximum size of the keys and values that stay in the memory of the device, for example 64MB. The layers that do
    /// not fit are offloaded: each pass reads them one by one, the next one while the present one is computed. At least
    /// two layers have to fit. On the CPU it requires --offload-dir. For --kv contiguous, paged and int8
    /// [default: all layers stay].
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    kv_resident: Option<u64>,
    #[command(flatten)]
    place: OffloadPlace,
}

impl LayerOffloadFlags {
    /// The memory of the KV cache, with layers offloaded if `--kv-resident` is given. `also`: the hint of the
    /// error for flags without effect. `None`: preempted sequences use these flags.
    ///
    /// # Errors
    /// A flag that has no effect; the directory does not exist or cannot be written.
    pub(super) fn memory(&self, device: &Device, also: Option<&str>) -> Result<KvMemory, CliError> {
        match self.kv_resident {
            Some(resident) => {
                Ok(KvMemory::offloading(self.place.layers(saturating_usize(resident), device)?))
            }
            None => {
                self.place.require_unused(also)?;
                Ok(KvMemory::default())
            }
        }
    }

    /// The store of preempted sequences.
    ///
    /// # Errors
    /// The directory does not exist or cannot be written.
    pub(super) fn store(&self) -> Result<OffloadStore, CliError> {
        self.place.store()
    }
}
