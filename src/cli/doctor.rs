//! `xtrain doctor`: lists the devices of this build and this machine.
use clap::Args;
use serde::Serialize;

use super::{CliError, out};
use crate::build_info::COMMIT;
use crate::report::units;
use crate::tensor::{GpuInfo, GpuSurvey, Simd, enumerate_gpus};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  xtrain doctor
  xtrain doctor --json")]
pub(super) struct DoctorArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The output of `--json`. Missing devices are null; `missing` has the reasons.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    commit: &'static str,
    cores: usize,
    simd: String,
    cuda_driver: Option<String>,
    gpus: Vec<Gpu>,
    gpu_kernels: Option<&'static str>,
    emulator: bool,
    missing: Vec<String>,
}

#[derive(Serialize)]
struct Gpu {
    name: String,
    architecture: String,
    bytes: usize,
}

pub(super) fn run(args: &DoctorArgs) -> Result<(), CliError> {
    let report = Report::of(enumerate_gpus());
    if args.json { out::print_json(&report) } else { out::print(report.text()) }
}

impl Report {
    fn of(survey: GpuSurvey) -> Report {
        let GpuSurvey { driver, devices, kernels, has_kernels, emulator, has_emulator } = survey;
        let no_gpus = driver.as_ref().and(devices.as_ref()).err().cloned();
        let no_kernels = format!("GPU kernels: {}", kernels.trim_start_matches("none: "));
        let no_emulator = (!has_emulator).then(|| emulator.to_string());
        let missing = [no_gpus, (!has_kernels).then_some(no_kernels), no_emulator];
        let gpu = |GpuInfo { name, architecture, bytes, .. }| Gpu { name, architecture, bytes };
        Report {
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            simd: Simd::detect().to_string(),
            cuda_driver: driver.ok(),
            gpus: devices.unwrap_or_default().into_iter().map(gpu).collect(),
            gpu_kernels: has_kernels.then_some(kernels),
            emulator: has_emulator,
            missing: missing.into_iter().flatten().collect(),
        }
    }

    fn text(&self) -> String {
        let or_none = |text: Option<&str>| text.unwrap_or("none").to_string();
        let mut lines = vec![
            ("xtrain", format!("{} (commit {})", self.version, self.commit)),
            ("cpu", format!("{} cores, {}", self.cores, self.simd)),
            ("cuda driver", or_none(self.cuda_driver.as_ref().map(|v| format!("CUDA {v}")).as_deref())),
        ];
        let gpu = |(i, gpu): (usize, &Gpu)| {
            format!("cuda:{i}, {}, {}, {}", gpu.name, gpu.architecture, units::bytes(gpu.bytes as u64))
        };
        lines.extend(self.gpus.iter().enumerate().map(|entry| ("gpu", gpu(entry))));
        lines.push(("gpu kernels", or_none(self.gpu_kernels)));
        lines.push(("emulator", if self.emulator { "available" } else { "none" }.to_string()));
        lines.extend(self.missing.iter().map(|why| ("missing", why.clone())));
        lines.iter().map(|(name, value)| format!("{name:12} {value}\n")).collect()
    }
}
