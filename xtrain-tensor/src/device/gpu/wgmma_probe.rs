//! Compares `wgmma` with `mma.sync` on a device: a step on operands of every kind, and products of the kernels.
use super::handle::Gpu;
use super::launch::{At, Grid, MatrixBoxes, args};
use super::tensor_core_operands::Operands;
use crate::error::Result;

/// Rows and inputs of the products, whose weights have as many rows: several tiles per block, and several chunks of
/// which the last one is not a multiple of 16.
const SHAPES: [[usize; 2]; 2] = [[320, 200], [109, 600]];

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
        let [got, want] = products(gpu, &operands, shape)?;
        if !same(&got, &want) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

/// The product of the first values of both operands, `[rows, width]` each: by `wgmma`, and by `mma.sync`.
fn products(gpu: &Gpu, operands: &Operands, [rows, width]: [usize; 2]) -> Result<[Vec<f32>; 2]> {
    let matrix = |values: &[u16]| gpu.upload(&values[..rows * width]);
    let (x, w) = (matrix(&operands.a)?, matrix(&operands.b)?);
    let boxes = |at: At| Some(MatrixBoxes { at, rows, columns: width, box_rows: 128 });
    let maps = gpu.tensor_maps(&[boxes(x.arg()), boxes(w.arg())])?;
    let [by_wgmma, by_mma] = [gpu.zeros(4 * rows * rows)?, gpu.zeros(4 * rows * rows)?];
    let none = At(0);
    let side = rows.div_ceil(128);
    let rest = |y: At| args![none, none, y, none, rows, rows, width, none, 0.0f32, none, none, none].to_vec();
    // few blocks, each with several tiles
    let mut grid = gpu.wgmma_grid(side * side);
    grid.blocks[0] = grid.blocks[0].min(2);
    // four stages of 32 k, rows of 40 elements
    let square = Grid::blocks([side, side, 1], 256).shared(4 * 2 * 2 * 128 * 40);
    // SAFETY: x and w are [rows, width], the results [rows, rows]; the maps are those of x and w.
    unsafe {
        gpu.launch("linear_bf16_wgmma", grid, &[args![maps] as &[_], &rest(by_wgmma.arg())].concat())?;
        gpu.launch(
            "linear_bf16_128",
            square,
            &[args![x.arg(), w.arg()] as &[_], &rest(by_mma.arg())].concat(),
        )?;
    }
    Ok([gpu.download(&by_wgmma)?, gpu.download(&by_mma)?])
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
        for fault in [Fault::WgmmaStepDiffers, Fault::WgmmaChunkSumKept] {
            assert!(
                !with(fault, || has_the_bits_of_mma_sync(&Gpu::emulated(hopper()).unwrap()).unwrap()),
                "{fault}"
            );
        }
    }
}
