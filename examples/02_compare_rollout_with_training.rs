//! Compares the logits of a batched rollout with a paged KV cache and chunked prefill with those of the training
//! forward, bit for bit.
//!
//! Run with `cargo run --release --example 02_compare_rollout_with_training`.
use xtrain::decode::{Engine, EngineOptions, KvKind, LogitsRows, Request};
use xtrain::model::{Config, Model, NoCache, Rows, Tape};
use xtrain::tensor::{Device, Dtype};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        vocab: 101,
        dim: 48,
        ffn_dim: 96,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        max_positions: 128,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: false,
        ..Config::default()
    };
    let model = Model::init(&config, Dtype::BF16, &Device::cpu(), 7)?;

    // Generate eight completions of one prompt and collect all logits.
    let options = EngineOptions {
        kv: KvKind::Paged { page: 5 },
        prefill_chunk: Some(3),
        logits_rows: LogitsRows::All,
        ..EngineOptions::default()
    };
    let prompt: Vec<u32> = (1..20).collect();
    let mut engine = Engine::new(&model, options)?;
    engine.submit_group(Request::sampled(&prompt, 30, 1.0, 42), 8)?;
    let mut rows = Vec::new();
    while !engine.is_idle() {
        engine.step_watched(&mut |row| rows.push((row.index, row.position, row.logits.to_vec())))?;
    }

    // Recompute every sequence with the training forward pass.
    let mut differing = 0;
    for completion in engine.take_finished() {
        let sequence = [&prompt[..], &completion.tokens].concat();
        let sequence = Rows::whole(&[sequence]);
        let mut tape = Tape::new(sequence.samples());
        let hidden = model.forward(&mut tape, &mut NoCache::new(&sequence)?, &sequence)?;
        let logits = model.logits(&hidden.value)?;
        for (_, position, row) in rows.iter().filter(|(index, ..)| *index == completion.index) {
            let want = &logits.data::<f32>()?[position * config.vocab..][..config.vocab];
            differing += row.iter().zip(want).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
    }
    println!("{} rows of logits compared, {differing} values differ", rows.len());
    Ok(())
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
