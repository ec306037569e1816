//! Cases of the norm: over complete rows, and over heads.
use super::{DTYPES, SAMPLES, part_of};
use crate::gates::case::{Case, pick, split, tensor};
use crate::gates::values::{Values, label};
use crate::ops::{self, Norm, Samples};
use crate::{Dtype, Tensor};

/// Rows, heads, width of a head.
const SHAPES: [[usize; 3]; 20] = [
    [1, 1, 1],
    [3, 1, 5],
    [7, 1, 31],
    [5, 1, 32],
    [1, 1, 33],
    [9, 1, 63],
    [4, 3, 64],
    [6, 1, 65],
    [2, 5, 2],
    [3, 1, 127],
    [5, 2, 128],
    [4, 1, 129],
    [33, 4, 6],
    [2, 1, 257],
    [3, 1, 513],
    [1, 1, 1000],
    [2, 1, 1025],
    [1, 2, 1539],
    [3, 1, 1100],
    [2, 1, 1270],
];

pub(crate) fn rms_norm() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, h, c]) in SHAPES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            for values in [Values::of(i + d), Values::of(i + d + 1)] {
                let seed = (i * 2 + d) as u64 + 501;
                let (x, w) = (values.fill(n * h * c, seed), Values::Plain.fill(c, seed + 1000));
                let eps = [1e-6, 1e-5][i % 2];
                let out = DTYPES[(i / 2) % 2];
                let name = format!("{n}x{h}x{c}-{}", label(dtype, values));
                cases.push(Case::rows("rms_norm", name, seed, n, move |dev, rows| {
                    let x = tensor(dev, &[rows.len(), h, c], &pick(&x, h * c, rows), dtype)?;
                    let w = tensor(dev, &[c], &w, Dtype::F32)?;
                    split(&ops::rms_norm(&x, &w, eps, out)?, rows.len())
                }));
            }
        }
    }
    cases
}

pub(crate) fn rms_norm_backward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (onto, step, end) in [(false, 1, ""), (true, 2, "-onto")] {
        for (i, [n, h, c]) in SHAPES.into_iter().enumerate().step_by(step) {
            for (d, dtype) in DTYPES.into_iter().enumerate() {
                let (seed, values) = ((i * 2 + d) as u64 + 601, Values::of(i + d));
                let (x, dy) = (values.fill(n * h * c, seed), values.fill(n * h * c, seed + 2000));
                let (w, others) = (Values::Plain.fill(c, seed + 1000), values.fill(n * h * c, seed + 3000));
                let name = format!("{n}x{h}x{c}-{}{end}", label(dtype, values));
                cases.push(Case::rows("rms_norm_backward", name, seed, n, move |dev, rows| {
                    let shape = [rows.len(), h, c];
                    let of = |x: &[f32], dtype| tensor(dev, &shape, &pick(x, h * c, rows), dtype);
                    let (x, dy) = (of(&x, dtype)?, of(&dy, Dtype::F32)?);
                    let w = tensor(dev, &[c], &w, Dtype::F32)?;
                    let mut dw = Tensor::zeros(dev, &[c], Dtype::F32)?;
                    let samples = Samples::of_lengths([rows.len()]).times(h);
                    let others = onto.then(|| of(&others, Dtype::F32)).transpose()?;
                    let dx = ops::rms_norm_backward(
                        &x,
                        Norm { gain: &w, eps: 1e-6 },
                        &dy,
                        &mut dw,
                        &samples,
                        others,
                    )?;
                    split(&dx, rows.len())
                }));
            }
        }
    }
    for (i, [h, c]) in [[1, 1], [5, 2], [1, 33], [3, 64], [2, 5], [1, 129]].into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values, lengths) = ((i * 2 + d) as u64 + 701, Values::of(i + d), SAMPLES[i]);
            let n = lengths.iter().sum::<usize>();
            let (x, dy) = (values.fill(n * h * c, seed), values.fill(n * h * c, seed + 2000));
            let w = Values::Plain.fill(c, seed + 1000);
            let name = format!("{lengths:?}x{h}x{c}-{}", label(dtype, values)).replace(' ', "");
            cases.push(Case::sums("rms_norm_backward", name, seed, lengths.len(), move |dev, parts| {
                let mut dw = Tensor::zeros(dev, &[c], Dtype::F32)?;
                let w = tensor(dev, &[c], &w, Dtype::F32)?;
                for part in parts {
                    let (rows, samples) = part_of(lengths, part);
                    let of = |x: &[f32], dtype| {
                        tensor(dev, &[rows.len(), h, c], &x[rows.start * h * c..rows.end * h * c], dtype)
                    };
                    let (x, dy) = (of(&x, dtype)?, of(&dy, Dtype::F32)?);
                    ops::rms_norm_backward(
                        &x,
                        Norm { gain: &w, eps: 1e-6 },
                        &dy,
                        &mut dw,
                        &samples.times(h),
                        None,
                    )?;
                }
                split(&dw, c)
            }));
        }
    }
    cases
}
