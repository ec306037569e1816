//! Cases of an input gradient and the operation that reads it, which a GPU computes in one launch.
use super::DTYPES;
use crate::gates::case::{Case, join, pick, split, tensor};
use crate::gates::values::{Values, label};
use crate::ops::{self, Weight};
use crate::{Device, Dtype, Result, Tensor};

/// Rows, outputs, inputs.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [3, 31, 33],
    [5, 256, 64],
    [2, 300, 129],
    [65, 40, 130],
    [9, 513, 7],
    [70, 16, 68],
    [129, 24, 12],
];

/// Weights of a group: more than one launch takes are not fused.
const GROUPS: [usize; 4] = [1, 3, 2, 4];

/// An input gradient: gradients of the outputs, and weights.
struct Operands {
    shape: [usize; 3],
    dtype: Dtype,
    values: Values,
    seed: u64,
    name: String,
}

impl Operands {
    fn all(first_seed: u64) -> Vec<Operands> {
        let mut all = Vec::new();
        for (i, shape @ [n, out, width]) in SHAPES.into_iter().enumerate() {
            for (d, dtype) in DTYPES.into_iter().enumerate() {
                let (seed, values) = ((i * 2 + d) as u64 + first_seed, Values::of(i + d));
                let name = format!("{n}x{out}x{width}-{}", label(dtype, values));
                all.push(Operands { shape, dtype, values, seed, name });
            }
        }
        all
    }

    /// `dx` of a group of `weights`, for the rows `rows` only.
    fn gradient(&self, device: &Device, rows: &[usize], weights: usize) -> Result<Tensor> {
        let [n, out, width] = self.shape;
        let (mut dys, mut ws) = (Vec::new(), Vec::new());
        for at in 0..weights as u64 {
            let (dy, w) = (self.values.fill(n * out, self.seed + at), self.fill(out * width, 100 + at));
            dys.push(tensor(device, &[rows.len(), out], &pick(&dy, out, rows), self.dtype)?);
            ws.push(Weight::new(&tensor(device, &[out, width], &w, Dtype::F32)?, self.dtype)?);
        }
        let (dys, ws): (Vec<&Tensor>, Vec<&Weight>) = (dys.iter().collect(), ws.iter().collect());
        ops::linear_backward_input(&dys, &ws)
    }

    fn fill(&self, len: usize, seed: u64) -> Vec<f32> {
        self.values.fill(len, self.seed + 1000 * seed)
    }
}

pub(crate) fn linear_backward_rounded() -> Vec<Case> {
    let case = |(i, all): (usize, Operands)| {
        let weights = GROUPS[i / 2 % GROUPS.len()];
        let name = format!("{}-of-{weights}", all.name);
        Case::rows("linear_backward_rounded", name, all.seed, all.shape[0], move |device, rows| {
            split(&all.gradient(device, rows, weights)?.cast(Dtype::BF16)?, rows.len())
        })
    };
    Operands::all(2001).into_iter().enumerate().map(case).collect()
}

pub(crate) fn linear_backward_swiglu() -> Vec<Case> {
    let case = |(i, all): (usize, Operands)| {
        // a group, and another dtype of the result, are not fused
        let (weights, out) = match i / 2 % 4 {
            2 => (2, all.dtype),
            3 => (1, Dtype::F32),
            _ => (1, all.dtype),
        };
        let ([n, _, width], name) = (all.shape, format!("{}-of-{weights}-{out}", all.name));
        let (gate, up) = (all.fill(n * width, 7), all.fill(n * width, 8));
        Case::rows("linear_backward_swiglu", name, all.seed, n, move |device, rows| {
            let of = |x: &[f32]| tensor(device, &[rows.len(), width], &pick(x, width, rows), all.dtype);
            let dy = all.gradient(device, rows, weights)?;
            let [dgate, dup] = ops::silu_mul_backward(&of(&gate)?, &of(&up)?, &dy, out)?;
            Ok(join(split(&dgate, rows.len())?, split(&dup, rows.len())?))
        })
    };
    Operands::all(2051).into_iter().enumerate().map(case).collect()
}
