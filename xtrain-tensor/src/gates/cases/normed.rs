//! Cases of products of normalized rows: up to the number of rows of one GPU launch, and more.
use super::DTYPES;
use crate::gates::case::{Case, join, pick, split, tensor};
use crate::gates::values::{Values, label};
use crate::ops::{self, Affine, Weight};
use crate::{Dtype, Tensor};

/// Rows, width, outputs of each weight.
const SHAPES: [(usize, usize, &[usize]); 10] = [
    (1, 8, &[8, 16, 3]),
    (3, 33, &[40, 7]),
    (8, 256, &[32, 16, 16]),
    (5, 264, &[24, 24]),
    (9, 64, &[17, 16, 1]),
    (2, 2056, &[9]),
    (4, 515, &[33, 1, 20]),
    (17, 72, &[40, 9, 8]),
    (33, 40, &[24]),
    (70, 33, &[70, 5, 64]),
];

/// An f32 residual stream, its norm weight, and weights.
struct Operands {
    n: usize,
    width: usize,
    outs: Vec<usize>,
    dtype: Dtype,
    values: Values,
    h: Vec<f32>,
    gain: Vec<f32>,
    ws: Vec<[Vec<f32>; 2]>,
    /// The weights that have a bias.
    biased: Vec<bool>,
    seed: u64,
    name: String,
}

impl Operands {
    fn all(first_seed: u64) -> Vec<Operands> {
        let mut all = Vec::new();
        for (i, (n, width, outs)) in SHAPES.into_iter().enumerate() {
            for (d, dtype) in DTYPES.into_iter().enumerate() {
                let (seed, values) = ((i * 2 + d) as u64 + first_seed, Values::of(i + d));
                let weights = |(&out, at): (&usize, u64)| {
                    [values.fill(out * width, seed + 1000 * at), values.fill(out, seed + 1000 * at + 500)]
                };
                all.push(Operands {
                    h: values.fill(n * width, seed),
                    gain: Values::Plain.fill(width, seed + 300),
                    ws: outs.iter().zip(1..).map(weights).collect(),
                    name: format!("{n}x{outs:?}x{width}-{}", label(dtype, values)).replace(' ', ""),
                    biased: (0..outs.len()).map(|i| i % 2 == 0).collect(),
                    outs: outs.to_vec(),
                    n,
                    width,
                    dtype,
                    values,
                    seed,
                });
            }
        }
        all
    }

    /// The operands on the device, with the rows `rows` only.
    fn on(&self, device: &crate::Device, rows: &[usize]) -> crate::Result<On> {
        let &Operands { width, dtype, .. } = self;
        let h = tensor(device, &[rows.len(), width], &pick(&self.h, width, rows), Dtype::F32)?;
        let gain = tensor(device, &[width], &self.gain, Dtype::F32)?;
        let mut ws = Vec::new();
        for (([w, b], &out), &biased) in self.ws.iter().zip(&self.outs).zip(&self.biased) {
            let weight = Weight::new(&tensor(device, &[out, width], w, Dtype::F32)?, dtype)?;
            let bias = biased.then(|| tensor(device, &[out], b, Dtype::F32)).transpose()?;
            ws.push((weight, bias));
        }
        Ok(On { h, gain, ws })
    }
}

struct On {
    h: Tensor,
    gain: Tensor,
    ws: Vec<(Weight, Option<Tensor>)>,
}

impl On {
    fn affine(&self) -> Vec<Affine<'_>> {
        self.ws.iter().map(|(weight, bias)| Affine { weight, bias: bias.as_ref() }).collect()
    }
}

pub(crate) fn norm_linears() -> Vec<Case> {
    let case = |all: Operands| {
        Case::rows("norm_linears", all.name.clone(), all.seed, all.n, move |device, rows| {
            let on = all.on(device, rows)?;
            let ys = ops::linears(&ops::rms_norm(&on.h, &on.gain, 1e-6, all.dtype)?, &on.affine())?;
            let split = ys.iter().map(|y| split(y, rows.len())).collect::<crate::Result<Vec<_>>>()?;
            Ok(split.into_iter().reduce(join).expect("at least one weight"))
        })
    };
    Operands::all(1701).into_iter().map(case).collect()
}

/// Gate and up of one shape: the gate has a bias, and once more with the other combinations of biases in turn.
fn pairs(first_seed: u64) -> impl Iterator<Item = Operands> {
    const BIASES: [(&str, [bool; 2]); 3] =
        [("no-bias", [false, false]), ("up-bias", [false, true]), ("biases", [true, true])];
    let usual = Operands::all(first_seed).into_iter().map(|all| paired(all, [true, false]));
    let others = Operands::all(first_seed + 10_000).into_iter().enumerate().map(|(i, all)| {
        // three combinations, two dtypes of each shape: consecutive shapes start with another combination
        let (name, biased) = BIASES[(i / 2 + i % 2) % 3];
        let all = paired(all, biased);
        Operands { name: format!("{}-{name}", all.name), ..all }
    });
    usual.chain(others)
}

/// Two weights of one shape. The values of the second are those of the first, reversed.
fn paired(mut all: Operands, biased: [bool; 2]) -> Operands {
    all.outs = vec![all.outs[0]; 2];
    all.biased = biased.to_vec();
    let [mut w, mut b] = all.ws[0].clone();
    w.reverse();
    b.reverse();
    all.ws = vec![all.ws[0].clone(), [w, b]];
    all
}

pub(crate) fn linears() -> Vec<Case> {
    let case = |all: Operands| {
        Case::rows("linears", all.name.clone(), all.seed, all.n, move |device, rows| {
            let on = all.on(device, rows)?;
            let ys = ops::linears(&on.h.cast(all.dtype)?, &on.affine())?;
            let split = ys.iter().map(|y| split(y, rows.len())).collect::<crate::Result<Vec<_>>>()?;
            Ok(split.into_iter().reduce(join).expect("at least one weight"))
        })
    };
    Operands::all(1801).into_iter().map(case).collect()
}

pub(crate) fn swiglu() -> Vec<Case> {
    let case = |all: Operands| {
        Case::rows("swiglu", all.name.clone(), all.seed, all.n, move |device, rows| {
            let on = all.on(device, rows)?;
            let ws = on.affine();
            split(&ops::swiglu(&on.h.cast(all.dtype)?, [ws[0], ws[1]])?, rows.len())
        })
    };
    pairs(1851).map(case).collect()
}

pub(crate) fn swiglu_kept() -> Vec<Case> {
    let case = |all: Operands| {
        Case::rows("swiglu_kept", all.name.clone(), all.seed, all.n, move |device, rows| {
            let on = all.on(device, rows)?;
            let ws = on.affine();
            let ys = ops::swiglu_kept(&on.h.cast(all.dtype)?, [ws[0], ws[1]])?;
            let split = ys.iter().map(|y| split(y, rows.len())).collect::<crate::Result<Vec<_>>>()?;
            Ok(split.into_iter().reduce(join).expect("three values"))
        })
    };
    pairs(2101).map(case).collect()
}

pub(crate) fn linear_add_norm() -> Vec<Case> {
    let case = |(all, values, name): (Operands, Values, String)| {
        let out = all.outs[0];
        let stream = values.fill(all.n * out, all.seed + 700);
        let gain = Values::Plain.fill(out, all.seed + 800);
        Case::rows("linear_add_norm", name, all.seed, all.n, move |device, rows| {
            let on = all.on(device, rows)?;
            let h = tensor(device, &[rows.len(), out], &pick(&stream, out, rows), Dtype::F32)?;
            let gain = tensor(device, &[out], &gain, Dtype::F32)?;
            let (x, (w, b)) = (on.h.cast(all.dtype)?, &on.ws[0]);
            let sum = ops::linear_add(&h, &x, w, b.as_ref())?;
            let normed = ops::rms_norm(&sum, &gain, 1e-6, all.dtype)?;
            Ok(join(split(&sum, rows.len())?, split(&normed, rows.len())?))
        })
    };
    let usual = |all: Operands| {
        let name = all.name.clone();
        (all, Values::Plain, name)
    };
    // next to tiny products, a stream whose denormals and zeros decide the sum; next to others, one of huge values
    let edge = |all: Operands| {
        let tiny = matches!(all.values, Values::Tiny | Values::Edge);
        let values = if tiny { Values::Tiny } else { Values::Huge };
        let name = format!("{}-stream-{values:?}", all.name).to_lowercase();
        (all, values, name)
    };
    let edges = Operands::all(11_901).into_iter().map(edge);
    Operands::all(1901).into_iter().map(usual).chain(edges).map(case).collect()
}

pub(crate) fn norm_swiglu() -> Vec<Case> {
    let case = |all: Operands| {
        Case::rows("norm_swiglu", all.name.clone(), all.seed, all.n, move |device, rows| {
            let on = all.on(device, rows)?;
            let ws = on.affine();
            let x = ops::rms_norm(&on.h, &on.gain, 1e-6, all.dtype)?;
            split(&ops::swiglu(&x, [ws[0], ws[1]])?, rows.len())
        })
    };
    pairs(1751).map(case).collect()
}
