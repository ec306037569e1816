//! Fine-tunes a small model on conversations, with the loss on assistant turns only, then generates answers to
//! questions.
//!
//! Run with `cargo run --release --example 03_fine_tune_on_conversations`.
use std::path::Path;

use xtrain::decode::{EngineOptions, Request, StopConditions, generate};
use xtrain::model::chat::{ChatTemplate, Message, Options};
use xtrain::model::data::{Content, DocumentWindows, Overflow, Pieces, Tokens, WindowOrder};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Model, OptimConfig, Schedule, Trainer, TrainingExample};
use xtrain::tensor::{Device, Dtype};

const CONTEXT: u64 = 128;
const STEPS: u64 = 150;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokenizer = Tokenizer::byte();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/conversations.jsonl");
    let tokens = Tokens::from_files(&[file], &tokenizer, Content::Conversations)?;
    // Pack whole conversations into windows. They do not attend to each other; long ones are truncated.
    let pieces = Pieces::cut(&tokens, &(0..tokens.len()), CONTEXT, Overflow::Truncate)?;
    let windows = DocumentWindows::pack(&pieces, CONTEXT, 0, WindowOrder::Epochs)?;
    println!("{} conversations in {} windows", pieces.packing_stats.documents, windows.per_epoch());

    let config = Config {
        vocab: tokenizer.vocab_size(),
        dim: 64,
        ffn_dim: 192,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        max_positions: CONTEXT as usize,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: true,
        ..Config::default()
    };
    let model = Model::init(&config, Dtype::F32, &Device::cpu(), 0)?;
    let schedule = Schedule::cosine(5e-3, STEPS).with_warmup(10);
    let mut trainer = Trainer::new(model, OptimConfig::default(), schedule)?;
    for step in 0..STEPS {
        let batch = windows.batch(&tokens, step, 8)?;
        let report = trainer.step(batch.into_iter().map(TrainingExample::from).collect(), 8)?;
        if report.step % 30 == 0 {
            println!(
                "step {:3}: loss {:.4}, {} target tokens",
                report.step, report.loss, report.target_tokens
            );
        }
    }

    let options = Options { add_generation_prompt: true, ..Options::of(&tokenizer) };
    let template = ChatTemplate::of(&tokenizer, None, &options)?;
    for question in ["What is 2 plus 3?", "What is 8 plus 9?"] {
        let prompt = template.render(&[Message::new("user", question)], &options)?.text;
        let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
        let request = Request { stop, ..Request::greedy(&tokenizer.encode(&prompt)?, 16) };
        for completion in generate(&trainer.model, vec![request], EngineOptions::default())? {
            println!("{question} {}", completion.text(&tokenizer));
        }
    }
    Ok(())
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
