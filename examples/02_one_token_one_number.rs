//! The same rollout from a cache, in pieces, in a batch: the bits of the training forward. `cargo run
//! --release --example 02_one_token_one_number`.
use xtrain::decode::{Engine, EngineOptions, KvKind, LogitsRows, Request};
use xtrain::model::{Config, Model, NoCache, Rows, Tape};
use xtrain::tensor::{Device, Dtype};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cfg = Config {
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
    let model = Model::init(&cfg, Dtype::BF16, &Device::cpu(), 7)?;
    let options = EngineOptions {
        kv: KvKind::Paged { page: 5 },
        prefill_chunk: Some(3),
        logits_rows: LogitsRows::All,
        ..EngineOptions::default()
    };
    let prompt: Vec<u32> = (1..20).collect();
    let mut engine = Engine::new(&model, options)?;
    engine.submit_group(Request::sampled(&prompt, 30, 1.0, 42), 8)?;
    let mut seen = Vec::new();
    while !engine.is_idle() {
        engine.step_watched(&mut |row| seen.push((row.index, row.position, row.logits.to_vec())))?;
    }
    let mut differing = 0;
    for done in engine.take_finished() {
        let whole = Rows::whole(&[[&prompt[..], &done.tokens].concat()]);
        let mut tape = Tape::new(whole.samples());
        let hidden = model.forward(&mut tape, &mut NoCache::new(&whole)?, &whole)?;
        let logits = model.logits(&hidden.value)?;
        for (_, position, row) in seen.iter().filter(|s| s.0 == done.index) {
            let want = &logits.data::<f32>()?[position * cfg.vocab..][..cfg.vocab];
            differing += row.iter().zip(want).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
    }
    println!("{} rows of logits, {differing} differing values", seen.len());
    Ok(())
}
