//! The gate for AdamW over many steps: weights, moments and powers against a computation with 50 decimal digits.
use serde_json::Value;
use xtrain::model::{AdamW, Config, OptimConfig, Param, Params};
use xtrain::tensor::{Device, Dtype, Tensor};

use crate::fixtures;

/// The seed that failure messages name: weights and gradients are fixed.
const SEED: u64 = 0;

/// The largest relative error of a weight or a moment, with 1 as the smallest denominator. Each of 100 steps rounds a
/// weight and its decay to f32 (2^-24 each); a wrong power changes the weights by more than 1e-3.
const TOLERANCE: f64 = 100.0 * 2.0 / (1 << 24) as f64;

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// `n` values that repeat `pattern`.
fn repeated(pattern: &[f64], n: usize) -> Vec<f32> {
    pattern.iter().map(|&x| x as f32).cycle().take(n).collect()
}

/// Compares the powers bit for bit, and the weights and moments of every parameter. Returns the number of compared
/// values.
fn compare(at: &Value, optimizer: &AdamW, params: &Params) -> Result<usize, String> {
    let step = &at["step"];
    let powers = optimizer.powers.map(|p| format!("{:016x}", p.to_bits()));
    let want: Vec<&str> = at["powers"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    if powers[..] != want[..] {
        let found = optimizer.powers;
        return Err(format!(
            "gate adamw, seed {SEED}: powers after step {step}: got {found:?} ({powers:?}), want {want:?}"
        ));
    }
    let mut compared = powers.len();
    for ((param, m), v) in params.iter().zip(&optimizer.m).zip(&optimizer.v) {
        let weights = param.value().map_err(failed)?;
        // weight decay applies to matrices only
        let kind = if weights.shape().len() == 2 { "matrix" } else { "gain" };
        for (name, tensor, which) in [("weight", weights, 0), ("m", m, 1), ("v", v, 2)] {
            for (i, got) in tensor.data::<f32>().map_err(failed)?.iter().enumerate() {
                let want = numbers(&at[kind][i % 4])[which];
                if (f64::from(*got) - want).abs() > TOLERANCE * want.abs().max(1.0) {
                    return Err(format!(
                        "gate adamw, seed {SEED}: {name} {i} of {} after step {step}: got {got:e} ({:08x}), want \
                         {want:e} within {TOLERANCE:e}",
                        param.name(),
                        got.to_bits(),
                    ));
                }
                compared += 1;
            }
        }
    }
    Ok(compared)
}

/// Applies the gradients of tests/data/train/adamw.json to the parameters of a small model. Returns the number of
/// compared values.
pub(crate) fn over() -> Result<usize, String> {
    let case = fixtures::json("train/adamw.json");
    let number = |key: &str| case[key].as_f64().unwrap();
    let cfg = Config {
        vocab: 5,
        dim: 4,
        ffn_dim: 4,
        n_layers: 1,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 4,
        max_positions: 8,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    };
    let device = Device::cpu();
    let weights = numbers(&case["weights"]);
    let load = |_: &str, shape: &[usize]| Ok(repeated(&weights, shape.iter().product()));
    let mut params = Params::load(&cfg, Dtype::F32, &device, load).map_err(failed)?;
    let optim = OptimConfig {
        beta1: number("beta1"),
        beta2: number("beta2"),
        eps: number("eps"),
        weight_decay: number("weight_decay"),
        // above every norm: nothing is clipped
        clip: 1e6,
    };
    let mut optimizer = AdamW::new(optim, &params).map_err(failed)?;
    let mut compared = 0;
    for (before, gradient) in case["gradients"].as_array().unwrap().iter().enumerate() {
        let pattern = numbers(gradient);
        let of = |p: &Param| {
            let shape = p.value()?.shape();
            Ok(Tensor::new(&device, shape, repeated(&pattern, shape.iter().product()))?)
        };
        let grads: Result<Vec<Tensor>, xtrain::model::Error> = params.iter().map(of).collect();
        let grads = grads.map_err(failed)?;
        optimizer.step(&mut params, &grads, number("learning_rate")).map_err(failed)?;
        let reached = case["steps"].as_array().unwrap().iter().find(|at| at["step"] == before + 1);
        compared += reached.map_or(Ok(0), |at| compare(at, &optimizer, &params))?;
    }
    Ok(compared)
}

#[test]
fn a_hundred_steps_follow_the_definition_of_adamw() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    println!("adamw: steps 1, 20, 28, 29, 30, 64 and 100, {n} values");
    assert!(n > 2000, "{n}");
}
