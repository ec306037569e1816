//! Gate: one operation of the table on the GPU of this machine, or on an emulated one that reports errors as a device
//! does. The GPU report (`scripts/gpu-report.sh contact`) runs each operation in its own process. A difference names
//! the kernels of its case.
#![cfg(xtrain_emu)]
use std::env;

use super::Counts;
use super::gpu::gate;
use super::table::{Entry, TABLE};
use crate::device::gpu::{Emulation, EmulatorBuild};
use crate::{Device, ThreadSchedule, testing};

/// The operation to run. Unset: `add`. `list`: prints the names of all operations.
const OPERATION: &str = "XTRAIN_TEST_OPERATION";

fn device() -> Device {
    let plain = Emulation::new(ThreadSchedule::Random(7), EmulatorBuild::Plain);
    let emulated = || Device::emulating(Emulation { late_errors: true, ..plain }).unwrap();
    testing::cuda().unwrap_or_else(emulated)
}

/// Runs the cases of an operation one by one.
fn run(entry: &Entry, device: &Device) -> Result<Counts, String> {
    let launched = || match device {
        Device::Gpu(gpu) => gpu.launched_kernels(),
        Device::Reference(_) | Device::Cpu(_) => Default::default(),
    };
    let mut total = Counts::default();
    for case in (entry.cases)() {
        let before = launched();
        let counts = gate(std::slice::from_ref(&case), device).map_err(|difference| {
            let ran = launched().into_iter().filter(|(kernel, n)| before.get(kernel) != Some(n));
            let ran: Vec<&str> = ran.map(|(kernel, _)| kernel).collect();
            let ran =
                if ran.is_empty() { "unknown without XTRAIN_CUDA_SYNC=1".into() } else { ran.join(", ") };
            format!("{difference}; kernels of this case: {ran}")
        })?;
        total.cases += counts.cases;
        total.values += counts.values;
    }
    Ok(total)
}

/// Runs `work` with the fault that `XTRAIN_TEST_FAULT` names.
fn with_planted<R>(work: impl FnOnce() -> R) -> R {
    match env::var("XTRAIN_TEST_FAULT") {
        #[cfg(feature = "faults")]
        Ok(name) => crate::faults::with(name.parse().unwrap_or_else(|e: String| panic!("{e}")), work),
        _ => work(),
    }
}

#[test]
fn an_operation_has_the_bits_of_the_reference() {
    let name = env::var(OPERATION).unwrap_or_else(|_| "add".into());
    if name == "list" {
        TABLE.iter().for_each(|entry| println!("operation {}", entry.name));
        return;
    }
    let entry = TABLE.iter().find(|entry| entry.name == name);
    let entry =
        entry.unwrap_or_else(|| panic!("{OPERATION}: expected a name of the table or list, found {name}"));
    let device = device();
    let counts =
        with_planted(|| run(entry, &device)).unwrap_or_else(|text| panic!("operation {name}: {text}"));
    println!("operation {name} on {device}: {counts}");
    assert!(counts.cases >= 4, "{counts}");
}

/// Runs the stage `contact` of the report in a dry run, with this test program, for two operations and a planted fault.
/// Returns its report.
#[cfg(all(feature = "faults", target_os = "linux"))]
fn report(fault: crate::faults::Fault) -> String {
    use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let pack = env::temp_dir().join(format!("xtrain-contact-{}", std::process::id()));
    fs::create_dir_all(&pack).unwrap();
    for name in ["gpu-report.sh", "gpu-report"] {
        symlink(scripts.join(name), pack.join(name)).unwrap();
    }
    symlink(env::current_exe().unwrap(), pack.join("test-tensor")).unwrap();
    symlink("/bin/true", pack.join("xtrain")).unwrap();
    fs::write(pack.join("commit"), "0\n").unwrap();
    let mut stage = Command::new("bash");
    stage.current_dir(&pack).args(["gpu-report.sh", "contact", "out", "--dry-run", "add", "adamw_all"]);
    let output = stage.env("XTRAIN_TEST_FAULT", fault.to_string()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(pack.join("out/contact.md")).unwrap();
    assert_eq!(fs::read_to_string(pack.join("out/failed")).unwrap(), "adamw_all\n", "{text}");
    fs::remove_dir_all(&pack).unwrap();
    text
}

#[test]
#[cfg(all(feature = "faults", target_os = "linux"))]
fn the_report_names_the_operation_and_the_kernel_of_a_planted_fault() {
    let text = report(crate::faults::Fault::TailOfTensorNotUpdated);
    println!("{text}");
    let row = |title: &str| {
        text.lines().find(|line| line.contains(title)).unwrap_or_else(|| panic!("{title}: {text}"))
    };
    assert!(row("| operation add |").contains("| passed |"), "{text}");
    let failed = row("| operation adamw_all |");
    assert!(failed.contains("FAILED (101): operation adamw_all: gpu: adamw_all/"), "{failed}");
    assert!(failed.contains("kernels of this case: ") && failed.contains("adamw_"), "{failed}");
}
