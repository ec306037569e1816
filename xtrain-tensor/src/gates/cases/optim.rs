//! Cases of the optimizer: all tensors of a model, and one sum of squares.
use crate::gates::case::Case;
use crate::gates::values::{Values, label};
use crate::ops::{self, AdamWScalars, Update};
use crate::{Device, Dtype, Result, Tensor};

const STEP: AdamWScalars =
    AdamWScalars { s1: 0.1, s2: 0.999, s3: 0.001, keep: 0.999_97, step: 3e-3, c2: 0.044_698_99, eps: 1e-8 };

pub(crate) fn sum_of_squares() -> Vec<Case> {
    const SHAPES: [[usize; 2]; 9] =
        [[1, 1], [3, 5], [33, 33], [31, 65], [65, 7], [2, 129], [1, 1000], [100, 1], [257, 3]];
    let mut cases = Vec::new();
    for (i, [n, c]) in SHAPES.into_iter().enumerate() {
        for values in [Values::of(i), Values::of(i + 2)] {
            let seed = i as u64 + 951;
            let g = values.fill(n * c, seed);
            let name = format!("{n}x{c}-{}", label(Dtype::F32, values));
            cases.push(Case::rows("sum_of_squares", name, seed, 1, move |dev, _| {
                Ok(vec![vec![ops::sum_of_squares(&Tensor::new(dev, &[n, c], g.clone())?)?]])
            }));
        }
    }
    cases
}

/// The shapes of models: matrices and vectors with sizes around the blocks of a launch.
const MODELS: [&[&[usize]]; 5] = [
    &[&[1]],
    &[&[37, 5], &[5], &[7, 5], &[5, 7], &[5]],
    &[&[33, 129], &[129], &[4097], &[3, 1365], &[4096], &[1, 1]],
    &[&[300, 3], &[0], &[3], &[257, 17], &[17]],
    &[&[1000, 9], &[2, 64, 6], &[6]],
];

/// Every tensor of a model four times: value, gradient, first and second moment. With `infinite`, the last value of
/// that one of the four is infinite.
fn model(
    i: usize,
    dev: &Device,
    values: Values,
    seed: u64,
    infinite: Option<usize>,
) -> Result<Vec<[Tensor; 4]>> {
    let one = |(at, shape): (usize, &&[usize])| {
        let n = shape.iter().product();
        let fill = |kind: u64| values.fill(n, seed + 1000 * kind + 10_000 * at as u64);
        let mut x = [fill(0), fill(1), fill(2), fill(3).iter().map(|v| v.abs()).collect()];
        if let Some(which) = infinite.filter(|_| at + 1 == MODELS[i].len()) {
            x[which][n - 1] = f32::NEG_INFINITY;
        }
        let [w, g, m, v] = x.map(|x| Tensor::new(dev, shape, x));
        Ok([w?, g?, m?, v?])
    };
    MODELS[i].iter().enumerate().map(one).collect()
}

/// A case of one of the [`MODELS`].
struct ModelCase {
    i: usize,
    values: Values,
    name: String,
    seed: u64,
}

fn models(op: &'static str) -> impl Iterator<Item = ModelCase> {
    let with = move |i: usize| {
        [Values::of(i), Values::of(i + 1)].map(|values| {
            let name = format!("model{i}-{}", label(Dtype::F32, values));
            ModelCase { i, values, name, seed: (i * op.len()) as u64 + 971 }
        })
    };
    (0..MODELS.len()).flat_map(with)
}

pub(crate) fn adamw_all() -> Vec<Case> {
    let case = |(at, ModelCase { i, values, name, seed })| {
        let max_norm = [1e-3, 0.5, 1e20][at % 3];
        Case::rows("adamw_all", name, seed, 1, move |dev, _| {
            let mut all = model(i, dev, values, seed, (at == 5).then_some(1))?;
            let updates = all.iter_mut().map(|[w, g, m, v]| Update { w, g, m, v });
            let mut row = vec![ops::adamw_all(&mut updates.collect::<Vec<_>>(), max_norm, &STEP)?.norm];
            for [w, _, m, v] in &all {
                for x in [w, m, v] {
                    row.extend(x.to_vec::<f32>()?);
                }
            }
            Ok(vec![row])
        })
    };
    models("adamw_all")
        .enumerate()
        .map(case)
        .chain(models("adamw_all").enumerate().map(|(at, case)| finite(at, case)))
        .collect()
}

/// Whether the values are finite after the update: an infinite value stays infinite, an infinite gradient stops the
/// update.
fn finite(at: usize, ModelCase { i, values, name, seed }: ModelCase) -> Case {
    let infinite = [None, Some(0), Some(1)][at % 3];
    Case::rows("adamw_all", format!("{name}-finite"), seed, 1, move |dev, _| {
        let mut all = model(i, dev, values, seed, infinite)?;
        // the padding of the last block must not be updated: without eps it would be 0 / 0
        for [_, _, _, v] in &mut all {
            *v = Tensor::new(dev, v.shape(), v.to_vec::<f32>()?.iter().map(|v| v + 1.0).collect())?;
        }
        let updates = all.iter_mut().map(|[w, g, m, v]| Update { w, g, m, v });
        let done = ops::adamw_all(&mut updates.collect::<Vec<_>>(), 1.0, &AdamWScalars { eps: 0.0, ..STEP })?;
        Ok(vec![vec![f32::from(u8::from(done.finite))]])
    })
}
