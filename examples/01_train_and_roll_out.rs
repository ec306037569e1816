//! Trains a small model to count, then generates from it.
//!
//! Run with `cargo run --release --example 01_train_and_roll_out`.
use xtrain::decode::generate_greedy_cached;
use xtrain::model::{Config, Model, OptimConfig, Schedule, Trainer, TrainingExample};
use xtrain::tensor::{Device, Dtype};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        vocab: 16,
        dim: 32,
        ffn_dim: 64,
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 16,
        max_positions: 32,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: true,
        ..Config::default()
    };
    let model = Model::init(&config, Dtype::F32, &Device::cpu(), 0)?;
    let schedule = Schedule::cosine(1e-2, 100).with_warmup(5);
    let mut trainer = Trainer::new(model, OptimConfig::default(), schedule)?;
    let tokens: Vec<u32> = (0..16).collect();
    for _ in 0..100 {
        let report = trainer.step(vec![TrainingExample::window(&tokens, 1.0)], 1)?;
        if report.step % 20 == 0 {
            println!("step {:3}: loss {:.4}", report.step, report.loss);
        }
    }

    let completion = generate_greedy_cached(&trainer.model, &[0, 1, 2], 6)?;
    println!("prompt [0, 1, 2], completion {:?} ({})", completion.tokens, completion.finish_reason);
    Ok(())
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
