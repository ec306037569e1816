//! Opens CUDA devices.
use super::cuda::Cuda;
use super::handle::Gpu;
use super::launch_options::{LaunchOptions, WgmmaUse};
use super::wgmma_probe;
use crate::error::Result;

impl Gpu {
    /// Opens the CUDA device with this ordinal; see [`Device::cuda`](crate::Device::cuda).
    pub(crate) fn cuda(ordinal: u32) -> Result<Gpu> {
        let options = LaunchOptions::from_env()?;
        let gpu = Gpu::with_launcher(Box::new(Cuda::open(ordinal, options.dependent)?), options);
        if options.wgmma != WgmmaUse::Never && wgmma_probe::has_the_bits_of_mma_sync(&gpu)? {
            gpu.allow_wgmma(options.wgmma);
        }
        Ok(gpu)
    }
}
