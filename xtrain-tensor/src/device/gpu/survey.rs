//! What this build and this machine have for GPUs.
use super::cuda;

/// What there is, and why not where something is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSurvey {
    /// The CUDA version of the driver, as `13.0`, or why there is none to use.
    pub driver: Result<String, String>,
    /// The GPUs that the driver knows, or why they cannot be told.
    pub devices: Result<Vec<GpuInfo>, String>,
    /// Which kernels for GPUs this build holds, or why none.
    pub kernels: &'static str,
    /// Whether it holds any.
    pub has_kernels: bool,
    /// Whether it holds the emulator.
    pub has_emulator: bool,
    /// `built`, or why this build has no emulator.
    pub emulator: &'static str,
}

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// What it calls itself.
    pub name: String,
    /// Its architecture, as `sm_90`.
    pub architecture: String,
    /// Its memory.
    pub bytes: usize,
}

/// Looks at this build and this machine.
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
