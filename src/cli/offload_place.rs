//! Flags that set the destination of offloaded data.
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use super::byte_size::{byte_size, saturating_usize};
use super::{CliError, Exit};
use crate::decode::{LayerOffload, OffloadStore};
use crate::tensor::Device;

/// Host memory or a file, and the maximum size.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Offload")]
pub(super) struct OffloadPlace {
    /// Offload to an unnamed file in this directory instead of host memory. A killed command leaves no file behind.
    #[arg(long, value_name = "DIR")]
    offload_dir: Option<PathBuf>,
    /// Maximum size of the offloaded layers, for example 500MB or 2GiB; the same limit applies separately to preempted
    /// sequences. Layers that need more are an error; sequences that do not fit are computed again [default: 1GiB].
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    offload_limit: Option<u64>,
}

/// The default of `--offload-limit`.
const LIMIT: u64 = 1 << 30;

impl OffloadPlace {
    /// Layer-wise offload to this place. `resident`: the most bytes that stay in the memory of the device.
    ///
    /// # Errors
    /// The directory does not exist or cannot be written; the device is the CPU and no directory is given.
    pub(super) fn layers(&self, resident: usize, device: &Device) -> Result<LayerOffload, CliError> {
        match &self.offload_dir {
            Some(dir) => in_directory(dir, resident, self.limit()),
            None if matches!(device, Device::Gpu(_)) => Ok(LayerOffload::in_memory(resident, self.limit())),
            None => {
                let message =
                    "--kv-resident on the CPU requires --offload-dir: host memory has the cache already";
                Err(CliError::new(Exit::Usage, message).hint("add --offload-dir DIR"))
            }
        }
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

    /// Refuses the flags if nothing is offloaded. `also`: the hint of the error. `None`: preempted sequences are
    /// offloaded, so the flags have an effect.
    pub(super) fn require_unused(&self, also: Option<&str>) -> Result<(), CliError> {
        let flag = match (&self.offload_dir, self.offload_limit, also) {
            (None, None, _) | (_, _, None) => return Ok(()),
            (Some(dir), ..) => format!("--offload-dir {}", dir.display()),
            (None, Some(_), _) => "--offload-limit".to_string(),
        };
        let message = format_args!("{flag}: nothing is offloaded");
        Err(CliError::new(Exit::Usage, message).hint(also.unwrap_or_default()))
    }

    fn limit(&self) -> usize {
        saturating_usize(self.offload_limit.unwrap_or(LIMIT))
    }
}

/// [`LayerOffload::in_directory`].
///
/// # Errors
/// The directory does not exist or cannot be written.
pub(super) fn in_directory(dir: &Path, resident: usize, limit: usize) -> Result<LayerOffload, CliError> {
    LayerOffload::in_directory(dir, resident, limit).map_err(|error| failed(dir, &error))
}

fn failed(dir: &Path, error: &io::Error) -> CliError {
    let message = format_args!("--offload-dir {}: {error}", dir.display());
    CliError::new(Exit::of_io(error.kind()), message)
}
