//! Gate: a GPU is bit-identical to the reference under any thread schedule; in bf16, to the reference with the products
//! of its tensor cores.
use super::case::Case;
use super::{Comparison, Counts, Difference, name, reference};
use crate::gpu::attention::HEAD_SIZES;
use crate::{Device, Error};

const GATE: &str = "gpu";

/// The device whose bits the GPU must have in this case. `None`: bf16 on a GPU without a model of its tensor cores.
fn expected(case: &Case, gpu: &Device) -> Option<Device> {
    match gpu {
        Device::Gpu(gpu) if case.name.contains("bf16") => gpu.tensor_core().map(Device::reference_of),
        _ => Some(reference()),
    }
}

/// Runs every case on the device and compares the bits with those of the reference.
pub(super) fn gate(cases: &[Case], device: &Device) -> Result<Counts, Difference> {
    let mut counts = Counts::default();
    for case in cases {
        let check = Comparison { gate: GATE, case: format!("{case} on {}", name(device)), seed: case.seed };
        let got = case.whole(device);
        if matches!(&got, Err(Error::Argument { want: HEAD_SIZES, .. })) {
            continue;
        }
        if let Some(expected) = expected(case, device) {
            let want = case.whole(&expected).map_err(|error| check.failed(&error))?;
            counts.values += check.same(got, &want)?;
        } else {
            let _ = got.map_err(|error| check.failed(&error))?;
        }
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::{Emulation, EmulatorBuild};
    use crate::gates::table::TABLE;
    use crate::{TensorCore, ThreadSchedule, testing};

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
    fn threads_that_run_backwards_on_ampere_give_the_bits_of_the_reference() {
        let hopper = Emulation::new(ThreadSchedule::Backward, EmulatorBuild::Plain);
        let ampere = Emulation { tensor_core: TensorCore::Ampere, wgmma: false, ..hopper };
        run_all(Device::emulating(ampere).unwrap());
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
