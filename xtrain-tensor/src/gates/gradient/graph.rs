//! Gradient samples of compositions: operations in the middle of a graph, and values with two uses.
use super::attention::Sequences;
use super::check::{Maker, Many, Sample, operand};
use super::f64::F64;
use super::loss::Objective;
use super::pointwise::rotated;
use crate::RopeTable;
use crate::gates::values::CaseRng;
use crate::ops::Samples;
use crate::reference::{self, AttentionOutput, Heads};

/// Every composition.
pub(super) const ALL: [Maker; 3] =
    [("attention block", attention_block), ("gated block", gated_block), ("tied table", tied_table)];

const EPS: f64 = 1e-5;

/// The backward of a matrix product: `(dx, dw)`.
fn linear_back(x: &[f64], w: &[f64], dy: &[f64], samples: &Samples) -> (Vec<f64>, Vec<f64>) {
    let width = x.len() / samples.rows();
    let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    reference::linear_dx::<F64>(&mut dx, dy, w, width);
    reference::linear_dw::<F64>(&mut dw, dy, x, width, samples);
    (dx, dw)
}

/// The backward of a norm: `(dx, dw)`.
fn norm_back(x: &[f64], w: &[f64], dy: &[f64], samples: &Samples) -> (Vec<f64>, Vec<f64>) {
    let mut dw = vec![0.0; w.len()];
    (reference::rms_norm_backward::<F64>(x, w, dy, EPS, &mut dw, samples), dw)
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `h + o(attention(rope(norm(q)), rope(norm(k)), v))` with `q`, `k`, `v` of `norm(h)`: `h` has two uses, `norm(h)`
/// three.
#[derive(Clone)]
struct Block {
    c: usize,
    heads: Heads,
    sequences: Sequences,
    table: RopeTable,
}

/// The activations that the backward of a [`Block`] reads.
struct Activations {
    normed: Vec<f64>,
    raw: [Vec<f64>; 2],
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    attended: AttentionOutput<f64>,
}

impl Block {
    fn heads_of(&self, x: &[f64], gain: &[f64], heads: usize) -> Vec<f64> {
        let normed = reference::rms_norm(x, gain, EPS);
        rotated(&normed, heads, self.heads.hd, &self.table, &self.sequences.pos, reference::rotate)
    }

    /// Inputs: h, gain, wq, wk, wv, q gain, k gain, wo.
    fn forward(&self, x: &[Vec<f64>]) -> (Vec<f64>, Activations) {
        let Heads { nh, nkv, hd } = self.heads;
        let normed = reference::rms_norm(&x[0], &x[1], EPS);
        let [q, k, v] = [2, 3, 4].map(|w| reference::linear::<F64>(&normed, &x[w], self.c));
        let (rotated_q, rotated_k) = (self.heads_of(&q, &x[5], nh), self.heads_of(&k, &x[6], nkv));
        let mask = self.sequences.mask();
        let attended = reference::attention::<F64>([&rotated_q, &rotated_k, &v], self.heads, &mask);
        let y = sum(&x[0], &reference::linear::<F64>(&attended.y, &x[7], nh * hd));
        (y, Activations { normed, raw: [q, k], q: rotated_q, k: rotated_k, v, attended })
    }

    fn backward(&self, x: &[Vec<f64>], dy: &[f64]) -> Many<f64> {
        let (_, kept) = self.forward(x);
        let Heads { nh, nkv, hd } = self.heads;
        let samples = Samples::of_lengths([self.sequences.rows()]);
        let (dattended, dwo) = linear_back(&kept.attended.y, &x[7], dy, &samples);
        let AttentionOutput { y, lse } = &kept.attended;
        let saved = reference::AttentionSaved { q: &kept.q, k: &kept.k, v: &kept.v, y, lse, dy: &dattended };
        let [dq, dk, dv] = reference::attention_backward::<F64>(saved, self.heads, &self.sequences.mask());
        let back = |raw: &[f64], gain: &[f64], d: &[f64], heads: usize| {
            let d = rotated(d, heads, hd, &self.table, &self.sequences.pos, reference::rotate_back);
            norm_back(raw, gain, &d, &samples.times(heads))
        };
        let (dq, dq_gain) = back(&kept.raw[0], &x[5], &dq, nh);
        let (dk, dk_gain) = back(&kept.raw[1], &x[6], &dk, nkv);
        let mut dnormed = vec![0.0; x[0].len()];
        let mut dws = Vec::new();
        for (w, d) in [(2, &dq), (3, &dk), (4, &dv)] {
            let mut dw = vec![0.0; x[w].len()];
            reference::linear_dx::<F64>(&mut dnormed, d, &x[w], self.c);
            reference::linear_dw::<F64>(&mut dw, d, &kept.normed, self.c, &samples);
            dws.push(dw);
        }
        let (dh, dgain) = norm_back(&x[0], &x[1], &dnormed, &samples);
        let mut gradients = vec![sum(dy, &dh), dgain];
        gradients.extend(dws);
        gradients.extend([dq_gain, dk_gain, dwo]);
        gradients
    }
}

fn attention_block(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let lengths = rng.choose::<&[usize]>(&[&[1, 3], &[5], &[7, 2], &[31, 1], &[33]]);
    let [nh, nkv, hd] = rng.choose(&[[1, 1, 2], [2, 1, 4], [4, 2, 6], [3, 3, 2]]);
    let c = rng.choose(&[1, 3, 5, 7, 31, 33]);
    let window = rng.choose(&[None, Some(4)]);
    let sequences = Sequences::new(lengths, window);
    let n = sequences.rows();
    let table = RopeTable::new(1e4, hd, 64).expect("a table");
    let block = Block { c, heads: Heads { nh, nkv, hd }, sequences, table };
    let sizes = [n * c, c, nh * hd * c, nkv * hd * c, nkv * hd * c, hd, hd, c * nh * hd];
    let same = block.clone();
    Sample {
        name: format!("attention block/{lengths:?}x{c}x{nh}.{nkv}.{hd}-{window:?}"),
        inputs: sizes.iter().zip(seed + 2..).map(|(&n, seed)| operand(n, seed)).collect(),
        forward: Box::new(move |x| block.forward(x).0),
        backward: Box::new(move |x, dy| same.backward(x, dy)),
        shipped: None,
    }
}

/// `h + down(silu(gate) up)` of `norm(h)`. Inputs: h, gain, gate, up, down.
fn gated_block(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, c, f) = (rng.choose(&[1, 3, 5, 33]), rng.choose(&[1, 5, 31, 32]), rng.choose(&[1, 7, 33, 65]));
    let samples = Samples::of_lengths([n]);
    let inner = move |x: &[Vec<f64>]| {
        let normed = reference::rms_norm(&x[0], &x[1], EPS);
        let [g, u] = [2, 3].map(|w| reference::linear::<F64>(&normed, &x[w], c));
        let gated: Vec<f64> = g.iter().zip(&u).map(|(&g, &u)| reference::silu_mul(g, u)).collect();
        (normed, g, u, gated)
    };
    let sizes = [n * c, c, f * c, f * c, c * f];
    Sample {
        name: format!("gated block/{n}x{c}x{f}"),
        inputs: sizes.iter().zip(seed + 2..).map(|(&n, seed)| operand(n, seed)).collect(),
        forward: Box::new(move |x| sum(&x[0], &reference::linear::<F64>(&inner(x).3, &x[4], f))),
        backward: Box::new(move |x, dy| {
            let (normed, g, u, gated) = inner(x);
            let (dgated, ddown) = linear_back(&gated, &x[4], dy, &samples);
            let each = |i: usize| reference::silu_mul_backward(g[i], u[i], dgated[i]);
            let (dg, du): (Vec<f64>, Vec<f64>) = (0..dgated.len()).map(each).unzip();
            let (from_gate, dgate) = linear_back(&normed, &x[2], &dg, &samples);
            let (from_up, dup) = linear_back(&normed, &x[3], &du, &samples);
            let (dh, dgain) = norm_back(&x[0], &x[1], &sum(&from_gate, &from_up), &samples);
            vec![sum(dy, &dh), dgain, dgate, dup, ddown]
        }),
        shipped: None,
    }
}

/// The loss of `norm(table[id])` with the table as the head. Inputs: table, gain.
fn tied_table(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, v, c) = (rng.choose(&[1, 3, 7]), rng.choose(&[2, 33, 65, 129]), rng.choose(&[1, 5, 31, 33]));
    let id = rng.ids(n, v);
    let objective = Objective::new(seed, [n, v, c]);
    let rows = move |x: &[f64], id: &[u32]| -> Vec<f64> {
        id.iter().flat_map(|&i| x[i as usize * c..][..c].to_vec()).collect()
    };
    let (ids, same, samples) = (id.clone(), objective.clone(), Samples::of_lengths([n]));
    Sample {
        name: format!("tied table/{n}x{v}x{c}"),
        inputs: vec![operand(v * c, seed + 2), operand(c, seed + 3)],
        forward: Box::new(move |x| {
            vec![objective.forward(&reference::rms_norm(&rows(&x[0], &id), &x[1], EPS), &x[0])]
        }),
        backward: Box::new(move |x, dy| {
            let rows = rows(&x[0], &ids);
            let normed = reference::rms_norm(&rows, &x[1], EPS);
            let [dnormed, mut dtable] = same.backward(&normed, &x[0], dy[0]);
            let (drows, dgain) = norm_back(&rows, &x[1], &dnormed, &samples);
            for (&i, d) in ids.iter().zip(drows.chunks_exact(c)) {
                dtable[i as usize * c..][..c].iter_mut().zip(d).for_each(|(a, b)| *a += b);
            }
            vec![dtable, dgain]
        }),
        shipped: None,
    }
}
