//! Gradient samples of the operations on rows, elements and tables.
use super::check::{Sample, operand};
use super::f64::F64;
use crate::gates::values::{CaseRng, UGLY};
use crate::ops::{self, Norm, RopeArgs, Samples};
use crate::reference;
use crate::{Dtype, Result, RopeTable, Tensor};

fn vec(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_f32()?.data::<f32>()?.to_vec())
}

/// Input: the table.
pub(crate) fn embedding(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, v, c) = (rng.choose(&UGLY), rng.choose(&UGLY), rng.choose(&UGLY));
    let id = rng.ids(n, v);
    let (a, b, ids) = (id.clone(), id.clone(), id);
    Sample {
        name: format!("embedding/{n}x{v}x{c}"),
        inputs: vec![operand(v * c, seed + 2)],
        forward: Box::new(move |x| a.iter().flat_map(|&i| x[0][i as usize * c..][..c].to_vec()).collect()),
        backward: Box::new(move |x, dy| {
            let mut dw = vec![0.0; x[0].len()];
            for (&i, dy) in b.iter().zip(dy.chunks_exact(c)) {
                dw[i as usize * c..][..c].iter_mut().zip(dy).for_each(|(a, b)| *a += b);
            }
            vec![dw]
        }),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let w = Tensor::new(device, &[v, c], x[0].clone())?;
            let mut dw = Tensor::zeros(device, &[v, c], Dtype::F32)?;
            ops::embedding_backward(&mut dw, &ids, &Tensor::new(device, &[n, c], dy.to_vec())?)?;
            Ok((vec(&ops::embedding(&w, &ids, dtype)?)?, vec![vec(&dw)?]))
        })),
    }
}

/// Inputs: `x`, gain. Complete rows for even samples, heads for odd ones.
pub(crate) fn rms_norm(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, h, c) = match seed / 100 % 2 {
        0 => (rng.choose(&UGLY), 1, rng.choose(&UGLY)),
        _ => (rng.choose(&[1, 3, 5, 33]), rng.choose(&[1, 2, 3]), rng.choose(&[2, 4, 6, 32, 64])),
    };
    let eps = rng.choose(&[1e-6f32, 1e-5]);
    let first = rng.below(n + 1);
    let samples = Samples::of_lengths([first, n - first]).times(h);
    let same = samples.clone();
    Sample {
        name: format!("rms_norm/{n}x{h}x{c}"),
        inputs: vec![operand(n * h * c, seed + 2), operand(c, seed + 3)],
        forward: Box::new(move |x| reference::rms_norm(&x[0], &x[1], f64::from(eps))),
        backward: Box::new(move |x, dy| {
            let mut dw = vec![0.0; c];
            let dx = reference::rms_norm_backward::<F64>(&x[0], &x[1], dy, f64::from(eps), &mut dw, &same);
            vec![dx, dw]
        }),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let shape = [n, h, c];
            let xs = Tensor::new(device, &shape, x[0].clone())?.cast(dtype)?;
            let w = Tensor::new(device, &[c], x[1].clone())?;
            let mut dw = Tensor::zeros(device, &[c], Dtype::F32)?;
            let dy = Tensor::new(device, &shape, dy.to_vec())?;
            let dx = ops::rms_norm_backward(&xs, Norm { gain: &w, eps }, &dy, &mut dw, &samples, None)?;
            Ok((vec(&ops::rms_norm(&xs, &w, eps, dtype)?)?, vec![vec(&dx)?, vec(&dw)?]))
        })),
    }
}

/// Every head of `x [n, h, hd]`, rotated by `rotate` with the table's entries in f64.
pub(super) fn rotated(
    x: &[f64],
    h: usize,
    hd: usize,
    table: &RopeTable,
    pos: &[u32],
    rotate: fn(&mut [f64], &[f64], &[f64]),
) -> Vec<f64> {
    let mut y = x.to_vec();
    for (row, &pos) in y.chunks_exact_mut(h * hd).zip(pos) {
        let (cos, sin) = table.row(pos as usize);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        row.chunks_exact_mut(hd).for_each(|head| rotate(head, &wide(cos), &wide(sin)));
    }
    y
}

pub(crate) fn rope_rows(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, h, hd) = (rng.choose(&UGLY), rng.choose(&[1, 2, 5]), rng.choose(&[2, 4, 6, 10, 32]));
    let pos = rng.ids(n, 3000);
    let table = RopeTable::new(1e4, hd, 3000).expect("a table");
    let ((a, b), (p, q)) = ((table.clone(), table.clone()), (pos.clone(), pos.clone()));
    Sample {
        name: format!("rope_rows/{n}x{h}x{hd}"),
        inputs: vec![operand(n * h * hd, seed + 2)],
        forward: Box::new(move |x| rotated(&x[0], h, hd, &a, &p, reference::rotate)),
        backward: Box::new(move |_, dy| vec![rotated(dy, h, hd, &b, &q, reference::rotate_back)]),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let of = |x: &[f32]| Tensor::new(device, &[n, h, hd], x.to_vec());
            let rope = RopeArgs { table: &table, positions: &pos };
            let y = ops::rope_rows(&of(&x[0])?.cast(dtype)?, rope, dtype)?;
            Ok((vec(&y)?, vec![vec(&ops::rope_backward(&of(dy)?, rope)?)?]))
        })),
    }
}

/// Inputs: gate, up.
pub(crate) fn silu_mul(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, c) = (rng.choose(&UGLY), rng.choose(&UGLY));
    let scale = rng.choose(&[1.0, 8.0]);
    let gate = operand(n * c, seed + 2).into_iter().map(|x| x * scale).collect();
    Sample {
        name: format!("silu_mul/{n}x{c}"),
        inputs: vec![gate, operand(n * c, seed + 3)],
        forward: Box::new(|x| x[0].iter().zip(&x[1]).map(|(&g, &u)| reference::silu_mul(g, u)).collect()),
        backward: Box::new(|x, dy| {
            let each = |i: usize| reference::silu_mul_backward(x[0][i], x[1][i], dy[i]);
            let (dg, du) = (0..dy.len()).map(each).unzip();
            vec![dg, du]
        }),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let of = |x: &[f32]| Tensor::new(device, &[n, c], x.to_vec());
            let (g, u) = (of(&x[0])?.cast(dtype)?, of(&x[1])?.cast(dtype)?);
            let [dg, du] = ops::silu_mul_backward(&g, &u, &of(dy)?, Dtype::F32)?;
            Ok((vec(&ops::silu_mul(&g, &u, dtype)?)?, vec![vec(&dg)?, vec(&du)?]))
        })),
    }
}

/// `h + silu(h) u`: a value with two uses, whose gradients are added.
pub(crate) fn add(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, c) = (rng.choose(&UGLY), rng.choose(&UGLY));
    let branch = |x: &[Vec<f64>], i: usize| reference::silu_mul(x[0][i], x[1][i]);
    Sample {
        name: format!("add/{n}x{c}"),
        inputs: vec![operand(n * c, seed + 2), operand(n * c, seed + 3)],
        forward: Box::new(move |x| (0..x[0].len()).map(|i| x[0][i] + branch(x, i)).collect()),
        backward: Box::new(|x, dy| {
            let each = |i: usize| reference::silu_mul_backward(x[0][i], x[1][i], dy[i]);
            let (dh, du): (Vec<f64>, _) = (0..dy.len()).map(each).unzip();
            vec![dh.iter().zip(dy).map(|(a, b)| a + b).collect(), du]
        }),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let of = |x: &[f32]| Tensor::new(device, &[n, c], x.to_vec());
            let (h, u, dy) = (of(&x[0])?, of(&x[1])?, of(dy)?);
            let branch = ops::silu_mul(&h.cast(dtype)?, &u.cast(dtype)?, Dtype::F32)?;
            let [mut dh, du] = ops::silu_mul_backward(&h.cast(dtype)?, &u.cast(dtype)?, &dy, Dtype::F32)?;
            ops::accumulate(&mut dh, &dy)?;
            Ok((vec(&ops::add(&h, &branch)?)?, vec![vec(&dh)?, vec(&du)?]))
        })),
    }
}

pub(crate) fn repeat_kv(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, nkv, group, hd) =
        (rng.choose(&UGLY), rng.choose(&[1, 2, 3]), rng.choose(&[1, 2, 5]), rng.choose(&[1, 4, 33]));
    let nh = nkv * group;
    Sample {
        name: format!("repeat_kv/{n}x{nkv}-{nh}x{hd}"),
        inputs: vec![operand(n * nkv * hd, seed + 2)],
        forward: Box::new(move |x| x[0].chunks_exact(hd).flat_map(|kv| kv.repeat(group)).collect()),
        backward: Box::new(move |_, dy| {
            let sum =
                |heads: &[f64]| (0..hd).map(|d| heads.iter().skip(d).step_by(hd).sum()).collect::<Vec<f64>>();
            vec![dy.chunks_exact(group * hd).flat_map(sum).collect()]
        }),
        shipped: Some(Box::new(move |device, _, x, dy| {
            let y = ops::repeat_kv(&Tensor::new(device, &[n, nkv, hd], x[0].clone())?, nh)?;
            let dy = Tensor::new(device, &[n, nh, hd], dy.to_vec())?;
            Ok((vec(&y)?, vec![vec(&ops::repeat_kv_backward(&dy, nkv)?)?]))
        })),
    }
}

/// Input: `x`. Some rows are read several times, others never.
pub(crate) fn gather_rows(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (m, n, c) = (rng.choose(&UGLY), rng.choose(&UGLY), rng.choose(&[1, 4, 33]));
    let rows = rng.ids(n, m);
    let (forward_rows, backward_rows) = (rows.clone(), rows.clone());
    Sample {
        name: format!("gather_rows/{n}-{m}x{c}"),
        inputs: vec![operand(m * c, seed + 2)],
        forward: Box::new(move |x| {
            forward_rows.iter().flat_map(|&row| x[0][row as usize * c..][..c].to_vec()).collect()
        }),
        backward: Box::new(move |_, dy| {
            let mut dx = vec![0.0; m * c];
            for (&row, dy) in backward_rows.iter().zip(dy.chunks_exact(c)) {
                dx[row as usize * c..][..c].iter_mut().zip(dy).for_each(|(a, b)| *a += b);
            }
            vec![dx]
        }),
        shipped: Some(Box::new(move |device, _, x, dy| {
            let y = ops::gather_rows(&Tensor::new(device, &[m, c], x[0].clone())?, &rows)?;
            let dy = Tensor::new(device, &[n, c], dy.to_vec())?;
            Ok((vec(&y)?, vec![vec(&ops::gather_rows_backward(&dy, &rows, m)?)?]))
        })),
    }
}
