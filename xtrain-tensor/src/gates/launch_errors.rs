//! Gate: with `XTRAIN_CUDA_SYNC` the error of a kernel names it, on a device that reports errors late; with
//! `XTRAIN_CUDA_GRAPHS=0` no graph is launched.
#![cfg(xtrain_emu)]
use crate::device::gpu::{Emulation, EmulatorBuild, LaunchOptions};
#[cfg(feature = "faults")]
use crate::faults::{self, Fault};
use crate::gpu::{Gpu, Grid, args};
use crate::{Error, Result, ThreadSchedule};

/// An emulated GPU that reports the errors of kernels as a CUDA device does.
fn gpu(options: LaunchOptions) -> Gpu {
    let plain = Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain);
    Gpu::emulated_with(Emulation { late_errors: true, ..plain }, options).unwrap()
}

/// Runs a correct kernel and then one with a divergent barrier. Returns the result of the faulty launch and that of the
/// next download.
fn faulty_launch(gpu: &Gpu) -> (Result<()>, Result<Vec<f32>>) {
    let (x, y) = (gpu.upload(&[1f32; 64]).unwrap(), gpu.zeros(256 * 4).unwrap());
    let grid = Grid::blocks([1, 1, 1], 64);
    // SAFETY: x holds 64 values and y 256, as the kernels expect.
    let launch = |kernel| unsafe { gpu.launch(kernel, grid, args![x.arg(), y.arg()]) };
    launch("fault_uninitialised").unwrap();
    (launch("fault_divergent_barrier"), gpu.download(&y))
}

/// Checks that the error of a faulty kernel is returned by its launch and names it.
fn named_error() -> std::result::Result<(), String> {
    let (launched, _) = faulty_launch(&gpu(LaunchOptions { sync: true, ..LaunchOptions::default() }));
    let text = launched.err().map_or("no error".into(), |e| e.to_string());
    let want = "fault_divergent_barrier, grid 1 x 1 x 1, 64 threads per block, 0 bytes of shared memory: \
                unspecified launch failure";
    if text == want { Ok(()) } else { Err(text) }
}

/// Launches five kernels three times. Returns the number of graph launches.
fn graphs(options: LaunchOptions) -> u64 {
    let gpu = gpu(options);
    let x = gpu.upload(&[1f32; 64]).unwrap();
    for _ in 0..3 {
        for _ in 0..5 {
            // SAFETY: both sums have 64 elements.
            unsafe {
                gpu.launch("accumulate_f32", Grid::over(64, 256), args![x.arg(), x.arg(), 64usize]).unwrap()
            };
        }
        gpu.submit_step().unwrap();
    }
    gpu.gpu_counters().graphs
}

#[test]
fn an_error_is_late_without_a_name_and_stays() {
    let gpu = gpu(LaunchOptions::default());
    let (launched, downloaded) = faulty_launch(&gpu);
    assert!(launched.is_ok());
    assert_eq!(downloaded.unwrap_err().to_string(), "unspecified launch failure");
    for error in [gpu.wait().unwrap_err(), gpu.upload(&[1f32]).unwrap_err(), gpu.zeros(1 << 20).unwrap_err()]
    {
        assert!(
            matches!(&error, Error::Device { what, .. } if what == "unspecified launch failure"),
            "{error}"
        );
    }
}

#[test]
fn a_synchronized_launch_names_its_kernel_and_its_grid() {
    named_error().unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn without_graphs_no_graph_is_launched() {
    let default = LaunchOptions::default();
    assert!(graphs(default) > 0);
    assert_eq!(graphs(LaunchOptions { graphs: false, ..default }), 0);
    assert_eq!(graphs(LaunchOptions { sync: true, ..default }), 0);
}

#[test]
#[cfg(feature = "faults")]
fn a_launch_that_is_not_awaited_and_a_graph_that_is_not_disabled_are_found() {
    let unnamed = faults::with(Fault::LaunchNotAwaited, named_error).unwrap_err();
    assert_eq!(unnamed, "no error");
    let without = LaunchOptions { graphs: false, ..LaunchOptions::default() };
    assert!(faults::with(Fault::GraphsNotDisabled, || graphs(without)) > 0);
}
