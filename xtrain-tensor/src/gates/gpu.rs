//! Gate: the emulated GPU gives the bits of the reference in f32, whatever order its threads run in.
use super::case::Case;
use super::{Comparison, Counts, Difference, name, reference};
use crate::gpu::attention::HEAD_SIZES;
use crate::{Device, Error};

const GATE: &str = "gpu";

/// Operations without a matrix product: in bf16 too they have the processor's bits.
const SAME_IN_BF16: &[&str] = &[
    "embedding",
    "weight_rows",
    "all_finite",
    "first_non_finite",
    "rms_norm",
    "rms_norm_backward",
    "silu_mul",
    "silu_mul_backward",
    "gather_rows",
    "scatter_rows",
    "copy_slots",
    "copy_slots_within",
    "add_rms_norm",
    "write_heads",
    "rope_rows",
    "rope_backward",
    "rope",
    "rope_at",
    "rope_pos",
];

/// Whether the GPU gives a case the bits of the reference.
fn promised(case: &Case) -> bool {
    !case.name.contains("bf16") || SAME_IN_BF16.contains(&case.op)
}

/// Every case on the device; its bits where they are promised.
fn gate(cases: &[Case], device: &Device) -> Result<Counts, Difference> {
    let (mut counts, reference) = (Counts::default(), reference());
    for case in cases {
        let check = Comparison { gate: GATE, case: format!("{case} on {}", name(device)), seed: case.seed };
        let got = case.whole(device);
        if matches!(&got, Err(Error::Argument { want: HEAD_SIZES, .. })) {
            continue;
        }
        if promised(case) {
            let want = case.whole(&reference).map_err(|error| check.refused(&error))?;
            counts.values += check.same(got, &want)?;
        } else {
            // other bits, by its tensor cores; but a device that checks finds nothing
            let _ = got.map_err(|error| check.refused(&error))?;
        }
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::table::TABLE;
    use crate::{Schedule, testing};

    /// Every operation of the table through the gate, its time printed: one without a kernel fails. No device
    /// has been said by who opened none.
    fn through(device: Option<Device>) {
        let Some(device) = device else { return };
        let mut total = Counts::default();
        for entry in &TABLE {
            let start = std::time::Instant::now();
            let counts = gate(&(entry.cases)(), &device).unwrap_or_else(|difference| panic!("{difference}"));
            println!("{:24} {counts:?} {:?}", entry.name, start.elapsed());
            assert!(counts.cases >= 4, "{}: {counts:?}", entry.name);
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("{device}: {total:?}");
    }

    #[test]
    fn every_operation_has_a_kernel_with_the_bits_of_the_reference() {
        through(testing::emulated(Schedule::Forward));
    }

    #[test]
    fn threads_that_run_backwards_give_the_same_bits() {
        through(testing::emulated(Schedule::Backward));
    }

    #[test]
    fn threads_that_run_at_random_give_the_same_bits() {
        through(testing::emulated(Schedule::Random(7)));
    }

    #[test]
    fn warps_that_run_far_ahead_give_the_same_bits() {
        through(testing::emulated(Schedule::Priorities(8)));
    }

    #[test]
    fn the_gpu_of_this_machine_has_the_bits_of_the_reference() {
        through(testing::cuda());
    }

    #[test]
    fn no_kernel_leaves_its_memory_reads_what_nobody_wrote_or_races() {
        through(testing::checked(Schedule::Random(9)));
    }
}
