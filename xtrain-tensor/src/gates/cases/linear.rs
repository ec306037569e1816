//! Cases of the matrix products.
use super::{DTYPES, SAMPLES, part_of};
use crate::gates::case::{Case, pick, split, tensor};
use crate::gates::values::{Values, label};
use crate::ops::{self, Weight};
use crate::{Dtype, Tensor};

/// Rows, outputs, inputs.
const SHAPES: [[usize; 3]; 22] = [
    [1, 1, 1],
    [1, 33, 257],
    [3, 31, 255],
    [5, 65, 33],
    [7, 127, 31],
    [2, 129, 64],
    [33, 5, 129],
    [31, 3, 513],
    [65, 32, 63],
    [64, 1, 256],
    [17, 64, 65],
    [4, 257, 32],
    [12, 48, 511],
    [13, 16, 512],
    [1, 512, 40],
    [6, 100, 128],
    [129, 2, 127],
    [1, 70, 1024],
    [9, 255, 3],
    [14, 96, 5],
    [20, 160, 130],
    [3, 70, 2048],
];

/// The dtypes, kinds of values and names of the cases of one shape.
fn variants(i: usize, shape: &str) -> Vec<(Dtype, Values, String, u64)> {
    let kinds =
        if i.is_multiple_of(3) { vec![Values::of(i), Values::of(i + 2)] } else { vec![Values::of(i)] };
    let with = |dtype| kinds.iter().map(move |&v| (dtype, v));
    let named = |(at, (dtype, v)): (usize, (Dtype, Values))| {
        (dtype, v, format!("{shape}-{}", label(dtype, v)), (i * 8 + at) as u64)
    };
    DTYPES.into_iter().flat_map(with).enumerate().map(named).collect()
}

/// A bf16 product with so many outputs and inputs that a block has more chunks than warps, and a last round in which a
/// warp has none.
fn several_rounds() -> Case {
    let [n, out, width] = [2, 2112, 2304];
    let (x, w) = (Values::Plain.fill(n * width, 176), Values::Plain.fill(out * width, 1176));
    Case::rows("linear", format!("{n}x{out}x{width}-bf16-rounds"), 176, n, move |dev, rows| {
        let x = tensor(dev, &[rows.len(), width], &pick(&x, width, rows), Dtype::BF16)?;
        let w = Weight::new(&tensor(dev, &[out, width], &w, Dtype::F32)?, Dtype::BF16)?;
        split(&ops::linear(&x, &w, None, Dtype::F32)?, rows.len())
    })
}

pub(crate) fn linear() -> Vec<Case> {
    let mut cases = vec![several_rounds()];
    for (i, [n, out, width]) in SHAPES.into_iter().enumerate() {
        for (dtype, values, name, seed) in variants(i, &format!("{n}x{out}x{width}")) {
            let (x, w) = (values.fill(n * width, seed), values.fill(out * width, seed + 1000));
            let bias = (i % 2 == 1).then(|| values.fill(out, seed + 2000));
            let to = if i % 4 == 2 { Dtype::BF16 } else { Dtype::F32 };
            cases.push(Case::rows("linear", name, seed, n, move |dev, rows| {
                let x = tensor(dev, &[rows.len(), width], &pick(&x, width, rows), dtype)?;
                let w = Weight::new(&tensor(dev, &[out, width], &w, Dtype::F32)?, dtype)?;
                let b = bias.as_ref().map(|b| tensor(dev, &[out], b, Dtype::F32)).transpose()?;
                split(&ops::linear(&x, &w, b.as_ref(), to)?, rows.len())
            }));
        }
    }
    cases
}

pub(crate) fn linear_add() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, out, width]) in SHAPES.into_iter().enumerate().step_by(3) {
        for (dtype, values, name, seed) in variants(i, &format!("{n}x{out}x{width}")) {
            let (x, w) = (values.fill(n * width, seed), values.fill(out * width, seed + 1000));
            let (h, bias) = (values.fill(n * out, seed + 2000), values.fill(out, seed + 3000));
            cases.push(Case::rows("linear_add", name, seed, n, move |dev, rows| {
                let x = tensor(dev, &[rows.len(), width], &pick(&x, width, rows), dtype)?;
                let h = tensor(dev, &[rows.len(), out], &pick(&h, out, rows), Dtype::F32)?;
                let w = Weight::new(&tensor(dev, &[out, width], &w, Dtype::F32)?, dtype)?;
                let b = tensor(dev, &[out], &bias, Dtype::F32)?;
                split(&ops::linear_add(&h, &x, &w, (i % 2 == 0).then_some(&b))?, rows.len())
            }));
        }
    }
    cases
}

pub(crate) fn linear_backward_input() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, out, width]) in SHAPES.into_iter().enumerate() {
        let outs = [out, out / 2 + 1, 300 / (i + 1) + 1][..i % 3 + 1].to_vec();
        for (dtype, values, name, seed) in variants(i, &format!("{n}x{outs:?}x{width}").replace(' ', "")) {
            let fill = |at: u64, per: usize| -> Vec<Vec<f32>> {
                outs.iter().zip(at..).map(|(&o, s)| values.fill(o * per, seed + 1000 * s)).collect()
            };
            let (ws, dys, outs) = (fill(1, width), fill(5, n), outs.clone());
            cases.push(Case::rows("linear_backward_input", name, seed, n, move |dev, rows| {
                let (mut w, mut dy) = (Vec::new(), Vec::new());
                for (g, &out) in outs.iter().enumerate() {
                    w.push(Weight::new(&tensor(dev, &[out, width], &ws[g], Dtype::F32)?, dtype)?);
                    dy.push(tensor(dev, &[rows.len(), out], &pick(&dys[g], out, rows), dtype)?);
                }
                let (w, dy): (Vec<&Weight>, Vec<&Tensor>) = (w.iter().collect(), dy.iter().collect());
                split(&ops::linear_backward_input(&dy, &w)?, rows.len())
            }));
        }
    }
    cases
}

pub(crate) fn linear_backward_weight() -> Vec<Case> {
    const SIZES: [[usize; 2]; 12] = [
        [1, 1],
        [33, 5],
        [5, 65],
        [3, 257],
        [64, 31],
        [31, 32],
        [7, 127],
        [65, 33],
        [129, 3],
        [16, 64],
        [2, 513],
        [48, 40],
    ];
    let mut cases = Vec::new();
    for (i, [out, width]) in SIZES.into_iter().enumerate() {
        let lengths = SAMPLES[i % SAMPLES.len()];
        let n: usize = lengths.iter().sum();
        for (dtype, values, name, seed) in variants(i, &format!("{lengths:?}x{out}x{width}").replace(' ', ""))
        {
            let (x, dy) = (values.fill(n * width, seed), values.fill(n * out, seed + 1000));
            cases.push(Case::sums("linear_backward_weight", name, seed, lengths.len(), move |dev, parts| {
                let mut dw = Tensor::zeros(dev, &[out, width], Dtype::F32)?;
                for part in parts {
                    let (rows, samples) = part_of(lengths, part);
                    let shape = |c| [rows.len(), c];
                    let x = tensor(dev, &shape(width), &x[rows.start * width..rows.end * width], dtype)?;
                    let dy = tensor(dev, &shape(out), &dy[rows.start * out..rows.end * out], dtype)?;
                    ops::linear_backward_weight(&mut dw, &dy, &x, &samples)?;
                }
                split(&dw, out)
            }));
        }
    }
    cases
}

pub(crate) fn linear_backward_bias() -> Vec<Case> {
    let mut cases = Vec::new();
    // on a GPU, a block sums eight chunks at a time
    let many: &[usize] = &[1, 3, 1, 2, 1, 1, 4, 1, 1, 2, 1];
    let sizes = [1, 5, 31, 33, 64, 129].into_iter().zip(SAMPLES).chain([(33, many)]);
    for (i, (out, lengths)) in sizes.enumerate() {
        for values in Values::ALL {
            let (seed, n) = ((i * 8) as u64 + 1, lengths.iter().sum::<usize>());
            let name = format!("{lengths:?}x{out}-{}", label(Dtype::F32, values)).replace(' ', "");
            let dy = values.fill(n * out, seed);
            cases.push(Case::sums("linear_backward_bias", name, seed, lengths.len(), move |dev, parts| {
                let mut db = Tensor::zeros(dev, &[out], Dtype::F32)?;
                for part in parts {
                    let (rows, samples) = part_of(lengths, part);
                    let dy = &dy[rows.start * out..rows.end * out];
                    let dy = tensor(dev, &[rows.len(), out], dy, Dtype::F32)?;
                    ops::linear_backward_bias(&mut db, &dy, &samples)?;
                }
                split(&db, out)
            }));
        }
    }
    cases
}
