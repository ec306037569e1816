//! Flags of layer-wise off-load: how much of a KV cache stays in memory, and where what is off-loaded goes.
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use super::byte_size::byte_size;
use super::{CliError, Exit};
use crate::decode::{KvMemory, LayerOffload, OffloadStore};
use crate::tensor::Device;

/// Where layers and preempted sequences are off-loaded to. The results are bit-identical for all values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Off-load")]
pub(super) struct LayerOffloadFlags {
    /// Maximum size of the keys and values that stay in the memory of the device, for example 64MB. The layers that do
    /// not fit are off-loaded: each pass reads them one by one, the next one while the present one is computed. At least
    /// two layers have to fit. On the CPU it requires --offload-dir. For --kv contiguous, paged and int8
    /// [default: all layers stay].
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    kv_resident: Option<u64>,
    /// Off-load to a file in this directory instead of host memory. It has no name: a killed command leaves nothing.
    #[arg(long, value_name = "DIR")]
    offload_dir: Option<PathBuf>,
    /// Maximum size of the off-loaded layers, and of the preempted sequences, each, for example 500MB or 2GiB. Layers that
    /// need more are an error; sequences that do not fit are computed again [default: 1GiB].
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    offload_limit: Option<u64>,
}

/// The default of `--offload-limit`.
const LIMIT: u64 = 1 << 30;

impl LayerOffloadFlags {
    /// The memory of the KV cache, with layers off-loaded if `--kv-resident` is given. `preempted`: sequences that are
    /// preempted are off-loaded too. `also`: a hint for flags without effect.
    ///
    /// # Errors
    /// A flag that has no effect; the directory does not exist or cannot be written.
    pub(super) fn memory(&self, device: &Device, also: Option<&str>) -> Result<KvMemory, CliError> {
        let Some(resident) = self.kv_resident else {
            self.check_used(also)?;
            return Ok(KvMemory::default());
        };
        let (resident, limit) = (size(resident), self.limit());
        let offload = match &self.offload_dir {
            Some(dir) => in_directory(dir, resident, limit)?,
            None if matches!(device, Device::Gpu(_)) => LayerOffload::in_memory(resident, limit),
            None => {
                let message =
                    "--kv-resident on the CPU requires --offload-dir: host memory has the cache already";
                return Err(CliError::new(Exit::Usage, message).hint("add --offload-dir DIR"));
            }
        };
        Ok(KvMemory::offloading(offload))
    }

    /// Checks that nothing says where to off-load to. `None`: something else is off-loaded.
    fn check_used(&self, also: Option<&str>) -> Result<(), CliError> {
        let flag = match (&self.offload_dir, self.offload_limit, also) {
            (None, None, _) | (_, _, None) => return Ok(()),
            (Some(dir), ..) => format!("--offload-dir {}", dir.display()),
            (None, Some(_), _) => "--offload-limit".to_string(),
        };
        let message = format_args!("{flag}: nothing is off-loaded");
        Err(CliError::new(Exit::Usage, message).hint(also.unwrap_or_default()))
    }

    /// The store of preempted sequences.
    ///
    /// # Errors
    /// The directory does not exist or cannot be written.
    pub(super) fn store(&self) -> Result<OffloadStore, CliError> {
        match &self.offload_dir {
            None => Ok(OffloadStore::in_memory(self.limit())),
            Some(dir) => OffloadStore::in_directory(dir, self.limit()).map_err(|error| failed(dir, &error)),
        }
    }

    fn limit(&self) -> usize {
        size(self.offload_limit.unwrap_or(LIMIT))
    }
}

/// [`LayerOffload::in_directory`].
///
/// # Errors
/// The directory does not exist or cannot be written.
pub(super) fn in_directory(dir: &Path, resident: usize, limit: usize) -> Result<LayerOffload, CliError> {
    LayerOffload::in_directory(dir, resident, limit).map_err(|error| failed(dir, &error))
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn failed(dir: &Path, error: &io::Error) -> CliError {
    let message = format_args!("--offload-dir {}: {error}", dir.display());
    CliError::new(Exit::of_io(error.kind()), message)
}
