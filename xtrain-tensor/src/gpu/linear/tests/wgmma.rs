//! Products by `wgmma` on the checked emulator, and when they are used.
#![cfg(xtrain_emu)]
use super::super::several::{Source, linears_by, swiglu_by};
use super::{
    Affine, Epilogue, Forward, Gpu, Tensor, Tile, Weight, arbitrary, as_gpu, compare_bits, expected, forward,
    on,
};
use crate::device::gpu::{Emulation, EmulatorBuild, LaunchOptions, WgmmaUse};
use crate::testing::checked as checked_device;
use crate::{Device, Dtype, ThreadSchedule};

/// Rows, outputs, inputs: several tiles per block, more stages than the ring has, partial tiles and a partial stage.
const SHAPES: [[usize; 3]; 2] = [[131, 129, 40], [33, 70, 600]];

/// Compares residual sums with their definition, on the checked emulator. Returns the number of values.
pub(crate) fn checked() -> Result<usize, String> {
    let mut compared = 0;
    let tiles = [Tile::Wgmma, Tile::SmallWgmma];
    let cases = SHAPES.into_iter().flat_map(|shape| tiles.map(|tile| (shape, tile)));
    for (case, (shape @ [rows, outs, width], tile)) in cases.enumerate() {
        let schedule = [ThreadSchedule::Random(9), ThreadSchedule::Priorities(10)][case / 2];
        let (x, w) = (arbitrary(rows * width, 1), arbitrary(outs * width, 2));
        let h = arbitrary(rows * outs, 3);
        let sums = expected(shape, &x, &w, Dtype::BF16);
        let want: Vec<f32> = h.iter().zip(&sums).map(|(h, sum)| h + sum).collect();

        let device = checked_device(schedule);
        let gpu = as_gpu(&device);
        let weight = Weight::new(&on(&device, [outs, width], &w, Dtype::F32), Dtype::BF16).unwrap();
        let x = on(&device, [rows, width], &x, Dtype::BF16);
        let h = on(&device, [rows, outs], &h, Dtype::F32);
        let y = Tensor::zeros(&device, &[rows, outs], Dtype::F32).unwrap();
        let epilogue = Epilogue { bias: None, residual: Some(&h) };
        let product = Forward {
            x: x.at(gpu, Dtype::BF16).unwrap(),
            w: weight.at(gpu).unwrap(),
            shape,
            dtype: Dtype::BF16,
        };
        let to = y.at(gpu, Dtype::F32).unwrap();
        let failed = |e: &dyn std::fmt::Display| {
            format!("gate gpu wgmma: {shape:?} {tile:?} on {device}, seeds 1 to 3: {e}")
        };
        // SAFETY: operands of the shape, and room for their product.
        unsafe { forward(gpu, product, epilogue, to, Dtype::F32, tile) }.map_err(|e| failed(&e))?;
        compare_bits(&y.to_vec::<f32>().map_err(|e| failed(&e))?, &want).map_err(|e| failed(&e))?;
        compared += want.len();
    }
    Ok(compared)
}

#[test]
fn products_by_wgmma_have_no_invalid_access_and_no_race() {
    let compared = checked().unwrap_or_else(|e| panic!("{e}"));
    println!("products by wgmma, checked: {compared} values, 0 differing bits");
}

/// The tile of a product of `rows` x 2048 outputs of these operands.
fn tile(use_of: WgmmaUse, wgmma: bool, [rows, width]: [usize; 2], dtype: Dtype) -> Tile {
    let emulation = Emulation { wgmma, ..Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain) };
    let options = LaunchOptions { wgmma: use_of, ..LaunchOptions::default() };
    let gpu = Gpu::emulated_with(emulation, options).unwrap();
    let buffer = gpu.buffer(256).unwrap();
    Forward { x: buffer.arg(), w: buffer.arg(), shape: [rows, 2048, width], dtype }.tile(&gpu)
}

#[test]
fn products_of_tiles_in_bf16_use_wgmma_unless_it_is_absent_or_disabled() {
    let tiled = WgmmaUse::TiledProducts;
    let tiles = |use_of, wgmma, width, dtype| [2048, 256, 32].map(|n| tile(use_of, wgmma, [n, width], dtype));
    let by_mma = [Tile::Large, Tile::Small, Tile::Skinny];
    assert_eq!(tiles(tiled, true, 768, Dtype::BF16), [Tile::Wgmma, Tile::SmallWgmma, Tile::Skinny]);
    assert_eq!(tiles(tiled, false, 768, Dtype::BF16), by_mma);
    assert_eq!(tiles(WgmmaUse::Never, true, 768, Dtype::BF16), by_mma);
    // rows that TMA cannot read, and f32
    assert_eq!(tiles(tiled, true, 772, Dtype::BF16), by_mma);
    assert_eq!(tiles(tiled, true, 768, Dtype::F32), by_mma);
}

#[test]
fn the_kernels_trap_in_an_image_without_wgmma() {
    let emulation =
        Emulation { wgmma: false, ..Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain) };
    let options = LaunchOptions { sync: true, ..LaunchOptions::default() };
    let device = Device::Gpu(Gpu::emulated_with(emulation, options).unwrap());
    let gpu = as_gpu(&device);
    let matrix = |dtype| on(&device, [16, 16], &arbitrary(256, 1), dtype);
    let (x, weight) = (matrix(Dtype::BF16), Weight::new(&matrix(Dtype::F32), Dtype::BF16).unwrap());
    let (source, w) = (Source::Plain(&x), Affine { weight: &weight, bias: None });
    let one = |tile| {
        let (shape, dtype) = ([16; 3], Dtype::BF16);
        let product = Forward { x: x.at(gpu, dtype).unwrap(), w: weight.at(gpu).unwrap(), shape, dtype };
        let y = gpu.buffer(4 * 256).unwrap();
        // SAFETY: operands of the shape, and room for their product.
        unsafe { forward(gpu, product, Epilogue::default(), y.arg(), Dtype::F32, tile) }
    };
    let trapped = [
        linears_by(gpu, source, &[w], Tile::Wgmma).map(|_| ()),
        linears_by(gpu, source, &[w], Tile::SmallWgmma).map(|_| ()),
        swiglu_by(gpu, source, [w, w], Tile::Wgmma, true).map(|_| ()),
        one(Tile::Wgmma),
        one(Tile::SmallWgmma),
    ];
    for result in trapped {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("trap: wgmma in an image without machine code for sm_90a"), "{error}");
    }
}
