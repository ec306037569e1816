//! What `xtrain bench guard` measures: small pieces of training and decoding, a few milliseconds each.
use std::rc::Rc;
use std::time::Instant;

use crate::cli::CliError;
use crate::cli::bench::bench_model::{self, random_windows};
use crate::cli::bench::workload::Workload as Rollout;
use crate::decode::EngineOptions;
use crate::model::{self, Config, Model, OptimConfig, Schedule, Trainer};
use crate::tensor::ops::{self, Weight};
use crate::tensor::{Device, Dtype, Tensor, fill_normal};

/// A piece of work that is measured repeatedly.
pub(super) struct Workload<'a> {
    pub(super) name: &'static str,
    /// Runs it once and returns the milliseconds of its measured part.
    run: Box<dyn FnMut() -> Result<f64, CliError> + 'a>,
}

impl Workload<'_> {
    pub(super) fn measure(&mut self) -> Result<f64, CliError> {
        (self.run)()
    }
}

/// All workloads on `device`. Their sizes are part of the committed ratios.
pub(super) fn all(device: &Device) -> Result<Vec<Workload<'static>>, CliError> {
    let (f32, bf16) = (Dtype::F32, Dtype::BF16);
    let [plain, narrow] = [f32, bf16].map(|dtype| Model::init(&config(), dtype, device, 0).map(Rc::new));
    let (plain, narrow) = (plain?, narrow?);
    Ok(vec![
        step("step of 2 x 32 tokens, f32", f32, device)?,
        step("step of 2 x 32 tokens, bf16", bf16, device)?,
        decode("decode, batch 1, f32", &plain, 1),
        decode("decode, batch 1, bf16", &narrow, 1),
        decode("decode, batch 32, f32", &plain, 32),
        decode("decode, batch 32, bf16", &narrow, 32),
        product("product of 64 rows, f32", f32, device)?,
        product("product of 64 rows, bf16", bf16, device)?,
    ])
}

/// One layer of model T of docs/bench.md with a smaller vocabulary. It is small, so that a piece of work ends before the system runs another
/// process on a busy core.
fn config() -> Config {
    Config {
        vocab: 1024,
        dim: 256,
        ffn_dim: 768,
        n_layers: 1,
        n_heads: 8,
        n_kv_heads: 4,
        head_dim: 32,
        max_positions: 64,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: true,
        ..Config::default()
    }
}

/// A training step: forward, backward, optimizer.
fn step(name: &'static str, dtype: Dtype, device: &Device) -> Result<Workload<'static>, CliError> {
    let small = Config { vocab: 256, dim: 128, ffn_dim: 384, n_heads: 4, n_kv_heads: 2, ..config() };
    let model = Model::init(&small, dtype, device, 0)?;
    let vocab = model.config().vocab;
    let mut trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-4))?;
    let run = move || {
        let samples = random_windows(0, 0, 2, [32, vocab]);
        let clock = Instant::now();
        trainer.step(samples, 2)?;
        Ok(clock.elapsed().as_secs_f64() * 1e3)
    };
    Ok(Workload { name, run: Box::new(run) })
}

/// The fastest pass of a rollout after prompts of 16 tokens.
fn decode(name: &'static str, model: &Rc<Model>, batch: usize) -> Workload<'static> {
    let rollout =
        Rollout { batch, one_prompt: false, prompt_len: 16, max_new: 8, temperature: 0.0, top_p: 1.0 };
    let model = model.clone();
    let run = move || {
        let measured = bench_model::measure(&model, rollout, EngineOptions::default(), None)?;
        Ok(measured.timings.decode.iter().map(|pass| pass.ms).fold(f64::INFINITY, f64::min))
    };
    Workload { name, run: Box::new(run) }
}

/// A matrix product of 64 rows, 768 inputs and 2048 outputs.
fn product(name: &'static str, dtype: Dtype, device: &Device) -> model::Result<Workload<'static>> {
    let (rows, inputs, outputs) = (64, 768, 2048);
    let weight = Weight::new(&Tensor::new(device, &[outputs, inputs], normal(outputs * inputs))?, dtype)?;
    let x = Tensor::new(device, &[rows, inputs], normal(rows * inputs))?.cast(dtype)?;
    let run = move || {
        let clock = Instant::now();
        ops::linear(&x, &weight, None, x.dtype()).map_err(model::Error::from)?;
        Ok(clock.elapsed().as_secs_f64() * 1e3)
    };
    Ok(Workload { name, run: Box::new(run) })
}

/// `n` normally distributed values.
fn normal(n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    fill_normal(0, 0, 1.0, &mut values);
    values
}
