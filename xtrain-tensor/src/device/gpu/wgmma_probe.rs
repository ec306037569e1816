//! Compares `wgmma` with `mma.sync` on a device: a step on operands of every kind, products of the kernels, and
//! attention.
use super::handle::Gpu;
use super::tensor_core_operands::Operands;
use super::wgmma_attention::attention;
use super::wgmma_products::Products;
use crate::error::Result;

/// Rows, outputs and inputs of the products: several tiles per block, and several chunks of which the last one is not a
/// multiple of 16.
const SHAPES: [[usize; 3]; 3] = [[320, 200, 200], [109, 104, 600], [104, 600, 72]];

/// Whether the loaded kernel image has `wgmma`, and every result has the bits of `mma.sync`; any NaN equals any NaN.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if a kernel fails. `XTRAIN_CUDA_WGMMA=0` skips the comparison.
pub(super) fn has_the_bits_of_mma_sync(gpu: &Gpu) -> Result<bool> {
    if !gpu.has_wgmma()? {
        return Ok(false);
    }
    let _issue = gpu.issue();
    let operands = Operands::at_random(1);
    let step = operands.by(gpu, "tensor_core_wgmma")?;
    // the kernels have x as the first operand of wgmma and the weights as that of mma.sync
    for other in ["tensor_core_mma", "tensor_core_swapped"] {
        if !same(&step, &operands.by(gpu, other)?) {
            return Ok(false);
        }
    }
    for shape in SHAPES {
        let products = Products::of(gpu, &operands, shape)?;
        for both in [
            Products::forward,
            Products::rounded,
            Products::forward_small,
            Products::input_gradient,
            Products::weight_gradient,
        ] {
            let [got, want] = both(&products)?;
            if !same(&got, &want) {
                return Ok(false);
            }
        }
    }
    for hd in [64, 128] {
        if !attention(gpu, &operands, hd)?.iter().all(|[got, want]| same(got, want)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

#[cfg(all(test, xtrain_emu))]
mod tests {
    use super::*;
    use crate::device::gpu::{Emulation, EmulatorBuild, WgmmaUse};
    use crate::testing::cuda;
    use crate::{Device, ThreadSchedule};

    fn hopper() -> Emulation {
        Emulation::new(ThreadSchedule::Random(6), EmulatorBuild::Plain)
    }

    #[test]
    fn an_image_with_wgmma_has_the_bits_of_mma_sync() {
        assert!(has_the_bits_of_mma_sync(&Gpu::emulated(hopper()).unwrap()).unwrap());
    }

    /// A device compares when it is opened. Prints whether it uses wgmma.
    #[test]
    fn this_machine_has_a_gpu_that_uses_wgmma_or_not() {
        if let Some(Device::Gpu(gpu)) = cuda() {
            println!("{}: products by wgmma: {:?}", gpu.name(), gpu.wgmma());
        }
    }

    #[test]
    fn wgmma_is_not_used_without_machine_code_for_it() {
        let gpu = Gpu::emulated(Emulation { wgmma: false, ..hopper() }).unwrap();
        assert!(!has_the_bits_of_mma_sync(&gpu).unwrap());
        assert_eq!(gpu.wgmma(), WgmmaUse::Never);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn wgmma_with_other_bits_is_not_used() {
        use crate::faults::{Fault, with};
        // the second half of an operand of a gradient is only read there; whole tiles in bf16 are stored by quads
        let faults = [
            Fault::WgmmaStepDiffers,
            Fault::WgmmaChunkSumKept,
            Fault::HalvesOfOperandOverlap,
            Fault::QuadNotTransposed,
            Fault::SmallChunksSwapped,
            Fault::ExpOutOfRange,
            Fault::GradientOfLastKeysOnly,
        ];
        for fault in faults {
            assert!(
                !with(fault, || has_the_bits_of_mma_sync(&Gpu::emulated(hopper()).unwrap()).unwrap()),
                "{fault}"
            );
        }
    }
}
