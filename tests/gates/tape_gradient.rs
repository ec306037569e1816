//! Gate: the gradients of the shipped tape, in f32, are the derivatives of a forward pass in f64 that is written here
//! from docs/numerics.md and shares no code with the model.
use xtrain::model::{
    Biases, Config, Grads, LogitsProcessing, Model, Param, TrainingExample, normalize_loss_weights, objective,
};
use xtrain::tensor::ops::Target;
use xtrain::tensor::testing::arbitrary;
use xtrain::tensor::{Device, Dtype};

use crate::rng::CaseRng;

const SEED: u64 = 140;

/// Largest difference between a directional derivative and the finite difference, relative to the norm of the
/// parameter's gradient. The gradient has the error of some hundred dependent f32 roundings of 6e-8 each; the largest
/// difference was 1.4e-6. The error of the finite difference is below 1e-7 (see `STEP`). A wrong sign, a missing term
/// or exchanged terms are off by more than 1e-2.
const TOLERANCE: f64 = 2e-5;

/// Step of the central difference along a direction of norm 1: the third derivative contributes about STEP^2 = 1e-8,
/// rounding of the loss 1e-16 / STEP = 1e-12.
const STEP: f64 = 1e-4;

/// A matrix of f64 rows.
type Rows = Vec<Vec<f64>>;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x / sqrt(mean(x^2) + eps) * gain`.
fn norm(x: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    let r = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(gain).map(|(x, w)| x * r * w).collect()
}

/// `x Wᵀ + b` of every row.
fn linear(x: &Rows, w: &[f64], b: Option<&[f64]>) -> Rows {
    let of = |x: &Vec<f64>| {
        let sums = w.chunks_exact(x.len()).map(|w| dot(x, w));
        sums.enumerate().map(|(o, sum)| sum + b.map_or(0.0, |b| b[o])).collect()
    };
    x.iter().map(of).collect()
}

fn add(h: &Rows, y: &Rows) -> Rows {
    h.iter().zip(y).map(|(h, y)| h.iter().zip(y).map(|(h, y)| h + y).collect()).collect()
}

/// Rotates the pairs `(i, i + hd / 2)` of a head.
fn rotate(x: &[f64], position: usize, theta: f64) -> Vec<f64> {
    let half = x.len() / 2;
    let mut y = x.to_vec();
    for i in 0..half {
        let (s, c) = (position as f64 * theta.powf(-(i as f64) / half as f64)).sin_cos();
        (y[i], y[i + half]) = (x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s);
    }
    y
}

/// The model in f64. `values` holds the parameters by index.
struct Wide<'a> {
    model: &'a Model,
    values: &'a [Vec<f64>],
}

impl Wide<'_> {
    fn of(&self, p: &Param) -> &[f64] {
        &self.values[p.index()]
    }

    fn project(&self, x: &Rows, w: &xtrain::model::Linear) -> Rows {
        linear(x, self.of(&w.weight), w.bias.as_ref().map(|b| self.of(b)))
    }

    /// Causal attention of rows at these positions of their documents. A row of a document follows the rows of lower
    /// positions.
    fn attention(&self, [q, k, v]: [&Rows; 3], positions: &[usize], window: Option<usize>) -> Rows {
        let &Config { n_heads, n_kv_heads, head_dim: hd, .. } = self.model.config();
        let head = |x: &[f64], h: usize| x[h * hd..][..hd].to_vec();
        let row = |t: usize| {
            let first = t - positions[t].min(window.map_or(usize::MAX, |w| w - 1));
            let one = |h: usize| {
                let (query, g) = (head(&q[t], h), h / (n_heads / n_kv_heads));
                let p: Vec<f64> =
                    (first..=t).map(|j| (dot(&query, &head(&k[j], g)) / (hd as f64).sqrt()).exp()).collect();
                let sum: f64 = p.iter().sum();
                let of = |d: usize| (first..=t).zip(&p).map(|(j, p)| p * v[j][g * hd + d]).sum::<f64>() / sum;
                (0..hd).map(of).collect::<Vec<f64>>()
            };
            (0..n_heads).flat_map(one).collect()
        };
        (0..q.len()).map(row).collect()
    }

    /// The loss of one training example.
    fn loss(&self, example: &TrainingExample) -> f64 {
        let (params, config) = (&self.model.params, self.model.config());
        let eps = f64::from(config.norm_eps as f32);
        let start = |t: usize| example.starts.iter().copied().filter(|&s| s <= t).max().unwrap_or(0);
        let positions: Vec<usize> = (0..example.inputs.len()).map(|t| t - start(t)).collect();
        let table: Vec<&[f64]> = self.of(&params.embed).chunks_exact(config.dim).collect();
        let mut h: Rows = example.inputs.iter().map(|&id| table[id as usize].to_vec()).collect();
        let normed =
            |h: &Rows, gain: &Param| -> Rows { h.iter().map(|x| norm(x, self.of(gain), eps)).collect() };
        for (layer, block) in params.blocks.iter().enumerate() {
            let x = normed(&h, &block.input_norm);
            let [q, k, v] = [&block.q, &block.k, &block.v].map(|w| self.project(&x, w));
            let heads = |x: &Rows, which: usize| -> Rows {
                let one = |x: &[f64], position: usize| match &block.qk_norm {
                    Some(gains) => rotate(&norm(x, self.of(&gains[which]), eps), position, config.rope_theta),
                    None => rotate(x, position, config.rope_theta),
                };
                let row = |(x, &p): (&Vec<f64>, &usize)| {
                    x.chunks_exact(config.head_dim).flat_map(|x| one(x, p)).collect()
                };
                x.iter().zip(&positions).map(row).collect()
            };
            let attended =
                self.attention([&heads(&q, 0), &heads(&k, 1), &v], &positions, config.window(layer));
            h = add(&h, &self.project(&attended, &block.o));
            let x = normed(&h, &block.post_norm);
            let (gate, up) = (self.project(&x, &block.gate), self.project(&x, &block.up));
            let silu = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
            let gated: Rows =
                gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(silu).collect()).collect();
            h = add(&h, &self.project(&gated, &block.down));
        }
        let hidden = normed(&h, &params.norm);
        let logits = linear(&hidden, self.of(params.head.as_ref().unwrap_or(&params.embed)), None);
        let row = |(z, target): (&Vec<f64>, &Option<Target>)| {
            target.map_or(0.0, |t| {
                let lse = z.iter().map(|z| z.exp()).sum::<f64>().ln();
                f64::from(t.weight) * (lse - z[t.id as usize])
            })
        };
        logits.iter().zip(&example.targets).map(row).sum()
    }
}

/// A model with gains around 1 and without zero biases.
fn model(config: &Config, seed: u64) -> Model {
    let mut model = Model::init(config, Dtype::F32, &Device::cpu(), seed).unwrap();
    for p in model.params.iter_mut() {
        let vector = p.value().unwrap().shape().len() == 1;
        let (index, data) = (p.index() as u64, p.value_mut().unwrap().data_mut::<f32>().unwrap());
        if vector {
            let random = arbitrary(data.len(), seed + index);
            data.iter_mut().zip(random).for_each(|(x, r)| *x += 0.4 * r);
        }
    }
    model
}

/// Two examples, one of them with two documents. Every fifth row has no target.
fn examples(rng: &mut CaseRng, vocab: usize) -> Vec<TrainingExample> {
    let mut example = |documents: &[usize]| {
        let n: usize = documents.iter().sum();
        let mut token = || rng.below(vocab) as u32;
        let inputs = (0..n).map(|_| token()).collect();
        let target = |id| Target { id, weight: 0.0, bonus: 0.0 };
        let targets = (0..n).map(|t| Some(target(token())).filter(|_| t % 5 != 3)).collect();
        let starts = documents[..documents.len() - 1]
            .iter()
            .scan(0, |at, n| {
                *at += n;
                Some(*at)
            })
            .collect();
        TrainingExample { inputs, targets, starts, ..TrainingExample::default() }
    };
    let mut all = vec![example(&[9]), example(&[4, 7])];
    normalize_loss_weights(&mut all);
    all
}

/// Compares the derivatives of one model along three directions of each parameter. Returns their number.
fn check(config: &Config, seed: u64) -> Result<usize, String> {
    let (model, mut rng) = (model(config, seed), CaseRng::new(seed, 0));
    let examples = examples(&mut rng, config.vocab);
    let (mut loss, mut grads) = (0f32, Grads::zeros(&model.params).unwrap());
    objective::backward(&model, &examples, LogitsProcessing::default(), &mut loss, &mut grads).unwrap();
    let grads: Vec<Vec<f32>> = grads.finish().unwrap().iter().map(|g| g.to_vec().unwrap()).collect();
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
    let values: Vec<Vec<f64>> =
        model.params.iter().map(|p| wide(&p.value().unwrap().to_vec::<f32>().unwrap())).collect();
    let loss_of = |values: &[Vec<f64>]| -> f64 {
        examples.iter().map(|example| Wide { model: &model, values }.loss(example)).sum()
    };
    let want = loss_of(&values);
    let differ = |what: &str, got: f64, want: f64, scale: f64| match (got - want).abs() <= TOLERANCE * scale {
        true => Ok(()),
        false => Err(format!(
            "gate tape gradient: {what}, seed {seed}: got {got:e} ({:016x}), want {want:e} ({:016x})",
            got.to_bits(),
            want.to_bits()
        )),
    };
    differ("loss", loss.into(), want, want)?;
    let (mut compared, mut worst) = (1, 0f64);
    for (p, g) in model.params.iter().zip(&grads) {
        let g = wide(g);
        let size = dot(&g, &g).sqrt();
        let random = |which: u64| wide(&arbitrary(g.len(), seed + 1000 * which + p.index() as u64));
        for (which, direction) in [g.clone(), random(1), random(2)].into_iter().enumerate() {
            let length = dot(&direction, &direction).sqrt();
            let moved = |by: f64| {
                let mut values = values.clone();
                values[p.index()].iter_mut().zip(&direction).for_each(|(x, u)| *x += by * u / length);
                loss_of(&values)
            };
            let (got, want) = (dot(&g, &direction) / length, (moved(STEP) - moved(-STEP)) / (2.0 * STEP));
            differ(&format!("{}, direction {which}", p.name()), got, want, size)?;
            worst = worst.max((got - want).abs() / size);
            compared += 1;
        }
    }
    println!(
        "gate tape gradient, seed {seed}: {compared} derivatives, the largest difference is {worst:.1e}"
    );
    Ok(compared)
}

/// Checks a model with QK-norm, a tied table and a window, and one with every bias. Returns the number of derivatives.
pub(crate) fn over() -> Result<usize, String> {
    let tied = Config {
        vocab: 19,
        dim: 12,
        ffn_dim: 20,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 4,
        max_positions: 16,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: true,
        windows: vec![Some(3), None],
        ..Config::default()
    };
    let untied = Config {
        qk_norm: false,
        tie_embeddings: false,
        biases: Biases { qkv: true, o: true, mlp: true },
        windows: Vec::new(),
        ..tied.clone()
    };
    Ok(check(&tied, SEED)? + check(&untied, SEED + 1)?)
}

#[test]
fn the_gradients_of_the_tape_are_derivatives_of_a_forward_pass_in_f64() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    assert!(n > 100, "{n}");
}
