//! Gate: in f32 the emulated GPU is bit-identical to the reference under any thread schedule.
use super::case::Case;
use super::{Comparison, Counts, Difference, name, reference};
use crate::gpu::attention::HEAD_SIZES;
use crate::{Device, Error};

const GATE: &str = "gpu";

/// Operations without a matrix product: they have the CPU's bits in bf16, too.
const SAME_IN_BF16: &[&str] = &[
    "embedding",
    "weight_rows",
    "first_non_finite",
    "rms_norm",
    "rms_norm_backward",
    "silu_mul",
    "silu_mul_backward",
    "gather_rows",
    "scatter_rows",
    "copy_slots",
    "copy_slots_within",
    "write_heads",
    "rope_rows",
    "rope_backward",
    "rope",
    "rope_at",
    "rope_pos",
];

/// Whether the GPU must have the bits of the reference in this case.
fn promised(case: &Case) -> bool {
    !case.name.contains("bf16") || SAME_IN_BF16.contains(&case.op)
}

/// Runs every case on the device, and compares the bits where they are promised.
pub(super) fn gate(cases: &[Case], device: &Device) -> Result<Counts, Difference> {
    let (mut counts, reference) = (Counts::default(), reference());
    for case in cases {
        let check = Comparison { gate: GATE, case: format!("{case} on {}", name(device)), seed: case.seed };
        let got = case.whole(device);
        if matches!(&got, Err(Error::Argument { want: HEAD_SIZES, .. })) {
            continue;
        }
        if promised(case) {
            let want = case.whole(&reference).map_err(|error| check.failed(&error))?;
            counts.values += check.same(got, &want)?;
        } else {
            // tensor cores give other bits; the access checks of the emulator still apply
            let _ = got.map_err(|error| check.failed(&error))?;
        }
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::table::TABLE;
    use crate::{ThreadSchedule, testing};

    /// Runs the gate for every operation of the table and prints its time. An operation without a kernel fails.
    fn run_all(device: Device) {
        let mut total = Counts::default();
        for entry in &TABLE {
            let start = std::time::Instant::now();
            let counts = gate(&(entry.cases)(), &device).unwrap_or_else(|difference| panic!("{difference}"));
            println!("{:24} {counts}, {:?}", entry.name, start.elapsed());
            assert!(counts.cases >= 4, "{}: {counts:?}", entry.name);
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("gate {GATE} on {device}: {total}");
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn every_operation_has_a_kernel_with_the_bits_of_the_reference() {
        testing::gpus(&[ThreadSchedule::Forward]).into_iter().for_each(run_all);
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn threads_that_run_backwards_give_the_same_bits() {
        run_all(testing::emulated(ThreadSchedule::Backward));
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn threads_that_run_at_random_give_the_same_bits() {
        run_all(testing::emulated(ThreadSchedule::Random(7)));
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn warps_that_run_far_ahead_give_the_same_bits() {
        run_all(testing::emulated(ThreadSchedule::Priorities(8)));
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn no_kernel_has_an_invalid_access_an_uninitialized_read_or_a_race() {
        run_all(testing::checked(ThreadSchedule::Random(9)));
    }
}
