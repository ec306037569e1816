//! Residual sums whose stream decides the result: denormals and zeros next to tiny products, and huge values. The sum
//! is compared with its definition.
#![cfg(xtrain_emu)]
use super::{
    Epilogue, Forward, SCHEDULES, Tensor, Weight, arbitrary, as_gpu, compare_bits, expected, forward, gpu,
    on, tiles,
};
use crate::testing::checked;
use crate::{Device, Dtype};

/// Rows, outputs, inputs.
const SHAPES: [[usize; 3]; 5] = [[1, 35, 256], [5, 16, 24], [9, 20, 100], [33, 72, 40], [70, 33, 300]];

/// A residual stream `[rows, outs]`: without `huge` values, denormals, zeros and the smallest normal numbers of both
/// signs; with them, each row also holds one value of 2^120, whose square is not finite.
fn stream([rows, outs, _]: [usize; 3], huge: bool) -> Vec<f32> {
    let tiny = [1, 0x8000_0001, 0, 0x8000_0000, 0x007f_ffff, 0x0080_0000, 0x8080_0000, 0x0000_1234];
    let value = |i: usize| match huge && i % outs == i / outs % outs {
        true => f32::from_bits(0x7b80_0000),
        false => f32::from_bits(tiny[(i + i / 7) % tiny.len()]),
    };
    (0..rows * outs).map(value).collect()
}

/// Compares every tile in both dtypes, with a stream of tiny and of huge values, on the emulator. Returns the number of
/// values.
pub(crate) fn sums() -> Result<usize, String> {
    compare(gpu)
}

fn compare(open: impl Fn(usize) -> Device) -> Result<usize, String> {
    let mut compared = 0;
    for (case, shape @ [rows, outs, width]) in SHAPES.into_iter().enumerate() {
        // the products are around 2^-132
        let small =
            |n: usize, seed| arbitrary(n, seed).iter().map(|x| x * 2f32.powi(-66)).collect::<Vec<f32>>();
        let (x, w) = (small(rows * width, 1), small(outs * width, 2));
        for dtype in [Dtype::F32, Dtype::BF16] {
            let sums = expected(shape, &x, &w, dtype);
            for (tile, huge) in tiles(dtype, shape).flat_map(|tile| [(tile, false), (tile, true)]) {
                let h = stream(shape, huge);
                let sum: Vec<f32> = h.iter().zip(&sums).map(|(h, sum)| h + sum).collect();
                let device = open(case + tile as usize);
                let gpu = as_gpu(&device);
                let weight = Weight::new(&on(&device, [outs, width], &w, Dtype::F32), dtype).unwrap();
                let x = on(&device, [rows, width], &x, dtype);
                let h = on(&device, [rows, outs], &h, Dtype::F32);
                let y = Tensor::zeros(&device, &[rows, outs], Dtype::F32).unwrap();
                let epilogue = Epilogue { bias: None, residual: Some(&h) };
                let product =
                    Forward { x: x.at(gpu, dtype).unwrap(), w: weight.at(gpu).unwrap(), shape, dtype };
                let to = y.at(gpu, Dtype::F32).unwrap();
                // SAFETY: operands of the shape, and room for their product.
                unsafe { forward(gpu, product, epilogue, to, Dtype::F32, tile).unwrap() };
                let name = format!("sum {shape:?} {dtype} {tile:?}, huge: {huge}, on {device}");
                compare_bits(&y.to_vec::<f32>().unwrap(), &sum)
                    .map_err(|e| format!("gate gpu residual: {name}, seeds 1 and 2: {e}"))?;
                compared += sum.len();
            }
        }
    }
    Ok(compared)
}

#[test]
fn residual_sums_of_edge_values_have_the_bits_of_their_definition() {
    let plain = sums().unwrap_or_else(|e| panic!("{e}"));
    let checked = compare(|case| checked(SCHEDULES[case % 4])).unwrap_or_else(|e| panic!("{e}"));
    println!("residual sums of edge values: {} values, 0 differing bits", plain + checked);
}
