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
        gpu.allow_wgmma(wgmma(&gpu, options.wgmma)?);
        Ok(gpu)
    }
}

/// The products of `wanted`, or none if `wgmma` has not the bits of `mma.sync` on this device.
fn wgmma(gpu: &Gpu, wanted: WgmmaUse) -> Result<WgmmaUse> {
    if wanted == WgmmaUse::Never {
        return Ok(WgmmaUse::Never);
    }
    let hint = "XTRAIN_CUDA_WGMMA=0 opens the device without this comparison";
    let failed = |e| Error::device(format!("comparing wgmma with mma.sync: {e}; {hint}"));
    let same = wgmma_probe::has_the_bits_of_mma_sync(gpu).map_err(failed)?;
    Ok(if same { wanted } else { WgmmaUse::Never })
}

#[cfg(all(test, xtrain_emu))]
mod tests {
    use super::*;
    use crate::device::gpu::{Emulation, EmulatorBuild};
    use crate::{Device, ThreadSchedule};

    #[test]
    fn wgmma_is_used_where_it_is_wanted_and_has_the_bits_of_mma_sync() {
        let hopper = Emulation::new(ThreadSchedule::Random(7), EmulatorBuild::Plain);
        let chosen = |image, wanted| wgmma(&Gpu::emulated(image).unwrap(), wanted).unwrap();
        let launches = |wanted| {
            let gpu = Gpu::emulated(hopper).unwrap();
            assert_eq!(wgmma(&gpu, wanted).unwrap(), wanted);
            Device::Gpu(gpu).gpu_counters().map(|counters| counters.launches)
        };
        assert_eq!(chosen(Emulation { wgmma: false, ..hopper }, WgmmaUse::TiledProducts), WgmmaUse::Never);
        // nothing is compared if it is not wanted
        assert_eq!(launches(WgmmaUse::Never), Some(0));
        assert!(launches(WgmmaUse::TiledProducts) > Some(0));
    }

    #[test]
    #[cfg(feature = "faults")]
    fn wgmma_with_other_bits_is_not_chosen() {
        use crate::faults::{Fault, with};
        let hopper = Emulation::new(ThreadSchedule::Random(7), EmulatorBuild::Plain);
        let chosen = || wgmma(&Gpu::emulated(hopper).unwrap(), WgmmaUse::TiledProducts).unwrap();
        assert_eq!(with(Fault::WgmmaStepDiffers, chosen), WgmmaUse::Never);
    }
}
