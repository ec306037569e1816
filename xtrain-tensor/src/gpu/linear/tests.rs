//! Every tile of every product, bitwise: f32 against the reference, bf16 against the order of `mma.sync`. The bits of
//! a row do not depend on the other rows.
#![cfg(xtrain_emu)]
mod accumulation;
mod fused;
pub(crate) mod residual;
pub(crate) mod shared_launch;
pub(crate) mod wgmma;
pub(crate) mod wgmma_gradients;

use half::bf16;

use super::input::{Group, Part, input};
use super::weights::{RowProduct, weights};
use super::*;
use crate::ops::{Affine, Samples};
use crate::reference::{self, Hopper, Mma};
use crate::testing::{arbitrary, compare_bits};
use crate::{Device, ThreadSchedule, ops, round_bf16};

/// `y + sum a(k) b(k)` in the order of `mma.sync`, on the emulated Hopper.
fn dot(y: f32, n: usize, a: impl Fn(usize) -> bf16, b: impl Fn(usize) -> bf16) -> f32 {
    reference::dot::<Mma<Hopper>>(y, n, |k| a(k).to_f32(), |k| b(k).to_f32())
}

const SCHEDULES: [ThreadSchedule; 4] = [
    ThreadSchedule::Forward,
    ThreadSchedule::Backward,
    ThreadSchedule::Random(5),
    ThreadSchedule::Priorities(6),
];

/// The tiles of a forward product of this shape. Only bf16 operands whose rows are multiples of 16 bytes can be read by
/// TMA.
fn tiles(dtype: Dtype, shape @ [_, _, width]: [usize; 3]) -> impl Iterator<Item = Tile> {
    let by_tma = dtype == Dtype::BF16 && width.is_multiple_of(8);
    let wgmma = by_tma.then_some([Tile::Wgmma, Tile::SmallWgmma]);
    let all = [Tile::Skinny, Tile::Small, Tile::Large].into_iter().chain(wgmma.into_iter().flatten());
    all.take(if shape == MANY_SKINNY_TILES { 1 } else { 5 })
}

/// Rows, outputs, inputs: full and partial tiles, aligned and unaligned rows.
const SHAPES: [[usize; 3]; 16] = [
    [1, 16, 256],
    [1, 35, 768],
    [3, 20, 100],
    [8, 33, 264],
    [9, 17, 513],
    [16, 40, 24],
    [20, 70, 300],
    [66, 72, 64],
    [5, 9, 4200],
    [131, 129, 40],
    [600, 72, 24],
    [130, 128, 72],
    [128, 256, 16],
    [8, 120, 2600],
    [20, 40, 1100],
    [12, 24, 2600],
];

/// A shape for skinny tiles only: enough of them for every multiprocessor. In larger tiles, nearly all is padding.
const MANY_SKINNY_TILES: [usize; 3] = [1, 2200, 2048];

/// The shapes of forward products.
fn forward_shapes() -> impl Iterator<Item = [usize; 3]> {
    SHAPES.into_iter().chain([MANY_SKINNY_TILES])
}

fn rounded(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|&x| bf16::from_f32(x)).collect()
}

/// A tensor of these values in `dtype`.
fn on(device: &Device, shape: [usize; 2], x: &[f32], dtype: Dtype) -> Tensor {
    Tensor::new(device, &shape, x.to_vec()).unwrap().cast(dtype).unwrap()
}

fn gpu(case: usize) -> Device {
    Device::emulated(SCHEDULES[case % 4]).unwrap()
}

fn as_gpu(device: &Device) -> &Gpu {
    match device {
        Device::Gpu(gpu) => gpu,
        Device::Reference(_) | Device::Cpu(_) => panic!("expected a GPU"),
    }
}

/// The product by definition.
fn expected([rows, outs, width]: [usize; 3], x: &[f32], w: &[f32], dtype: Dtype) -> Vec<f32> {
    if dtype == Dtype::F32 {
        let device = Device::reference();
        let w = Weight::new(&on(&device, [outs, width], w, dtype), dtype).unwrap();
        return ops::linear(&on(&device, [rows, width], x, dtype), &w, None, dtype)
            .unwrap()
            .to_vec()
            .unwrap();
    }
    let (x, w) = (rounded(x), rounded(w));
    let at = |n: usize, o: usize| dot(0.0, width, |k| x[n * width + k], |k| w[o * width + k]);
    (0..rows * outs).map(|i| at(i / outs, i % outs)).collect()
}

#[test]
fn every_tile_of_a_product_has_the_bits_of_its_definition() {
    let compared = products().unwrap_or_else(|e| panic!("{e}"));
    println!("tiles of the forward product: {compared} values, 0 differing bits");
}

/// Compares every tile of the forward product in both dtypes with its definition. Returns the number of values.
pub(crate) fn products() -> Result<usize, String> {
    let mut compared = 0;
    for (i, shape @ [rows, outs, width]) in forward_shapes().enumerate() {
        let (x, w) = (arbitrary(rows * width, 1), arbitrary(outs * width, 2));
        for dtype in [Dtype::F32, Dtype::BF16] {
            let sums = expected(shape, &x, &w, dtype);
            for (j, tile) in tiles(dtype, shape).enumerate() {
                let device = gpu(i + j);
                let w = Weight::new(&on(&device, [outs, width], &w, Dtype::F32), dtype).unwrap();
                let x = on(&device, [rows, width], &x, dtype);
                // plain; with bias and residual; with bias, rounded
                let variant = (i + j) % 3;
                let out = if variant == 2 { Dtype::BF16 } else { Dtype::F32 };
                let (bias, h) = (arbitrary(outs, 5), arbitrary(rows * outs, 6));
                let value = |(n, sum): (usize, &f32)| match variant {
                    0 => *sum,
                    1 => h[n] + (sum + bias[n % outs]),
                    _ => round_bf16(sum + bias[n % outs]),
                };
                let want: Vec<f32> = sums.iter().enumerate().map(value).collect();
                let bias = on(&device, [1, outs], &bias, Dtype::F32);
                let h = on(&device, [rows, outs], &h, Dtype::F32);
                let epilogue =
                    Epilogue { bias: (variant > 0).then_some(&bias), residual: (variant == 1).then_some(&h) };
                let y = Tensor::zeros(&device, &[rows, outs], out).unwrap();
                let (gpu, to) = (as_gpu(&device), y.at(as_gpu(&device), out).unwrap());
                let product = Forward { x: x.at(gpu, dtype).unwrap(), w: w.at(gpu).unwrap(), shape, dtype };
                // SAFETY: operands of the shape, and room for their product.
                unsafe { forward(gpu, product, epilogue, to, out, tile).unwrap() };
                compare_bits(&y.to_f32().unwrap().to_vec::<f32>().unwrap(), &want).map_err(|e| {
                    format!("gate gpu linear: {shape:?} {dtype} {tile:?} on {device}, seeds 1, 2, 5, 6: {e}")
                })?;
                compared += want.len();
            }
        }
    }
    Ok(compared)
}

#[test]
fn every_tile_of_the_gradients_has_the_bits_of_its_definition() {
    let mut compared = 0;
    for (i, [rows, outs, width]) in SHAPES.into_iter().enumerate() {
        let (w, dy) = (arbitrary(outs * width, 2), arbitrary(rows * outs, 3));
        let (x, before) = (arbitrary(rows * width, 1), arbitrary(outs * width, 4));
        let samples = Samples::of_lengths([rows / 3, rows - rows / 3]);
        let (xr, wr, dyr) = (rounded(&x), rounded(&w), rounded(&dy));
        // the weight twice: a group of two
        let dx = |i: usize| {
            let (n, k) = (i / width, i % width);
            let once = |y| dot(y, outs, |o| dyr[n * outs + o], |o| wr[o * width + k]);
            once(once(0.0))
        };
        let dw = |i: usize| {
            let (o, k) = (i / width, i % width);
            let one = |y, r: std::ops::Range<usize>| {
                dot(y, r.len(), |n| dyr[(r.start + n) * outs + o], |n| xr[(r.start + n) * width + k])
            };
            samples.ranges().fold(before[i], one)
        };
        let want_dx: Vec<f32> = (0..rows * width).map(dx).collect();
        let want_dw: Vec<f32> = (0..outs * width).map(dw).collect();
        let cpu = Device::reference();
        let all = |device: &Device, dtype, tile: Option<Tile>| {
            let weight = Weight::new(&on(device, [outs, width], &w, Dtype::F32), dtype).unwrap();
            let (x, dy) = (on(device, [rows, width], &x, dtype), on(device, [rows, outs], &dy, dtype));
            let mut dw = on(device, [outs, width], &before, Dtype::F32);
            let Some(tile) = tile else {
                let dx = ops::linear_backward_input(&[&dy, &dy], &[&weight, &weight]).unwrap();
                ops::linear_backward_weight(&mut dw, &dy, &x, &samples).unwrap();
                return [dx.to_vec::<f32>().unwrap(), dw.to_vec().unwrap()];
            };
            let (gpu, dx) = (as_gpu(device), Tensor::zeros(device, &[rows, width], Dtype::F32).unwrap());
            let part = Part { dy: dy.at(gpu, dtype).unwrap(), w: weight.at(gpu).unwrap(), outs };
            let group = Group { parts: [part, part, Part::default()], dtype };
            let to = dx.at(gpu, Dtype::F32).unwrap();
            let (x, to_dw) = (x.at(gpu, dtype).unwrap(), dw.at_mut(gpu, Dtype::F32).unwrap());
            let product = RowProduct { dw: to_dw, accumulate: true, dy: part.dy, x, shape: [outs, width] };
            // SAFETY: operands of these shapes, and room for their gradients.
            unsafe {
                input(gpu, &group, [rows, width], At(0), [to, At(0)], tile).unwrap();
                weights(gpu, &[product], dtype, &samples, tile).unwrap();
            }
            [dx.to_vec().unwrap(), dw.to_vec().unwrap()]
        };
        for (dtype, want) in [(Dtype::F32, all(&cpu, Dtype::F32, None)), (Dtype::BF16, [want_dx, want_dw])] {
            for (j, tile) in [Tile::Small, Tile::Large].into_iter().enumerate() {
                let device = gpu(i + j);
                let got = all(&device, dtype, Some(tile));
                for ((got, want), what) in got.iter().zip(&want).zip(["dx", "dw"]) {
                    let case = format!("{what} {rows}x{outs}x{width} {dtype} {tile:?} on {device}");
                    compare_bits(got, want).unwrap_or_else(|e| panic!("{case}: {e}"));
                    compared += want.len();
                }
            }
        }
    }
    println!("tiles of the gradients: {compared} values, 0 differing bits");
}

#[test]
fn a_row_has_the_same_bits_with_any_number_of_other_rows() {
    let (outs, width, max_rows) = (24, 520, 67);
    let (x, w) = (arbitrary(max_rows * width, 1), arbitrary(outs * width, 2));
    for dtype in [Dtype::F32, Dtype::BF16] {
        let mut all: Option<Vec<f32>> = None;
        for (i, n) in [max_rows, 1, 2, 8, 9, 16, 17, 31, 33, 65].into_iter().enumerate() {
            let device = gpu(i);
            let w = Weight::new(&on(&device, [outs, width], &w, Dtype::F32), dtype).unwrap();
            // the last n rows, so that the position of a row in its tile changes too
            let x = on(&device, [n, width], &x[(max_rows - n) * width..], dtype);
            let y: Vec<f32> = ops::linear(&x, &w, None, Dtype::F32).unwrap().to_vec().unwrap();
            let all = all.get_or_insert_with(|| y.clone());
            compare_bits(&y, &all[(max_rows - n) * outs..])
                .unwrap_or_else(|e| panic!("{n} rows in {dtype}: {e}"));
        }
    }
}

#[test]
fn a_head_that_norms_its_rows_has_the_bits_of_its_parts() {
    let compared = normed_heads().unwrap_or_else(|e| panic!("{e}"));
    println!("heads with a fused norm: {compared} values, 0 differing bits");
}

/// Compares products in f32 of a norm that is not computed yet with those of the computed norm. Returns the number of
/// values.
pub(crate) fn normed_heads() -> Result<usize, String> {
    let mut compared = 0;
    for (case, [rows, outs, width]) in forward_shapes().filter(|s| s[0] <= 8).enumerate() {
        for (d, dtype) in [Dtype::F32, Dtype::BF16].into_iter().enumerate() {
            let (device, seed) = (gpu(case + d), 90 + case as u64);
            let fill = |shape: [usize; 2], at: u64| {
                on(&device, shape, &arbitrary(shape[0] * shape[1], seed + at), Dtype::F32)
            };
            let (h, gain) = (fill([rows, width], 0), fill([1, width], 1).reshape(&[width]).unwrap());
            let w = Weight::new(&fill([outs, width], 2), dtype).unwrap();
            let bias = fill([1, outs], 3).reshape(&[outs]).unwrap();
            let bias = (case % 2 == 1).then_some(&bias);
            let x = ops::rms_norm(&h, &gain, 1e-6, dtype).unwrap();
            let before = as_gpu(&device).gpu_counters();
            let got = ops::linear(&x, &w, bias, Dtype::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(
                as_gpu(&device).gpu_counters().launches - before.launches,
                1,
                "{rows} x {outs} x {width}"
            );
            x.to_f32().unwrap().to_vec::<f32>().unwrap();
            let want = ops::linear(&x, &w, bias, Dtype::F32).unwrap().to_vec::<f32>().unwrap();
            compared += want.len();
            compare_bits(&got, &want).map_err(|e| {
                format!(
                    "gate gpu linear: head {rows} x {outs} x {width} {dtype} on {device}, seed {seed}: {e}"
                )
            })?;
        }
    }
    Ok(compared)
}

/// The kernels with a fused norm, against separate norm and product kernels.
#[test]
fn products_of_normed_rows_have_the_bits_of_their_parts() {
    for (case, [rows, outs, width]) in forward_shapes().filter(|s| s[0] <= 8).enumerate() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let device = gpu(case);
            let seed = 40 + case as u64;
            let h = on(&device, [rows, width], &arbitrary(rows * width, seed), Dtype::F32);
            let gain = on(&device, [1, width], &arbitrary(width, seed + 1), Dtype::F32);
            let gain = gain.reshape(&[width]).unwrap();
            let w = |at: u64, outs: usize| {
                Weight::new(
                    &on(&device, [outs, width], &arbitrary(outs * width, seed + at), Dtype::F32),
                    dtype,
                )
                .unwrap()
            };
            let (ws, up) = ([w(2, outs), w(3, 7), w(4, 16)], w(5, outs));
            let affine = |weight| Affine { weight, bias: None };

            // deferred: products that read `x` compute the norm themselves, until its address is read
            let x = ops::rms_norm(&h, &gain, 1e-6, dtype).unwrap();
            let before = as_gpu(&device).gpu_counters();
            let gated = ops::swiglu(&x, [affine(&ws[0]), affine(&up)]).unwrap();
            let got = ops::linears(&x, &ws.each_ref().map(affine)).unwrap();
            let label = format!("{rows} x {outs} x {width} {dtype:?}");
            assert_eq!(as_gpu(&device).gpu_counters().launches - before.launches, 2, "{label}");
            let bits = |y: &Tensor| y.to_f32().unwrap().to_vec::<f32>().unwrap();
            bits(&x);
            for (w, got) in ws.iter().zip(&got) {
                let want = ops::linear(&x, w, None, dtype).unwrap();
                compare_bits(&bits(got), &bits(&want)).unwrap_or_else(|e| panic!("{label}: {e}"));
            }

            let gate = ops::linear(&x, &up, None, dtype).unwrap();
            let want = ops::silu_mul(&got[0], &gate, dtype).unwrap();
            compare_bits(&bits(&gated), &bits(&want)).unwrap_or_else(|e| panic!("{label} gated: {e}"));
        }
    }
}

#[test]
fn a_product_of_more_blocks_than_a_grid_has_along_y_takes_a_square_tile() {
    let max_outs = 16 * MAX_GRID_Y;
    assert!(Tile::of_forward(1, max_outs, Dtype::BF16) == Tile::Skinny);
    assert!(Tile::of_forward(1, max_outs + 1, Dtype::BF16) != Tile::Skinny);
    // in the square tiles, rows of x map to grid y and outputs to grid x
    let shape = [1, max_outs + 1, 8];
    let grid = skinny(shape, Dtype::BF16).1;
    assert!(grid.blocks[1] as usize > MAX_GRID_Y, "{grid:?}");
}
