//! Cases of QK-norm and RoPE on heads.
use super::{DTYPES, SAMPLES, part_of};
use crate::gates::case::{Case, pick, split, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, GainGradient, Norm, RopeArgs, Samples};
use crate::{Dtype, RopeTable, Tensor};

/// Rows, heads, width of a head.
const SHAPES: [[usize; 3]; 8] =
    [[1, 1, 2], [5, 4, 64], [3, 6, 128], [7, 3, 40], [2, 8, 256], [33, 2, 16], [9, 1, 66], [300, 1, 32]];

/// Number of positions in the table.
const POSITIONS: usize = 700;

pub(crate) fn norm_rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, h, hd]) in SHAPES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values) = ((i * 2 + d) as u64 + 1701, Values::of(i + d));
            let (x, w) = (values.fill(n * h * hd, seed), Values::Plain.fill(hd, seed + 1000));
            let pos = CaseRng::new(seed).ids(n, POSITIONS);
            let name = format!("{n}x{h}x{hd}-{}", label(dtype, values));
            cases.push(Case::rows("norm_rope", name, seed, n, move |dev, rows| {
                let x = tensor(dev, &[rows.len(), h, hd], &pick(&x, h * hd, rows), dtype)?;
                let (w, table) = (tensor(dev, &[hd], &w, Dtype::F32)?, RopeTable::new(1e4, hd, POSITIONS)?);
                let pos: Vec<u32> = rows.iter().map(|&n| pos[n]).collect();
                split(
                    &ops::norm_rope(
                        &x,
                        Norm { gain: &w, eps: 1e-6 },
                        RopeArgs { table: &table, positions: &pos },
                    )?,
                    rows.len(),
                )
            }));
        }
    }
    cases
}

/// A case of the gradient of heads `[n, h, hd]` with respect to `x` in `dtype`, rounded to `out`.
fn head_gradient(i: usize, d: usize, dtype: Dtype, out: Dtype) -> Case {
    let [n, h, hd] = SHAPES[i];
    let (seed, values) = ((i * 2 + d) as u64 + 1731, Values::of(i + d));
    let (x, dy) = (values.fill(n * h * hd, seed), values.fill(n * h * hd, seed + 2000));
    let (w, pos) = (Values::Plain.fill(hd, seed + 1000), CaseRng::new(seed).ids(n, POSITIONS));
    let rounded = if out == Dtype::F32 { "" } else { "-rounded" };
    let name = format!("{n}x{h}x{hd}-{}{rounded}", label(dtype, values));
    Case::rows("norm_rope_backward", name, seed, n, move |dev, rows| {
        let of = |x: &[f32], dtype| tensor(dev, &[rows.len(), h, hd], &pick(x, h * hd, rows), dtype);
        let (x, dy, w) = (of(&x, dtype)?, of(&dy, Dtype::F32)?, tensor(dev, &[hd], &w, Dtype::F32)?);
        let pos: Vec<u32> = rows.iter().map(|&n| pos[n]).collect();
        let rope = RopeArgs { table: &RopeTable::new(1e4, hd, POSITIONS)?, positions: &pos };
        let (mut dw, samples) = (Tensor::zeros(dev, &[hd], Dtype::F32)?, Samples::of_lengths([rows.len()]));
        let (norm, gain) = (Norm { gain: &w, eps: 1e-6 }, GainGradient { dw: &mut dw, samples: &samples });
        split(&ops::norm_rope_backward(&x, norm, rope, &dy, gain, out)?, rows.len())
    })
}

pub(crate) fn norm_rope_backward() -> Vec<Case> {
    let mut cases = Vec::new();
    for i in 0..SHAPES.len() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            cases.push(head_gradient(i, d, dtype, Dtype::F32));
        }
        if i % 2 == 0 {
            for (d, dtype) in DTYPES.into_iter().enumerate() {
                cases.push(head_gradient(i, d, dtype, Dtype::BF16));
            }
        }
    }
    for (i, [h, hd]) in [[1, 8], [3, 64], [5, 32], [2, 6]].into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values, lengths) = ((i * 2 + d) as u64 + 1771, Values::of(i + d), SAMPLES[i]);
            let n = lengths.iter().sum::<usize>();
            let (x, dy) = (values.fill(n * h * hd, seed), values.fill(n * h * hd, seed + 2000));
            let (w, pos) = (Values::Plain.fill(hd, seed + 1000), CaseRng::new(seed).ids(n, POSITIONS));
            let name = format!("{lengths:?}x{h}x{hd}-{}", label(dtype, values)).replace(' ', "");
            cases.push(Case::sums("norm_rope_backward", name, seed, lengths.len(), move |dev, parts| {
                let mut dw = Tensor::zeros(dev, &[hd], Dtype::F32)?;
                let (w, table) = (tensor(dev, &[hd], &w, Dtype::F32)?, RopeTable::new(1e4, hd, POSITIONS)?);
                for part in parts {
                    let (rows, samples) = part_of(lengths, part);
                    let at = rows.start * h * hd..rows.end * h * hd;
                    let of = |x: &[f32], dtype| tensor(dev, &[rows.len(), h, hd], &x[at.clone()], dtype);
                    let (x, dy, norm) = (of(&x, dtype)?, of(&dy, Dtype::F32)?, Norm { gain: &w, eps: 1e-6 });
                    let rope = RopeArgs { table: &table, positions: &pos[rows.clone()] };
                    let gain = GainGradient { dw: &mut dw, samples: &samples };
                    ops::norm_rope_backward(&x, norm, rope, &dy, gain, dtype)?;
                }
                split(&dw, hd)
            }));
        }
    }
    cases
}
