//! Gradient samples of the matrix products.
use super::check::{Many, Sample, operand};
use super::f64::F64;
use crate::gates::values::{CaseRng, UGLY};
use crate::ops::{self, Samples, Weight};
use crate::reference;
use crate::{Device, Dtype, Result, Tensor};

/// Rows, the outputs of 1 to 3 weights, the inputs, and the training examples of the rows.
#[derive(Clone)]
struct Shape {
    n: usize,
    outs: Vec<usize>,
    width: usize,
    samples: Samples,
}

impl Shape {
    /// Ugly sizes whose product is small enough for finite differences.
    fn new(seed: u64, weights: usize) -> Shape {
        let mut rng = CaseRng::new(seed);
        loop {
            let (n, width) = (rng.choose(&UGLY), rng.choose(&UGLY));
            let outs: Vec<usize> = (0..weights).map(|_| rng.choose(&UGLY)).collect();
            let first = 1 + rng.below(n);
            if n * width * outs.iter().sum::<usize>() < 40_000 {
                let samples = Samples::of_lengths([first, n - first]);
                return Shape { n, outs, width, samples };
            }
        }
    }
}

/// Inputs: `x`, the weights, their biases.
pub(crate) fn linear(seed: u64) -> Sample {
    let shape = Shape::new(seed, 1 + seed as usize / 100 % 3);
    let Shape { n, ref outs, width, .. } = shape;
    let mut sizes = vec![n * width];
    sizes.extend(outs.iter().map(|o| o * width));
    sizes.extend(outs);
    let inputs = sizes.iter().zip(seed + 2..).map(|(&n, seed)| operand(n, seed)).collect();
    let (a, b, c) = (shape.clone(), shape.clone(), shape.clone());
    Sample {
        name: format!("linear/{n}x{outs:?}x{width}"),
        inputs,
        forward: Box::new(move |x| forward(&a, x)),
        backward: Box::new(move |x, dy| backward(&b, x, dy)),
        shipped: Some(Box::new(move |device, dtype, x, dy| shipped(&c, device, dtype, x, dy))),
    }
}

fn forward(shape: &Shape, x: &[Vec<f64>]) -> Vec<f64> {
    let g = shape.outs.len();
    let each = |i: usize| {
        let mut y = reference::linear::<F64>(&x[0], &x[1 + i], shape.width);
        let bias = x[1 + g + i].iter().cycle();
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        y
    };
    (0..g).flat_map(each).collect()
}

fn backward(shape: &Shape, x: &[Vec<f64>], dy: &[f64]) -> Many<f64> {
    let Shape { n, ref outs, width, ref samples } = *shape;
    let (mut dx, mut dws, mut dbs, mut dy) = (vec![0.0; n * width], Vec::new(), Vec::new(), dy);
    for (i, &out) in outs.iter().enumerate() {
        let (here, rest) = dy.split_at(n * out);
        let (mut dw, mut db) = (vec![0.0; out * width], vec![0.0; out]);
        reference::linear_dx::<F64>(&mut dx, here, &x[1 + i], width);
        reference::linear_dw::<F64>(&mut dw, here, &x[0], width, samples);
        reference::linear_db::<F64>(&mut db, here, samples);
        dws.push(dw);
        dbs.push(db);
        dy = rest;
    }
    std::iter::once(dx).chain(dws).chain(dbs).collect()
}

fn shipped(
    shape: &Shape,
    device: &Device,
    dtype: Dtype,
    x: &[Vec<f32>],
    dy: &[f32],
) -> Result<(Vec<f32>, Many<f32>)> {
    let Shape { n, ref outs, width, ref samples } = *shape;
    let of = |shape: &[usize], x: &[f32]| Tensor::new(device, shape, x.to_vec());
    let xs = of(&[n, width], &x[0])?.cast(dtype)?;
    let (mut ws, mut dys, mut y, mut gradients, mut dbs, mut dy) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), dy);
    for (i, &out) in outs.iter().enumerate() {
        let (here, rest) = dy.split_at(n * out);
        let w = Weight::new(&of(&[out, width], &x[1 + i])?, dtype)?;
        let b = of(&[out], &x[1 + outs.len() + i])?;
        y.extend_from_slice(ops::linear(&xs, &w, Some(&b), Dtype::F32)?.data()?);
        let d = of(&[n, out], here)?;
        let mut dw = Tensor::zeros(device, &[out, width], Dtype::F32)?;
        let mut db = Tensor::zeros(device, &[out], Dtype::F32)?;
        ops::linear_backward_weight(&mut dw, &d.cast(dtype)?, &xs, samples)?;
        ops::linear_backward_bias(&mut db, &d, samples)?;
        gradients.push(dw.data::<f32>()?.to_vec());
        dbs.push(db.data::<f32>()?.to_vec());
        dys.push(d.cast(dtype)?);
        ws.push(w);
        dy = rest;
    }
    let dx = ops::linear_backward_input(&dys.iter().collect::<Vec<_>>(), &ws.iter().collect::<Vec<_>>())?;
    gradients.insert(0, dx.data::<f32>()?.to_vec());
    gradients.extend(dbs);
    Ok((y, gradients))
}

/// Inputs: `h`, `x`, `w`, bias.
pub(crate) fn linear_add(seed: u64) -> Sample {
    let shape = Shape::new(seed, 1);
    let Shape { n, ref outs, width, .. } = shape;
    let out = outs[0];
    let sizes = [n * out, n * width, out * width, out];
    let (a, b, c) = (shape.clone(), shape.clone(), shape.clone());
    Sample {
        name: format!("linear_add/{n}x{out}x{width}"),
        inputs: sizes.iter().zip(seed + 2..).map(|(&n, seed)| operand(n, seed)).collect(),
        forward: Box::new(move |x| x[0].iter().zip(forward(&a, &x[1..])).map(|(h, y)| h + y).collect()),
        backward: Box::new(move |x, dy| {
            std::iter::once(dy.to_vec()).chain(backward(&b, &x[1..], dy)).collect()
        }),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let (_, gradients) = shipped(&c, device, dtype, &x[1..], dy)?;
            let of = |shape: &[usize], x: &[f32]| Tensor::new(device, shape, x.to_vec());
            let w = Weight::new(&of(&[out, width], &x[2])?, dtype)?;
            let (h, xs, b) = (of(&[n, out], &x[0])?, of(&[n, width], &x[1])?, of(&[out], &x[3])?);
            let y = ops::linear_add(&h, &xs.cast(dtype)?, &w, Some(&b))?;
            Ok((y.data::<f32>()?.to_vec(), std::iter::once(dy.to_vec()).chain(gradients).collect()))
        })),
    }
}
