//! Gate: the emulated GPU gives the bits of the reference in f32, whatever order its threads run in.
use super::case::Case;
use super::{Comparison, Counts, Difference, name, reference};
use crate::gpu::attention::HEAD_SIZES;
use crate::{Device, Error, Schedule};

const GATE: &str = "gpu";

/// Operations whose kernels are not there yet: each is refused, by name.
const WITHOUT: &[&str] = &[];

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
fn promised(case: &&Case) -> bool {
    !case.name.contains("bf16") || SAME_IN_BF16.contains(&case.op)
}

/// Every case of which that is promised on the devices, by turns.
fn gate(cases: &[Case], devices: &[Device]) -> Result<Counts, Difference> {
    let (mut counts, reference) = (Counts::default(), reference());
    for (i, case) in cases.iter().filter(promised).enumerate() {
        let device = &devices[i % devices.len()];
        let check = Comparison { gate: GATE, case: format!("{case} on {}", name(device)), seed: case.seed };
        let want = case.whole(&reference).map_err(|error| check.refused(&error))?;
        let got = case.whole(device);
        if matches!(&got, Err(Error::Argument { want: HEAD_SIZES, .. })) {
            continue;
        }
        counts.values += check.same(got, &want)?;
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::table::TABLE;

    /// The emulated devices; a note where this build has none.
    fn devices() -> Vec<Device> {
        let devices: Result<Vec<_>, Error> = SCHEDULES.into_iter().map(Device::emulated).collect();
        devices.unwrap_or_else(|error| {
            assert!(
                std::env::var_os("XTRAIN_REQUIRE_EMU").is_none(),
                "XTRAIN_REQUIRE_EMU is set, but {error}"
            );
            eprintln!("note: the kernels were not run: {error}");
            Vec::new()
        })
    }

    #[test]
    fn every_f32_kernel_has_the_bits_of_the_reference_under_four_schedules() {
        let devices = devices();
        if devices.is_empty() {
            return;
        }
        let mut total = Counts::default();
        for entry in TABLE.iter().filter(|entry| !WITHOUT.contains(&entry.name)) {
            let start = std::time::Instant::now();
            let counts = gate(&(entry.cases)(), &devices).unwrap_or_else(|difference| panic!("{difference}"));
            println!("{:24} {counts:?} {:?}", entry.name, start.elapsed());
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("gpu: {total:?}");
    }

    #[test]
    fn an_operation_without_a_kernel_is_refused() {
        let Some(device) = devices().into_iter().next() else { return };
        for name in WITHOUT {
            let entry = TABLE.iter().find(|entry| entry.name == *name).expect("a listed operation");
            let case = &(entry.cases)()[0];
            assert!(
                matches!(case.whole(&device), Err(Error::Device { .. })),
                "{name} has a kernel: delete it here"
            );
        }
    }
}
