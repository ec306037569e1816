//! GPU support of this build and this machine.
use super::cuda::{self, GpuInfo};

/// Available GPUs, driver, kernel image and emulator. Anything missing comes with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSurvey {
    /// CUDA version of the driver, such as `13.0`, or the reason why there is no usable driver.
    pub driver: Result<String, String>,
    /// GPUs that the driver lists, or the reason why they cannot be listed.
    pub devices: Result<Vec<GpuInfo>, String>,
    /// Kernel image of this build (architectures and compiler), or the reason why it has none.
    pub kernels: &'static str,
    /// Whether this build has GPU kernels.
    pub has_kernels: bool,
    /// Whether this build has the emulator.
    pub has_emulator: bool,
    /// `built`, or the reason why this build has no emulator.
    pub emulator: &'static str,
}

/// Lists the GPUs of this machine and the GPU support of this build.
pub fn enumerate_gpus() -> GpuSurvey {
    let version = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    GpuSurvey {
        driver: cuda::driver().map(version).map_err(|error| error.to_string()),
        devices: cuda::devices().map_err(|error| error.to_string()),
        kernels: env!("XTRAIN_IMAGE"),
        has_kernels: !cuda::IMAGE.is_empty(),
        has_emulator: cfg!(all(feature = "emu", xtrain_emu)),
        emulator: env!("XTRAIN_EMULATOR"),
    }
}
