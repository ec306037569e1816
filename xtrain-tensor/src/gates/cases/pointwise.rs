//! Cases of operations on single elements, and of the optimizer.
use super::DTYPES;
use crate::gates::case::{Case, join, pick, split, tensor};
use crate::gates::values::{Values, label};
use crate::ops::{self, AdamWScalars};
use crate::{Dtype, Tensor};

/// Rows and columns.
const SHAPES: [[usize; 2]; 9] =
    [[1, 1], [3, 5], [1, 33], [7, 31], [5, 64], [2, 127], [9, 17], [3, 257], [1, 1000]];

fn shapes() -> impl Iterator<Item = (usize, [usize; 2], Values, u64)> {
    let with = |(i, shape)| [0, 1].map(|j| (i, shape, Values::of(i + 2 * j), (i * 2 + j) as u64 + 901));
    SHAPES.into_iter().enumerate().flat_map(with)
}

pub(crate) fn add() -> Vec<Case> {
    let case = |(_, [n, c], values, seed): (usize, [usize; 2], Values, u64)| {
        let (a, b) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        Case::rows("add", (format!("{n}x{c}-{}", label(Dtype::F32, values)), seed), n, move |dev, rows| {
            let of = |x: &[f32]| tensor(dev, &[rows.len(), c], &pick(x, c, rows), Dtype::F32);
            split(&ops::add(&of(&a)?, &of(&b)?)?, rows.len())
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn accumulate() -> Vec<Case> {
    let case = |(_, [n, c], values, seed): (usize, [usize; 2], Values, u64)| {
        let (a, b) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        Case::rows(
            "accumulate",
            (format!("{n}x{c}-{}", label(Dtype::F32, values)), seed),
            n,
            move |dev, rows| {
                let of = |x: &[f32]| tensor(dev, &[rows.len(), c], &pick(x, c, rows), Dtype::F32);
                let mut y = of(&a)?;
                ops::accumulate(&mut y, &of(&b)?)?;
                split(&y, rows.len())
            },
        )
    };
    shapes().map(case).collect()
}

pub(crate) fn silu_mul() -> Vec<Case> {
    let case = |(i, [n, c], values, seed): (usize, [usize; 2], Values, u64)| {
        let (g, u) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        let (dtype, out) = (DTYPES[i % 2], DTYPES[i / 2 % 2]);
        Case::rows("silu_mul", (format!("{n}x{c}-{}", label(dtype, values)), seed), n, move |dev, rows| {
            let of = |x: &[f32]| tensor(dev, &[rows.len(), c], &pick(x, c, rows), dtype);
            split(&ops::silu_mul(&of(&g)?, &of(&u)?, out)?, rows.len())
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn silu_mul_backward() -> Vec<Case> {
    let case = |(i, [n, c], values, seed): (usize, [usize; 2], Values, u64)| {
        let (g, u) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        let dy = values.fill(n * c, seed + 2000);
        let (dtype, out) = (DTYPES[i % 2], DTYPES[i / 2 % 2]);
        let name = format!("{n}x{c}-{}", label(dtype, values));
        Case::rows("silu_mul_backward", (name, seed), n, move |dev, rows| {
            let of = |x: &[f32], dtype| tensor(dev, &[rows.len(), c], &pick(x, c, rows), dtype);
            let (g, u, dy) = (of(&g, dtype)?, of(&u, dtype)?, of(&dy, Dtype::F32)?);
            let (dg, du) = ops::silu_mul_backward(&g, &u, &dy, out)?;
            Ok(join(split(&dg, rows.len())?, split(&du, rows.len())?))
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn adamw() -> Vec<Case> {
    const STEP: AdamWScalars = AdamWScalars {
        s1: 0.1,
        s2: 0.999,
        s3: 0.001,
        keep: 0.999_97,
        step: 3e-3,
        c2: 0.044_698_99,
        eps: 1e-8,
    };
    let case = |(i, [n, c], values, seed): (usize, [usize; 2], Values, u64)| {
        let x: Vec<Vec<f32>> = (0..4).map(|at| values.fill(n * c, seed + 1000 * at)).collect();
        let clip = [1.0, 0.37][i % 2];
        Case::rows("adamw", (format!("{n}x{c}-{}", label(Dtype::F32, values)), seed), n, move |dev, rows| {
            // one row is a vector, which is not decayed
            let shape = if n == 1 { vec![c] } else { vec![rows.len(), c] };
            let of = |x: &[f32]| tensor(dev, &shape, &pick(x, c, rows), Dtype::F32);
            let squares: Vec<f32> = x[3].iter().map(|v| v.abs()).collect();
            let (mut w, g, mut m, mut v) = (of(&x[0])?, of(&x[1])?, of(&x[2])?, of(&squares)?);
            ops::adamw(&mut w, &g, [&mut m, &mut v], clip, &STEP)?;
            Ok(join(join(split(&w, rows.len())?, split(&m, rows.len())?), split(&v, rows.len())?))
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn sum_of_squares() -> Vec<Case> {
    const SHAPES: [[usize; 2]; 9] =
        [[1, 1], [3, 5], [33, 33], [31, 65], [65, 7], [2, 129], [1, 1000], [100, 1], [257, 3]];
    let mut cases = Vec::new();
    for (i, [n, c]) in SHAPES.into_iter().enumerate() {
        for values in [Values::of(i), Values::of(i + 2)] {
            let seed = i as u64 + 951;
            let g = values.fill(n * c, seed);
            let name = format!("{n}x{c}-{}", label(Dtype::F32, values));
            cases.push(Case::rows("sum_of_squares", (name, seed), 1, move |dev, _| {
                Ok(vec![vec![ops::sum_of_squares(&Tensor::new(dev, &[n, c], g.clone())?)?]])
            }));
        }
    }
    cases
}

pub(crate) fn all_finite() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, n) in [1usize, 33, 257, 1000].into_iter().enumerate() {
        for (dtype, bad) in
            [(Dtype::F32, None), (Dtype::F32, Some(f32::NAN)), (Dtype::BF16, Some(f32::NEG_INFINITY))]
        {
            let seed = i as u64 + 981;
            let mut x = Values::of(i).fill(n, seed);
            if let Some(bad) = bad {
                x[n - 1] = bad;
            }
            let name = format!("{n}-{dtype}-{bad:?}");
            cases.push(Case::rows("all_finite", (name, seed), 1, move |dev, _| {
                let finite = ops::all_finite(&tensor(dev, &[n], &x, dtype)?)?;
                Ok(vec![vec![f32::from(u8::from(finite))]])
            }));
        }
    }
    cases
}
