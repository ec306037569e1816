//! Gate: the emulated GPU gives the bits of the reference in f32, whatever order its threads run in.
use super::case::Case;
use super::{Comparison, Counts, Difference, name, reference};
use crate::gpu::attention::HEAD_SIZES;
use crate::{Device, Error, Schedule};

const GATE: &str = "gpu";

/// Operations without a matrix product: in bf16 too they have the processor's bits.
const SAME_IN_BF16: &[&str] = &[
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

/// Four orders in which threads may run.
const SCHEDULES: [Schedule; 4] =
    [Schedule::Forward, Schedule::Backward, Schedule::Random(7), Schedule::Priorities(8)];

/// Whether the GPU gives a case the bits of the reference.
fn promised(case: &Case) -> bool {
    !case.name.contains("bf16") || SAME_IN_BF16.contains(&case.op)
}

/// Every case on the devices, by turns; its bits where they are promised.
fn gate(cases: &[Case], devices: &[Device]) -> Result<Counts, Difference> {
    let (mut counts, reference) = (Counts::default(), reference());
    for (i, case) in cases.iter().enumerate() {
        let device = &devices[i % devices.len()];
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
    use crate::testing;

    /// A device for each schedule; none, with a note, where this build has no emulator.
    fn devices(open: fn(Schedule) -> Option<Device>) -> Vec<Device> {
        SCHEDULES.into_iter().map_while(open).collect()
    }

    /// Every operation of the table through the gate, its time printed: one without a kernel fails.
    fn through(devices: &[Device]) {
        if devices.is_empty() {
            return;
        }
        let mut total = Counts::default();
        for entry in &TABLE {
            let start = std::time::Instant::now();
            let counts = gate(&(entry.cases)(), devices).unwrap_or_else(|difference| panic!("{difference}"));
            println!("{:24} {counts:?} {:?}", entry.name, start.elapsed());
            assert!(counts.cases >= SCHEDULES.len(), "{}: {counts:?}", entry.name);
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("gpu: {total:?}");
    }

    #[test]
    fn every_operation_has_a_kernel_with_the_bits_of_the_reference_under_four_schedules() {
        through(&devices(testing::emulated));
    }

    #[test]
    fn the_gpu_of_this_machine_has_the_bits_of_the_reference() {
        through(&Vec::from_iter(testing::cuda()));
    }

    #[test]
    fn no_kernel_leaves_its_memory_reads_what_nobody_wrote_or_races() {
        through(&devices(testing::checked));
    }
}
