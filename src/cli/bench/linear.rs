//! `xtrain bench linear`.
use std::time::Instant;

use serde::Serialize;

use super::args::LinearArgs;
use super::bench_model;
use crate::cli::memory_check::require;
use crate::cli::{CliError, out, source};
use crate::model::{self, Config};
use crate::report::{Spread, Table, units};
use crate::tensor::ops::{self, Weight};
use crate::tensor::{Tensor, fill_normal};
use crate::training;

/// Total size of the copies of a matrix in bytes: more than fits in a GPU cache.
const TOTAL_COPY_BYTES: usize = 128 << 20;
/// Minimum and maximum number of copies. From 4 on, the queue of a GPU records a graph.
const COPIES: [usize; 2] = [4, 512];
/// Rounds over the copies per sample: the host submits a round while the GPU executes the previous one.
const ROUNDS: usize = 4;
const WARM_UP: usize = 2;

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    compute: String,
    products: Vec<Product>,
}

/// The product of `rows` rows of `inputs` values with a matrix.
#[derive(Debug, Serialize)]
struct Product {
    matrix: &'static str,
    outputs: usize,
    inputs: usize,
    rows: usize,
    copies: usize,
    us: Spread,
    operations_per_second: f64,
    samples_us: Vec<f64>,
}

pub(super) fn run(args: &LinearArgs) -> Result<(), CliError> {
    let config = args.shared.config()?;
    let device = args.shared.common.open()?;
    let vocab = source::tokenizer(&config.data.tokenizer)?.vocab_size();
    let cfg = training::model_config(&config, vocab);
    let (compute, seed) = (training::compute(config.train.dtype), config.train.seed);
    let mut products = Vec::new();
    for (matrix, shape) in matrices(&cfg) {
        let default_copies =
            TOTAL_COPY_BYTES.div_ceil(shape[0] * shape[1] * compute.bytes()).clamp(COPIES[0], COPIES[1]);
        let copies = args.copies.unwrap_or(default_copies);
        let elements = (shape[0] * shape[1]) as u64;
        let rows = args.rows.iter().max().map_or(0, |rows| *rows as u64);
        let needed = elements
            .saturating_mul(8 + (copies * compute.bytes()) as u64)
            .saturating_add(rows.saturating_mul(4 * (shape[0] + shape[1]) as u64));
        require(needed, &device, "the benchmark", "reduce --copies, --rows or the sizes in [model]")?;
        let values = normal(shape[0] * shape[1], seed);
        let copy = |_| Ok(Weight::new(&Tensor::new(&device, &shape, values.clone())?, compute)?);
        let weights: Vec<Weight> = (0..copies).map(copy).collect::<model::Result<_>>()?;
        for &rows in &args.rows {
            let samples_us = measure(&weights, rows, seed, args.repeats)?;
            let us = Spread::of(samples_us.iter().copied()).expect("at least one sample was measured");
            let [outputs, inputs] = shape;
            let operations_per_second = 2e6 * (rows * outputs * inputs) as f64 / us.p50;
            products.push(Product {
                matrix,
                outputs,
                inputs,
                rows,
                copies,
                us,
                operations_per_second,
                samples_us,
            });
        }
    }
    let (model, compute) = (bench_model::name(&config), compute.to_string());
    let report = Report { model, device: device.to_string(), compute, products };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

/// The matrices of a layer and the output head, with their shapes `[out, in]`.
fn matrices(cfg: &Config) -> [(&'static str, [usize; 2]); 6] {
    let (q, kv) = (cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim);
    [
        ("q", [q, cfg.dim]),
        ("k, v", [kv, cfg.dim]),
        ("o", [cfg.dim, q]),
        ("gate, up", [cfg.ffn_dim, cfg.dim]),
        ("down", [cfg.dim, cfg.ffn_dim]),
        ("head", [cfg.vocab, cfg.dim]),
    ]
}

/// `n` normally distributed values.
fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    fill_normal(seed, 0, 1.0, &mut values);
    values
}

/// Microseconds per product: the time of all products of a sample, divided by their number.
fn measure(weights: &[Weight], rows: usize, seed: u64, repeats: usize) -> model::Result<Vec<f64>> {
    let (first, mut samples) = (&weights[0], Vec::new());
    let x =
        Tensor::new(first.device(), &[rows, first.in_features()], normal(rows * first.in_features(), seed))?;
    let x = x.cast(first.dtype())?;
    for sample in 0..WARM_UP + repeats {
        let clock = Instant::now();
        for _ in 0..ROUNDS {
            for w in weights {
                ops::linear(&x, w, None, x.dtype())?;
            }
            first.device().submit_step()?;
        }
        first.device().wait()?;
        if sample >= WARM_UP {
            samples.push(clock.elapsed().as_secs_f64() * 1e6 / (ROUNDS * weights.len()) as f64);
        }
    }
    Ok(samples)
}

impl Report {
    fn text(&self) -> String {
        let Report { model, device, compute, products } = self;
        let numbers = ["out", "in", "rows", "min us", "p50 us", "p95 us", "throughput"];
        let mut table = Table::new(&["matrix"], &numbers);
        for p in products {
            let sizes = [p.outputs, p.inputs, p.rows].map(|n| n.to_string());
            let times = [p.us.min, p.us.p50, p.us.p95].map(|us| format!("{us:.2}"));
            let rate = units::rate(p.operations_per_second, "op");
            table.row([p.matrix.to_string()].into_iter().chain(sizes).chain(times).chain([rate]));
        }
        format!("{model}: matrix products, {compute}, {device}\n\n{}", table.render())
    }
}
