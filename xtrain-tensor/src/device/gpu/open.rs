//! Opens CUDA devices.
use super::cuda::Cuda;
use super::handle::Gpu;
use super::launch_options::{LaunchOptions, WgmmaUse};
use super::wgmma_probe;
use crate::error::{Error, Result};

impl Gpu {
    /// Opens the CUDA device with this ordinal; see [`Device::cuda`](crate::Device::cuda).
    pub(crate) fn cuda(ordinal: u32) -> Result<Gpu> {
        let options = LaunchOptions::from_env()?;
        let gpu = Gpu::with_launcher(Box::new(Cuda::open(ordinal, options.dependent)?), options);
        if options.wgmma != WgmmaUse::Never && same_bits(&gpu)? {
            gpu.allow_wgmma(options.wgmma);
        }
        Ok(gpu)
    }
}

/// Whether `wgmma` has the bits of `mma.sync` on this device.
fn same_bits(gpu: &Gpu) -> Result<bool> {
    let hint = "XTRAIN_CUDA_WGMMA=0 opens the device without this comparison";
    let failed = |e| Error::device(format!("comparing wgmma with mma.sync: {e}; {hint}"));
    wgmma_probe::has_the_bits_of_mma_sync(gpu).map_err(failed)
}
