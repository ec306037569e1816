//! The values of `--device`.
use std::str::FromStr;

use super::exit::{CliError, Exit};
use super::launch;
use crate::tensor::{Device, Simd, ThreadSchedule};

/// A device as `--device` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceName {
    /// The CPU with an instruction set. `None`: [`Simd::detect`].
    Cpu(Option<Simd>),
    /// `None`: [`launch::gpu_of_process`].
    Cuda(Option<u32>),
    /// The CUDA kernels, run by an emulator on the CPU.
    Emulated,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<DeviceName, String> {
        let expected = || "expected cpu, cpu:SIMD, cuda, cuda:N or emulated".to_string();
        let (device, part) = name.split_once(':').map_or((name, None), |(device, part)| (device, Some(part)));
        match (device, part) {
            ("cpu", None) => Ok(DeviceName::Cpu(None)),
            ("cpu", Some(simd)) => available(simd.parse()?).map(|simd| DeviceName::Cpu(Some(simd))),
            ("emulated", None) => Ok(DeviceName::Emulated),
            ("cuda", None) => Ok(DeviceName::Cuda(None)),
            ("cuda", Some(number)) => {
                number.parse().map(|number| DeviceName::Cuda(Some(number))).map_err(|_| expected())
            }
            _ => Err(expected()),
        }
    }
}

/// Returns an instruction set that this machine has.
fn available(simd: Simd) -> Result<Simd, String> {
    let names: Vec<String> = Simd::available().map(|simd| simd.to_string()).collect();
    match Simd::available().any(|available| available == simd) {
        true => Ok(simd),
        false => Err(format!("this machine has no {simd}; it has {}", names.join(", "))),
    }
}

impl DeviceName {
    /// Opens the device, the CPU with `threads` threads or as many as the operating system grants.
    pub(super) fn open(self, threads: usize) -> Result<Device, CliError> {
        let opened = match self {
            DeviceName::Cpu(simd) => {
                let device = Device::cpu_with(threads, simd.unwrap_or_else(Simd::detect));
                if device.threads() < threads {
                    eprintln!("note: the system granted {} of {threads} threads", device.threads());
                }
                return Ok(device);
            }
            DeviceName::Cuda(number) => Device::cuda(number.unwrap_or_else(launch::gpu_of_process)),
            DeviceName::Emulated => Device::emulated(ThreadSchedule::Forward),
        };
        let hint = "run xtrain doctor to list the available devices, or use --device cpu";
        opened.map_err(|error| CliError::new(Exit::Device, error).hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_the_device_and_its_instruction_set() {
        let parse = |name: &str| name.parse::<DeviceName>();
        assert_eq!(parse("cpu"), Ok(DeviceName::Cpu(None)));
        assert_eq!(parse("cuda"), Ok(DeviceName::Cuda(None)));
        assert_eq!(parse("cuda:3"), Ok(DeviceName::Cuda(Some(3))));
        assert_eq!(parse("emulated"), Ok(DeviceName::Emulated));
        for simd in Simd::ALL {
            match parse(&format!("cpu:{simd}")) {
                Ok(name) => {
                    assert_eq!(name, DeviceName::Cpu(Some(simd)));
                    assert_eq!(name.open(1).unwrap().simd(), Some(simd));
                }
                Err(error) => {
                    assert!(
                        error.starts_with(&format!("this machine has no {simd}; it has portable")),
                        "{error}"
                    );
                    assert!(Simd::available().all(|available| available != simd), "{error}");
                }
            }
        }
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cpu:", "emulated:1", "cpu:avx2:1"] {
            assert!(parse(name).is_err(), "{name}");
        }
    }
}
