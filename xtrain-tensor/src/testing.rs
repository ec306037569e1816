//! Helpers for tests: exact inputs, bitwise comparison and golden values.
mod counted_heap;
mod instruction_sets;
pub mod named_cases;
#[cfg(target_os = "linux")]
mod page_faults;

use std::fmt::Debug;
use std::io::Write;
use std::sync::Once;

pub use counted_heap::CountedHeap;
pub use instruction_sets::{checked_simds, simds};
#[cfg(target_os = "linux")]
pub use page_faults::page_faults;

use crate::rng::{Purpose, draw, philox, uniform_u64};
use crate::{Device, Result, ThreadSchedule};

/// The message with which `test` fails. `None`: it passes.
pub fn failure(test: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
    let panic = std::panic::catch_unwind(test).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or(panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
}

/// The emulated GPU.
///
/// A test that calls this function, [`checked`] or [`gpus`] has the attribute `cfg_attr(not(xtrain_emu), ignore = "this
/// build has no emulator")`: without an emulator it is reported as ignored, not as passed.
///
/// # Panics
/// If this build has no emulator.
#[track_caller]
pub fn emulated(schedule: ThreadSchedule) -> Device {
    Device::emulated(schedule).unwrap_or_else(|error| panic!("{error}"))
}

/// The emulated GPU that checks every memory access.
///
/// # Panics
/// If this build has no emulator.
#[track_caller]
pub fn checked(schedule: ThreadSchedule) -> Device {
    Device::checked(schedule).unwrap_or_else(|error| panic!("{error}"))
}

/// Every GPU that a gate runs on: the emulated GPU with each of these schedules, and the GPU of this machine. With
/// `XTRAIN_SKIP_EMU=1` only the latter.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn gpus(schedules: &[ThreadSchedule]) -> Vec<Device> {
    let gpus = available_gpus(schedules);
    assert!(!gpus.is_empty(), "this build has no emulator, and this machine has no usable GPU");
    gpus
}

/// [`gpus`], or nothing and a printed note: for gates that compare other devices, too.
///
/// # Panics
/// If the environment requires a device that is missing: `XTRAIN_REQUIRE_EMU=1`, `XTRAIN_REQUIRE_GPU=1`.
pub fn available_gpus(schedules: &[ThreadSchedule]) -> Vec<Device> {
    static NOTE: Once = Once::new();
    let emulated = |schedule| {
        required(Device::emulated(schedule), "XTRAIN_REQUIRE_EMU", "the kernels on the emulator", &NOTE)
    };
    let schedules = if skip_emulated() { &[] } else { schedules };
    schedules.iter().copied().filter_map(emulated).chain(cuda()).collect()
}

/// Groups of `size` GPUs: emulated ones, and those of this machine if it has as many. `XTRAIN_SKIP_EMU=1`: only the
/// latter.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn gpu_groups(size: usize) -> Vec<Vec<Device>> {
    let emulated = || (0..size).map(|_| Device::emulated(ThreadSchedule::Forward).ok()).collect();
    let cuda: Option<Vec<Device>> = (0..size as u32).map(|number| Device::cuda(number).ok()).collect();
    let groups: Vec<Vec<Device>> =
        (!skip_emulated()).then(emulated).flatten().into_iter().chain(cuda).collect();
    assert!(
        !groups.is_empty(),
        "this build has no emulator, and this machine has less than {size} usable GPUs"
    );
    groups
}

/// Whether gates run on the GPU of this machine only: `XTRAIN_SKIP_EMU=1`.
pub fn skip_emulated() -> bool {
    std::env::var_os("XTRAIN_SKIP_EMU").is_some_and(|value| value == "1")
}

/// The GPU of this machine. `None`, with a printed note: it has no usable GPU.
///
/// # Panics
/// If there is no GPU and `XTRAIN_REQUIRE_GPU=1` is set.
pub fn cuda() -> Option<Device> {
    static NOTE: Once = Once::new();
    required(Device::cuda(0), "XTRAIN_REQUIRE_GPU", "the gates on a GPU", &NOTE)
}

/// A device that is optional unless the environment variable `variable` is 1. A missing device prints one note that
/// `what` was not run.
fn required(device: Result<Device>, variable: &str, what: &str, note: &Once) -> Option<Device> {
    let missing = |error| {
        let is_required = std::env::var_os(variable).is_some_and(|value| value == "1");
        assert!(!is_required, "{variable}=1, but {error}");
        // written to stderr directly: libtest captures eprintln!, and a skip must be visible
        note.call_once(|| drop(writeln!(std::io::stderr(), "note: not run, {what}: {error}")));
    };
    device.map_err(missing).ok()
}

/// The golden lines of single operations.
const OPERATIONS: &str = include_str!("../../tests/data/golden_bits/operations.txt");

/// `((word0 of philox(key (1, 2), counter (i, 0, 0, 0)) >> 8) - 2^23) * 2^-22`, in [-2, 2). These are the exact
/// inputs of the golden lines.
pub fn val(i: usize) -> f32 {
    let word = philox([1, 2], [i as u32, 0, 0, 0])[0];
    ((word >> 8) as i32 - (1 << 23)) as f32 * (1.0 / (1 << 22) as f32)
}

/// `n` values in [-1, 1), multiples of 2^-23. Each is a function of the seed and its index.
pub fn arbitrary(n: usize, seed: u64) -> Vec<f32> {
    let word = |i: usize| draw(seed, i as u64, 0, Purpose::DataOrder)[0];
    (0..n).map(|i| ((word(i) >> 8) as i32 - (1 << 23)) as f32 * (1.0 / (1 << 23) as f32)).collect()
}

/// `n` values of the kinds that break kernels. Half are normal deviates; the others are denormals, zeros of both
/// signs, exact ties, huge values (up to 2^60) and tiny values (down to 2^-120). Each is a function of the seed and
/// its index.
pub fn ugly(n: usize, seed: u64) -> Vec<f32> {
    let value = |i: usize| {
        let [kind, sign, a, b] = draw(seed, i as u64, 1, Purpose::DataOrder);
        let sign = if sign & 1 == 0 { 1.0 } else { -1.0 };
        let fraction = 1.0 + (a >> 9) as f32 * (1.0 / (1 << 23) as f32);
        let size = match kind % 16 {
            0..8 => return crate::standard_normal(uniform_u64(seed, i as u64, 2, Purpose::DataOrder)),
            8 | 9 => f32::from_bits(a >> 9),
            10 | 11 => 0.0,
            12 | 13 => [0.25, 0.5, 1.0, 1.5][b as usize % 4],
            14 => fraction * 2f32.powi(20 + (b % 41) as i32),
            _ => fraction * 2f32.powi(-80 - (b % 41) as i32),
        };
        sign * size
    };
    (0..n).map(value).collect()
}

/// The number of repetitions of a test: `usual` in the test command, `longer` in the longer suite (`XTRAIN_SOAK=1`).
pub fn times(usual: u64, longer: u64) -> u64 {
    if std::env::var_os("XTRAIN_SOAK").is_some_and(|v| v == "1") { longer } else { usual }
}

/// Compares two slices bit for bit. Any NaN equals any NaN.
///
/// # Errors
/// If the lengths differ, or if a value differs. The text names the number of differences, the first index and both
/// values.
pub fn compare_bits(got: &[f32], want: &[f32]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} values, want {}", got.len(), want.len()));
    }
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let mut differing = got.iter().zip(want).enumerate().filter(|(_, pair)| !same(*pair));
    let Some((at, (a, b))) = differing.next() else { return Ok(()) };
    Err(format!(
        "{} of {} values differ in bits, first at {at}: got {a:e} ({:08x}), want {b:e} ({:08x})",
        1 + differing.count(),
        got.len(),
        a.to_bits(),
        b.to_bits()
    ))
}

/// Compares the bits of two lists of f32 values.
///
/// # Errors
/// As [`compare_bits`], but NaNs with different bits differ.
pub fn compare_words(got: &[u32], want: &[u32]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} values, want {}", got.len(), want.len()));
    }
    let mut differing = got.iter().zip(want).enumerate().filter(|(_, (a, b))| a != b);
    let Some((at, (&a, &b))) = differing.next() else { return Ok(()) };
    let text = |bits| format!("{:e} ({bits:08x})", f32::from_bits(bits));
    let n = 1 + differing.count();
    Err(format!(
        "{n} of {} values differ in bits, first at {at}: got {}, want {}",
        got.len(),
        text(a),
        text(b)
    ))
}

/// Asserts that two slices are bitwise equal. Any NaN equals any NaN.
///
/// # Panics
/// If they differ. The text names `what`, the number of differences, the first index and both values.
#[track_caller]
pub fn assert_bits_eq(got: &[f32], want: &[f32], what: impl Debug) {
    if let Err(difference) = compare_bits(got, want) {
        panic!("{what:?}: {difference}");
    }
}

/// The words after `name` on its golden line.
///
/// # Panics
/// If there is no line with this name.
#[track_caller]
pub fn golden(name: &str) -> Vec<&'static str> {
    let rest = |line: &'static str| line.strip_prefix(name)?.strip_prefix(' ');
    let found = OPERATIONS.lines().find_map(rest);
    found.unwrap_or_else(|| panic!("no golden line {name}")).split(' ').collect()
}

/// The sizes of the golden lines that are named `prefix` + size.
pub fn golden_sizes(prefix: &str) -> Vec<usize> {
    let size = |line: &str| line.strip_prefix(prefix)?.split(' ').next()?.parse().ok();
    OPERATIONS.lines().filter_map(size).collect()
}

/// Returns true if this process runs only the test `name` (its path in the crate). Otherwise runs the test in its own
/// process and returns false. For tests that measure the memory of their process.
///
/// # Panics
/// If the test fails in its own process.
#[track_caller]
pub fn alone(name: &str) -> bool {
    const ALONE: &str = "XTRAIN_TEST_ALONE";
    if std::env::var_os(ALONE).is_some_and(|value| value == name) {
        return true;
    }
    let test = std::env::current_exe().expect("the path of the test binary");
    let mut run = std::process::Command::new(test);
    run.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(ALONE, name);
    let done = run.output().expect("the test binary starts");
    let output = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success(),
        "{name}: {}\n{output}\n{}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(output.contains("1 passed"), "no test named {name}: {output}");
    print!("{output}");
    false
}

/// Checks which logits of a loss top-k keeps on `device`: the k largest, the first of equal ones, and the target.
#[cfg(test)]
pub(crate) fn check_top_k_of_equal_logits(device: &Device) {
    use crate::ops::{self, LossRows, Samples, Target, Weight};
    use crate::{Dtype, Tensor};

    let head = [1.0f32, 3.0, -0.0, 3.0, 0.0, 3.0].to_vec();
    let x = Tensor::new(device, &[1, 1], vec![1f32]).unwrap();
    let head = Weight::new(&Tensor::new(device, &[6, 1], head).unwrap(), Dtype::F32).unwrap();
    let samples = Samples::of_lengths([1]);
    for (k, id, kept) in [(2, 1, vec![1, 3]), (2, 2, vec![1, 2, 3]), (5, 1, vec![0, 1, 2, 3, 5])] {
        let targets = [Some(Target { id, weight: 1.0, bonus: 0.5 })];
        let rows = LossRows { top_k: Some(k), ..LossRows::new(&targets, &samples) };
        let mut dhead = Tensor::zeros(device, &[6, 1], Dtype::F32).unwrap();
        let _ = ops::cross_entropy_backward(&x, &head, &rows, &mut 0.0, &mut dhead).unwrap();
        let dhead = dhead.to_vec::<f32>().unwrap();
        let moved: Vec<usize> = (0..6).filter(|&i| dhead[i] != 0.0).collect();
        assert_eq!(moved, kept, "top {k}, target {id}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_emulator_is_built() {
        let is_required = std::env::var_os("XTRAIN_REQUIRE_EMU").is_some_and(|value| value == "1");
        assert!(!is_required || cfg!(xtrain_emu), "XTRAIN_REQUIRE_EMU=1: {}", env!("XTRAIN_EMULATOR"));
    }

    #[test]
    fn a_difference_names_the_count_and_the_first_index() {
        let (a, b) = ([1.0, 2.0, 0.0, f32::NAN], [1.0, 2.5, -0.0, f32::from_bits(0xffc0_0001)]);
        let text = compare_bits(&a, &b).expect_err("they differ");
        assert!(text.starts_with("2 of 4 values differ in bits, first at 1: got 2e0 (40000000)"), "{text}");
        assert_eq!(compare_bits(&a[..1], &b[..1]), Ok(()));
        assert_eq!(compare_bits(&a[3..], &b[3..]), Ok(()));
        assert!(compare_bits(&a, &b[..3]).is_err());
    }

    #[test]
    fn ugly_values_contain_every_kind() {
        let x = ugly(2000, 1);
        let count = |f: fn(&f32) -> bool| x.iter().filter(|v| f(v)).count();
        assert!(count(|v| v.to_bits() == 0) > 50 && count(|v| v.to_bits() == 1 << 31) > 50);
        assert!(count(|v| v.is_subnormal()) > 100);
        assert!(count(|v| *v == 0.5) > 20);
        assert!(count(|v| v.abs() > 1e6) > 50);
        assert!(count(|v| v.is_normal() && v.abs() < 1e-20) > 50);
        assert!(x.iter().all(|v| v.is_finite()));
        assert_eq!(x[..50], ugly(50, 1));
    }

    #[test]
    fn arbitrary_values_are_in_their_range() {
        let x = arbitrary(1000, 4);
        assert!(x.iter().all(|v| (-1.0..1.0).contains(v)));
        assert_ne!(x, arbitrary(1000, 5));
    }
}
