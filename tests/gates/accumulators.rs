//! Gradients that start from zeros: on a GPU the kernel of the first accumulation starts from zero instead of reading
//! them.
use xtrain::tensor::ops::{self, Norm, Samples};
use xtrain::tensor::testing::{arbitrary, compare_bits};
use xtrain::tensor::{Device, Dtype, Result, Tensor};

use crate::focused::{Checked, SEED};

const ROWS: usize = 6;
const OUT: usize = 5;
const WIDTH: usize = 9;

/// Gradients of a weight, a bias and a gain after each of two accumulations, and a clone of the zeros before them.
fn accumulate(device: &Device) -> Result<Vec<Vec<f32>>> {
    let tensor = |shape: &[usize], seed| Tensor::new(device, shape, arbitrary(shape.iter().product(), seed));
    let (dy, x) = (tensor(&[ROWS, OUT], SEED)?, tensor(&[ROWS, WIDTH], SEED + 1)?);
    let (dn, gain) = (tensor(&[ROWS, WIDTH], SEED + 2)?, tensor(&[WIDTH], SEED + 3)?);
    let samples = Samples::of_lengths([4, 2]);
    let shapes: [&[usize]; 3] = [&[OUT, WIDTH], &[OUT], &[WIDTH]];
    let mut values = Vec::new();
    for shared in [false, true] {
        let zeros = shapes.iter().map(|shape| Tensor::zeros(device, shape, Dtype::F32));
        let mut sums = zeros.collect::<Result<Vec<Tensor>>>()?;
        let clones = if shared { sums.clone() } else { Vec::new() };
        for _ in 0..2 {
            let [dw, db, dg] = &mut sums[..] else { unreachable!("three shapes") };
            ops::linear_backward_weight(dw, &dy, &x, &samples)?;
            ops::linear_backward_bias(db, &dy, &samples)?;
            ops::rms_norm_backward(&x, Norm { gain: &gain, eps: 1e-6 }, &dn, dg, &samples, None)?;
            values.extend(sums.iter().map(Tensor::to_vec).collect::<Result<Vec<Vec<f32>>>>()?);
        }
        values.extend(clones.iter().map(Tensor::to_vec).collect::<Result<Vec<Vec<f32>>>>()?);
    }
    Ok(values)
}

/// Compares the accumulations with those of the CPU.
pub(crate) fn over(device: &Device) -> Checked {
    let failed = |e: String| format!("gate accumulators, seed {SEED}: on {device}: {e}");
    let [got, want] = [device, &Device::cpu()].map(accumulate);
    let (got, want) = (got.map_err(|e| failed(e.to_string()))?, want.map_err(|e| failed(e.to_string()))?);
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        compare_bits(got, want).map_err(|e| failed(format!("list {at} of 15: {e}")))?;
    }
    Ok(want.iter().map(Vec::len).sum())
}
