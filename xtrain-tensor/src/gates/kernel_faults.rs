//! Gate: the emulator finds each class of kernel fault, on deliberately wrong kernels (kernels/emu/faults.cu).
use crate::gpu::{Arg, Gpu, Grid, args};
use crate::{Device, Error, ThreadSchedule, testing};

const SCHEDULES: [ThreadSchedule; 4] = [
    ThreadSchedule::Forward,
    ThreadSchedule::Backward,
    ThreadSchedule::Random(7),
    ThreadSchedule::Priorities(8),
];

/// The emulated GPU.
fn gpu(open: fn(ThreadSchedule) -> Device, schedule: ThreadSchedule) -> Gpu {
    match open(schedule) {
        Device::Gpu(gpu) => gpu,
        device @ (Device::Reference(_) | Device::Cpu(_)) => panic!("expected a GPU, found {device}"),
    }
}

/// Runs `kernel(x, y, more...)` with x = 1, 2, ... 256 and y = 0. Returns y.
fn run(gpu: &Gpu, kernel: &'static str, grid: Grid, more: &[Arg]) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (1..=256).map(|i| i as f32).collect();
    let (x, y) = (gpu.upload(&x)?, gpu.zeros(256 * 4)?);
    let args = [args![x.arg(), y.arg()], more].concat();
    // SAFETY: the emulator returns an error for wrong arguments and for invalid pointers.
    unsafe { gpu.launch(kernel, grid, &args)? };
    gpu.download(&y)
}

/// Asserts that the kernel fails with one of these texts on a checked device, in any order of threads.
#[track_caller]
fn caught(kernel: &'static str, grid: Grid, texts: &[&str]) {
    for schedule in SCHEDULES {
        let gpu = gpu(testing::checked, schedule);
        let error = run(&gpu, kernel, grid, &[]).expect_err(kernel).to_string();
        println!("{schedule:?}: {error}");
        assert!(error.starts_with(&format!("{kernel}: block (")), "{error}");
        assert!(texts.iter().any(|text| error.contains(text)), "{error}");
        assert!(error.contains("faults.cu:"), "{error}");
    }
}

fn block(threads: u32) -> Grid {
    Grid::blocks([1, 1, 1], threads)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_kernel_without_a_fault_passes() {
    for open in [testing::emulated, testing::checked] {
        for schedule in SCHEDULES {
            let gpu = gpu(open, schedule);
            let y = run(&gpu, "fault_none", block(256), &[]).unwrap();
            assert!((0..256).all(|t| y[t] == ((t + 64) % 256 + 1) as f32), "{y:?}");
        }
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_last_block_reads_only_what_was_written_before_the_counter() {
    let blocks = Grid::blocks([3, 1, 1], 64);
    for open in [testing::emulated, testing::checked] {
        for schedule in SCHEDULES {
            let gpu = gpu(open, schedule);
            let y = run(&gpu, "fault_none_of_blocks", blocks, &[]).unwrap();
            assert!((0..64).all(|t| y[t] == (3 * t + 3 + 192) as f32), "{y:?}");
            assert_eq!(y[255].to_bits(), 0, "the counter of {schedule:?}");
        }
    }
    caught("fault_late_for_blocks", blocks, &["race: read of an unordered write"]);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_missing_barrier_is_found() {
    let texts = ["race: read of an unordered write", "race: write after an unordered read", "uninitialized"];
    caught("fault_missing_barrier", block(256), &texts);
    caught("fault_missing_warp_barrier", block(32), &texts);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_kernel_that_does_not_wait_for_the_previous_one_is_found() {
    caught("fault_early_read", block(32), &["access to global memory before xt_grid_dependency_sync"]);
    let gpu = gpu(testing::emulated, ThreadSchedule::Forward);
    let error = run(&gpu, "fault_no_sync", block(32), &[]).unwrap_err().to_string();
    assert!(error.contains("a thread ended without xt_grid_dependency_sync"), "{error}");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_race_over_stages_is_found() {
    let texts = ["race: read of an unordered write", "race: write after an unordered read"];
    caught("fault_stages", block(64), &texts);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_shared_memory_access_out_of_bounds_is_found() {
    caught("fault_shared_bounds", block(32), &["write out of bounds of 4 bytes, shared memory"]);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_global_memory_access_out_of_bounds_is_found() {
    for schedule in SCHEDULES {
        let gpu = gpu(testing::checked, schedule);
        let error = run(&gpu, "fault_global_bounds", Grid::over(257, 128), args![256u32]);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("write out of bounds of 4 bytes, global memory, byte 1024 of a block of 1024"),
            "{error}"
        );
        assert!(error.contains("block (2,0,0) thread (0,0,0)"), "{error}");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_read_of_uninitialized_memory_is_found() {
    caught("fault_uninitialised", block(64), &["read of uninitialized memory"]);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn memory_that_no_kernel_wrote_is_not_downloaded() {
    let gpu = gpu(testing::checked, ThreadSchedule::Forward);
    let buffer = gpu.buffer(12).unwrap();
    let error = gpu.download::<f32>(&buffer).unwrap_err().to_string();
    assert_eq!(error, "download of 12 bytes: byte 0 is uninitialized");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_missing_wait_for_a_copy_is_found() {
    caught("fault_missing_copy_wait", block(32), &["access to the destination of a pending cp.async"]);
    // without the checker, the value that is read shows it
    let gpu = gpu(testing::emulated, ThreadSchedule::Forward);
    let y = run(&gpu, "fault_missing_copy_wait", block(32), &[]).unwrap();
    assert!(y[0].is_nan(), "{y:?}");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn barriers_and_collectives_that_only_some_threads_reach_are_found() {
    for open in [testing::emulated, testing::checked] {
        for schedule in SCHEDULES {
            let gpu = gpu(open, schedule);
            let error = run(&gpu, "fault_divergent_barrier", block(64), &[]).unwrap_err().to_string();
            assert!(error.contains("divergent barrier: this thread at faults.cu:"), "{error}");
            let error = run(&gpu, "fault_absent_lanes", block(32), &[]).unwrap_err().to_string();
            assert!(
                error.contains("deadlock: block (0,0,0) thread (0,0,0) waits in a warp collective"),
                "{error}"
            );
        }
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_race_between_blocks_is_found() {
    caught("fault_blocks", Grid::blocks([3, 1, 1], 64), &["race: write after an unordered write"]);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn an_invalid_address_and_a_misaligned_one_are_found() {
    caught("fault_null", block(32), &["access of 4 bytes, not device memory"]);
    caught("fault_misaligned", block(32), &["misaligned access"]);
}

/// An access of 8 bytes of which only the second half is wrong.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_fault_in_a_part_of_an_access_is_found() {
    let races = ["race: read of an unordered write", "race: write after an unordered read"];
    caught("fault_wide_read", block(32), &races);
    caught("fault_wide_write", block(32), &races);
    for schedule in SCHEDULES {
        let gpu = gpu(testing::checked, schedule);
        let (x, y) = (gpu.upload(&[1f32; 251]).unwrap(), gpu.zeros(256 * 4).unwrap());
        // SAFETY: the emulator returns an error for invalid pointers.
        let result = unsafe { gpu.launch("fault_wide_bounds", block(126), args![x.arg(), y.arg()]) };
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("read out of bounds of 8 bytes, global memory, byte 1000 of a block of 1004"),
            "{error}"
        );
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_wrong_argument_list_is_refused() {
    let gpu = gpu(testing::emulated, ThreadSchedule::Forward);
    let refused = |more: &[Arg]| run(&gpu, "fault_global_bounds", block(32), more).unwrap_err().to_string();
    let wants =
        "fault_global_bounds: expected arguments (pointer, pointer, 4 bytes), found (pointer, pointer";
    assert_eq!(refused(&[]), format!("{wants})"));
    assert_eq!(refused(args![1u64]), format!("{wants}, 8 bytes)"));
    assert_eq!(refused(args![1.0f32]), format!("{wants}, f32)"));
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_block_larger_than_the_compiled_maximum_is_refused() {
    let gpu = gpu(testing::emulated, ThreadSchedule::Forward);
    let error = run(&gpu, "fault_stages", block(65), &[]).unwrap_err().to_string();
    assert_eq!(
        error,
        "fault_stages: 65 threads per block exceed the limit of 64 that the kernel is compiled for"
    );
    let error = run(&gpu, "fault_nothing", block(1), &[]).unwrap_err().to_string();
    assert_eq!(error, "no kernel named fault_nothing");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_sum_in_the_order_of_arrival_differs_between_schedules() {
    let sums = |schedule| {
        let gpu = gpu(testing::emulated, schedule);
        let x: Vec<f32> = (0..256).map(|i| 1.0 / (i as f32 + 1.0)).collect();
        let (x, y) = (gpu.upload(&x).unwrap(), gpu.zeros(4).unwrap());
        // SAFETY: x holds 256 values and y one, as the kernel expects.
        unsafe { gpu.launch("fault_arrival_order", Grid::over(256, 64), args![x.arg(), y.arg()]).unwrap() };
        gpu.download::<f32>(&y).unwrap()[0].to_bits()
    };
    let mut bits: Vec<u32> = SCHEDULES.into_iter().map(sums).collect();
    bits.sort_unstable();
    bits.dedup();
    assert!(bits.len() > 1, "{bits:x?}");
}
