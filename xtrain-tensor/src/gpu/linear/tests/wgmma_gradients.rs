//! Gradients by `wgmma`: the bits of the reference, and when they are used.
#![cfg(xtrain_emu)]
use super::super::input::{Group, Part, input, swiglu_input};
use super::super::weights::{RowProduct, tile_of, weights};
use super::{Gpu, SCHEDULES, Tile, Weight, arbitrary, as_gpu, compare_bits, gpu, on, ops};
use crate::device::gpu::{At, Emulation, EmulatorBuild, LaunchOptions, WgmmaUse};
use crate::ops::Samples;
use crate::tensor_core::TensorCore;
use crate::{Device, Dtype, Result, Tensor, ThreadSchedule};

/// The sizes of a case: lengths of the samples of two micro-batches, outputs of the weights of a group, inputs.
struct Case {
    samples: [&'static [usize]; 2],
    outs: &'static [usize],
    width: usize,
}

/// More weights than a launch has; several tiles, chunks and stages; samples that end within a stage, at its end, within
/// a chunk and at its end.
const CASES: [Case; 3] = [
    Case { samples: [&[70, 3, 64, 9], &[257, 128, 5]], outs: &[264, 8, 72, 136], width: 200 },
    Case { samples: [&[1, 300], &[256]], outs: &[128], width: 128 },
    Case { samples: [&[64; 5], &[2; 33]], outs: &[8, 16], width: 8 },
];
/// The case for the checked emulator: several tiles per block, more stages than the ring has.
const CHECKED: Case = Case { samples: [&[70, 3], &[130]], outs: &[264, 8], width: 136 };

impl Case {
    /// The gradients of the public operations, in bf16: of the inputs, plain and rounded, of the inputs of SwiGLU, and of
    /// the weights after both micro-batches.
    fn gradients(&self, device: &Device) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let (width, bf16) = (self.width, Dtype::BF16);
        let matrix = |rows: usize, columns: usize, seed: u64, dtype| {
            on(device, [rows, columns], &arbitrary(rows * columns, seed), dtype)
        };
        let seeds = (10..).zip(self.outs);
        let ws = seeds.map(|(seed, &outs)| Weight::new(&matrix(outs, width, seed, Dtype::F32), bf16));
        let ws = ws.collect::<Result<Vec<_>>>()?;
        let mut dws: Vec<_> =
            (20..).zip(self.outs).map(|(s, &outs)| matrix(outs, width, s, Dtype::F32)).collect();
        let mut values = Vec::new();
        for (seed, lengths) in [100, 200].into_iter().zip(self.samples) {
            let samples = Samples::of_lengths(lengths.iter().copied());
            let rows = samples.rows();
            let dys: Vec<_> =
                (seed..).zip(self.outs).map(|(seed, &outs)| matrix(rows, outs, seed, bf16)).collect();
            let (dy, w): (Vec<&Tensor>, Vec<&Weight>) = (dys.iter().collect(), ws.iter().collect());
            let dx = || ops::linear_backward_input(&dy[..3.min(dy.len())], &w[..3.min(w.len())]);
            values.push(("dx", ops::linear_backward_input(&dy, &w)?.to_vec()?));
            values.push(("rounded dx", dx()?.cast(bf16)?.to_f32()?.to_vec()?));
            let [gate, up] = [1, 2].map(|s| matrix(rows, width, seed + 50 + s, bf16));
            let dy_of_swiglu = ops::linear_backward_input(&dy[..1], &w[..1])?;
            let [dgate, dup] = ops::silu_mul_backward(&gate, &up, &dy_of_swiglu, bf16)?;
            values.push(("dgate", dgate.to_f32()?.to_vec()?));
            values.push(("dup", dup.to_f32()?.to_vec()?));
            let x = matrix(rows, width, seed + 60, bf16);
            for (dw, dy) in dws.iter_mut().zip(&dys) {
                ops::linear_backward_weight(dw, dy, &x, &samples)?;
            }
        }
        for dw in &dws {
            values.push(("dw", dw.to_vec()?));
        }
        Ok(values)
    }

    /// Compares the gradients of an emulated Hopper with the reference. Returns the number of values.
    fn compare(&self, schedule: ThreadSchedule, build: EmulatorBuild) -> std::result::Result<usize, String> {
        let options = LaunchOptions { sync: true, wgmma: WgmmaUse::EveryProduct, ..LaunchOptions::default() };
        let gpu = Gpu::emulated_with(Emulation::new(schedule, build), options).map_err(|e| e.to_string())?;
        let device = Device::Gpu(gpu.clone());
        let label = format!(
            "gate gpu wgmma: gradients of {:?} x {} on {device}, seeds from 10",
            self.outs, self.width
        );
        let failed = |e: &dyn std::fmt::Display| format!("{label}: {e}");
        let want = self.gradients(&Device::reference_of(TensorCore::Hopper)).map_err(|e| failed(&e))?;
        let got = self.gradients(&device).map_err(|e| failed(&e))?;
        for ((what, got), (_, want)) in got.iter().zip(&want) {
            compare_bits(got, want).map_err(|e| failed(&format!("{what}: {e}")))?;
        }
        let launched = gpu.launched_kernels();
        // the checked emulator does not count launches
        for kernel in ["linear_dx", "linear_dx_swiglu", "linear_dw"].map(|name| format!("{name}_bf16_wgmma"))
        {
            let counted = build == EmulatorBuild::Checked || launched.contains_key(&*kernel);
            assert!(counted, "{label}: no {kernel} in {launched:?}");
        }
        Ok(want.iter().map(|(_, values)| values.len()).sum())
    }
}

/// Compares the cases with the reference. Returns the number of values.
pub(crate) fn gradients() -> std::result::Result<usize, String> {
    let compare = |(i, case): (usize, &Case)| case.compare(SCHEDULES[i], EmulatorBuild::Plain);
    CASES.iter().enumerate().map(compare).sum()
}

#[test]
fn gradients_by_wgmma_have_the_bits_of_the_reference() {
    let compared = gradients().unwrap_or_else(|e| panic!("{e}"));
    println!("gradients by wgmma: {compared} values, 0 differing bits");
}

#[test]
fn gradients_by_wgmma_have_no_invalid_access_and_no_race() {
    let compared = CHECKED.compare(ThreadSchedule::Random(9), EmulatorBuild::Checked);
    println!("gradients by wgmma, checked: {} values", compared.unwrap_or_else(|e| panic!("{e}")));
}

#[test]
#[cfg(feature = "faults")]
fn rows_of_the_next_sample_in_a_stage_are_detected() {
    use crate::faults::{Fault, with};
    let difference = with(Fault::SampleEndsWithinMap, gradients).unwrap_err();
    assert!(difference.contains("dw: "), "{difference}");
}

/// The gradient of SwiGLU in the epilogue of every tile, of partial tiles and of unaligned rows.
#[test]
fn the_gradient_of_swiglu_has_its_bits_in_every_tile() {
    let mut compared = 0;
    for (case, [rows, outs, width]) in [[130, 40, 136], [33, 9, 131]].into_iter().enumerate() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let by_tma = dtype == Dtype::BF16 && width % 8 == 0 && outs % 8 == 0;
            let tiles = [Tile::Small, Tile::Large].into_iter().chain(by_tma.then_some(Tile::Wgmma));
            let gradients = |device: &Device, tile: Option<Tile>| -> Result<[Vec<f32>; 2]> {
                let fill =
                    |shape: [usize; 2], seed| on(device, shape, &arbitrary(shape[0] * shape[1], seed), dtype);
                let (dy, w) = (fill([rows, outs], 1), fill([outs, width], 2));
                let (gate, up) = (fill([rows, width], 3), fill([rows, width], 4));
                let values = |x: &Tensor| x.to_f32()?.to_vec();
                let Some(tile) = tile else {
                    let weight = Weight::new(&w.to_f32()?, dtype)?;
                    let dx = ops::linear_backward_input(&[&dy], &[&weight])?;
                    let [dgate, dup] = ops::silu_mul_backward(&gate, &up, &dx, dtype)?;
                    return Ok([values(&dgate)?, values(&dup)?]);
                };
                let gpu = as_gpu(device);
                let [dgate, dup] = [
                    Tensor::zeros(device, &[rows, width], dtype)?,
                    Tensor::zeros(device, &[rows, width], dtype)?,
                ];
                let part = Part { dy: dy.at(gpu, dtype)?, w: w.at(gpu, dtype)?, outs };
                let group = Group { parts: [part, Part::default(), Part::default()], dtype };
                let at = [&gate, &up, &dgate, &dup].map(|x| x.at(gpu, dtype).unwrap());
                // SAFETY: operands of these shapes.
                unsafe { swiglu_input(gpu, &group, [rows, width], at, tile)? };
                Ok([values(&dgate)?, values(&dup)?])
            };
            let want = gradients(&Device::reference_of(TensorCore::Hopper), None).unwrap();
            for tile in tiles {
                let device = gpu(case);
                let got = gradients(&device, Some(tile)).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    compare_bits(got, want)
                        .unwrap_or_else(|e| panic!("{rows}x{outs}x{width} {dtype} {tile:?}: {e}"));
                    compared += want.len();
                }
            }
        }
    }
    println!("gradients of SwiGLU, every tile: {compared} values, 0 differing bits");
}

#[test]
fn the_kernels_trap_in_an_image_without_wgmma() {
    let emulation =
        Emulation { wgmma: false, ..Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain) };
    let options = LaunchOptions { sync: true, ..LaunchOptions::default() };
    let gpu = Gpu::emulated_with(emulation, options).unwrap();
    let (buffer, tile, dtype) = (gpu.buffer(4 * 256).unwrap(), Tile::Wgmma, Dtype::BF16);
    let at = buffer.arg();
    let part = Part { dy: at, w: at, outs: 16 };
    let group = Group { parts: [part, Part::default(), Part::default()], dtype };
    let product = RowProduct { dw: at, accumulate: false, dy: at, x: at, shape: [16, 16] };
    let samples = Samples::of_lengths([16]);
    // SAFETY: the kernels trap before they read or write.
    let trapped = unsafe {
        [
            input(&gpu, &group, [16, 16], At(0), [at, At(0)], tile),
            swiglu_input(&gpu, &group, [16, 16], [at; 4], tile),
            weights(&gpu, &[product], dtype, &samples, tile),
        ]
    };
    for result in trapped {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("trap: wgmma in an image without machine code for sm_90a"), "{error}");
    }
}

/// The tiles of dx and of dw for 2048 rows of these samples, and 2048 outputs and inputs.
fn tiles(use_of: WgmmaUse, lengths: &[usize], dtype: Dtype) -> [Tile; 2] {
    let options = LaunchOptions { wgmma: use_of, ..LaunchOptions::default() };
    let emulation = Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain);
    let gpu = Gpu::emulated_with(emulation, options).unwrap();
    let buffer = gpu.buffer(256).unwrap();
    let (at, samples) = (buffer.arg(), Samples::of_lengths(lengths.iter().copied()));
    let part = Part { dy: at, w: at, outs: 2048 };
    let product = RowProduct { dw: At(0), accumulate: false, dy: at, x: at, shape: [2048, 2048] };
    let group = Group { parts: [part, part, Part::default()], dtype };
    [group.tile(&gpu, [2048, 2048]), tile_of(&gpu, &[product], dtype, &samples)]
}

#[test]
fn gradients_in_bf16_use_wgmma_unless_it_is_disabled_or_samples_have_many_ends() {
    let tiled = WgmmaUse::TiledProducts;
    assert_eq!(tiles(tiled, &[1024; 2], Dtype::BF16), [Tile::Wgmma; 2]);
    assert_eq!(tiles(tiled, &[64; 32], Dtype::BF16), [Tile::Wgmma; 2]);
    assert_eq!(tiles(WgmmaUse::Never, &[1024; 2], Dtype::BF16), [Tile::Large; 2]);
    assert_eq!(tiles(tiled, &[1024; 2], Dtype::F32), [Tile::Large; 2]);
    // 40 samples that end within a stage
    assert_eq!(tiles(tiled, &[50; 40], Dtype::BF16), [Tile::Wgmma, Tile::Large]);
}
