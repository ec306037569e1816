//! Cases of operations on single elements.
use super::DTYPES;
use crate::gates::case::{Case, join, pick, split, tensor};
use crate::gates::values::{Values, label};
use crate::{Dtype, Result, ops};

/// Rows and columns.
const SHAPES: [[usize; 2]; 9] =
    [[1, 1], [3, 5], [1, 33], [7, 31], [5, 64], [2, 127], [9, 17], [3, 257], [1, 1000]];

/// A case of `n` rows of `c` elements.
pub(super) struct Elements {
    pub(super) i: usize,
    pub(super) n: usize,
    pub(super) c: usize,
    pub(super) values: Values,
    pub(super) seed: u64,
}

pub(super) fn shapes() -> impl Iterator<Item = Elements> {
    let with = |(i, [n, c]): (usize, [usize; 2])| {
        [0, 1].map(|j| Elements { i, n, c, values: Values::of(i + 2 * j), seed: (i * 2 + j) as u64 + 901 })
    };
    SHAPES.into_iter().enumerate().flat_map(with)
}

pub(crate) fn add() -> Vec<Case> {
    let case = |Elements { n, c, values, seed, .. }| {
        let (a, b) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        Case::rows("add", format!("{n}x{c}-{}", label(Dtype::F32, values)), seed, n, move |dev, rows| {
            let of = |x: &[f32]| tensor(dev, &[rows.len(), c], &pick(x, c, rows), Dtype::F32);
            split(&ops::add(&of(&a)?, &of(&b)?)?, rows.len())
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn accumulate() -> Vec<Case> {
    let case = |Elements { n, c, values, seed, .. }| {
        let (a, b) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        Case::rows(
            "accumulate",
            format!("{n}x{c}-{}", label(Dtype::F32, values)),
            seed,
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
    let case = |Elements { i, n, c, values, seed }| {
        let (g, u) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        let (dtype, out) = (DTYPES[i % 2], DTYPES[i / 2 % 2]);
        Case::rows("silu_mul", format!("{n}x{c}-{}", label(dtype, values)), seed, n, move |dev, rows| {
            let of = |x: &[f32]| tensor(dev, &[rows.len(), c], &pick(x, c, rows), dtype);
            split(&ops::silu_mul(&of(&g)?, &of(&u)?, out)?, rows.len())
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn silu_mul_backward() -> Vec<Case> {
    let case = |Elements { i, n, c, values, seed }| {
        let (g, u) = (values.fill(n * c, seed), values.fill(n * c, seed + 1000));
        let dy = values.fill(n * c, seed + 2000);
        let (dtype, out) = (DTYPES[i % 2], DTYPES[i / 2 % 2]);
        let name = format!("{n}x{c}-{}", label(dtype, values));
        Case::rows("silu_mul_backward", name, seed, n, move |dev, rows| {
            let of = |x: &[f32], dtype| tensor(dev, &[rows.len(), c], &pick(x, c, rows), dtype);
            let (g, u, dy) = (of(&g, dtype)?, of(&u, dtype)?, of(&dy, Dtype::F32)?);
            let [dg, du] = ops::silu_mul_backward(&g, &u, &dy, out)?;
            Ok(join(split(&dg, rows.len())?, split(&du, rows.len())?))
        })
    };
    shapes().map(case).collect()
}

pub(crate) fn first_non_finite() -> Vec<Case> {
    let mut cases = many_non_finite();
    for (i, n) in [1usize, 33, 257, 1000].into_iter().enumerate() {
        for (dtype, bad) in [(Dtype::F32, 1.0), (Dtype::F32, f32::NAN), (Dtype::BF16, f32::NEG_INFINITY)] {
            let seed = i as u64 + 991;
            let mut x = Values::of(i).fill(n, seed);
            x[n - 1] = bad;
            let name = format!("{n}-{dtype}-{bad:?}");
            cases.push(Case::rows("first_non_finite", name, seed, 1, move |dev, _| {
                // a finite tensor, the tensor of this case, and a non-finite tensor
                let all = [vec![1.0; 7], x.clone(), vec![f32::INFINITY; n % 3 + 1]];
                let all =
                    all.iter().map(|x| tensor(dev, &[x.len()], x, dtype)).collect::<Result<Vec<_>>>()?;
                let first = |n: usize| ops::first_non_finite(&all.iter().take(n).collect::<Vec<_>>());
                let both = [first(2)?, first(3)?];
                Ok(vec![both.iter().map(|at| at.map_or(-1.0, |at| at as f32)).collect()])
            }));
        }
    }
    cases
}

/// Tensors of more values than a GPU has threads in a launch: a thread continues after a non-finite value.
fn many_non_finite() -> Vec<Case> {
    let case = |dtype| {
        let (n, seed) = ((1 << 18) + 300, 995);
        Case::rows("first_non_finite", format!("{n}-{dtype}-many"), seed, 1, move |dev, _| {
            let mut x = Values::Plain.fill(n, seed);
            (0..n).step_by(100).for_each(|i| x[i] = f32::NAN);
            let all = [tensor(dev, &[3], &[1.0; 3], dtype)?, tensor(dev, &[n], &x, dtype)?];
            let first = ops::first_non_finite(&[&all[0], &all[1]])?;
            Ok(vec![vec![first.map_or(-1.0, |at| at as f32)]])
        })
    };
    DTYPES.map(case).into()
}
