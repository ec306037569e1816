//! Trains a small model on sums of which half are wrong, then trains it with a reward for right ones (GRPO).
//!
//! Run with `cargo run --release --example 04_train_with_rewards`.
use std::error::Error;
use std::sync::Arc;

use xtrain::config::GrpoSection;
use xtrain::grpo::metrics::StepMetrics;
use xtrain::grpo::prompts::{PromptSource, text_prompt};
use xtrain::grpo::score::Scorer;
use xtrain::grpo::{self, Grpo, GrpoObserver, from_config};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Model, OptimConfig, Schedule, Trainer, TrainingExample};
use xtrain::rewards::{FunctionReward, RewardInput};
use xtrain::tensor::{Device, Dtype};

/// All sums of two digits, without their last digit: the prompts.
fn sums() -> Vec<String> {
    (0..100).map(|n| format!("{}+{}=", n / 10, n % 10)).collect()
}

/// The last digit of a sum.
fn answer(prompt: &str) -> u8 {
    prompt.bytes().filter(u8::is_ascii_digit).map(|digit| digit - b'0').sum::<u8>() % 10
}

/// Prints the evaluations of a run.
struct Print;

impl GrpoObserver for Print {
    fn step(&mut self, metrics: &StepMetrics) -> Result<(), grpo::Error> {
        if let Some(reward) = metrics.get("eval/reward_sampled") {
            println!("step {:3}: {:.0} % of the sampled answers are right", metrics.step, 100.0 * reward);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let tokenizer = Tokenizer::byte();
    let config = Config {
        vocab: tokenizer.vocab_size(),
        dim: 64,
        ffn_dim: 128,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 32,
        max_positions: 32,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: true,
        tie_embeddings: true,
        ..Config::default()
    };
    let base = pretrain(Model::init(&config, Dtype::F32, &Device::cpu(), 0)?, &tokenizer)?;

    let section = GrpoSection {
        steps: 200,
        prompts_per_step: 16,
        num_generations: 8,
        max_completion_length: 1,
        learning_rate: 5e-4,
        eval_every: 50,
        ..GrpoSection::default()
    };
    let right = |input: &RewardInput<'_>| {
        let digit = answer(input.prompt) + b'0';
        Some(f64::from(u8::from(input.completion.as_bytes() == [digit])))
    };
    let mut scorer = Scorer::new(vec![Box::new(FunctionReward::new("right", right))], Vec::new());
    let prompts = sums().into_iter().map(|text| Ok(Arc::new(text_prompt(text, &tokenizer)?)));
    let prompts: Vec<_> = prompts.collect::<Result<_, grpo::Error>>()?;
    let source = PromptSource::list(prompts.clone(), 0);
    let mut trainer =
        Trainer::new(base, from_config::optim_config(&section), from_config::schedule(&section))?;
    // every step compares the log-probabilities of the rollouts with those of the update, bit for bit
    let run = Grpo::new(&section, 0, &mut trainer, &tokenizer, &source, &mut scorer);
    Grpo { held_out: &prompts, ..run }.run(&mut Print)?;
    Ok(())
}

/// Trains the model on all sums, each with its right answer and with a wrong one.
fn pretrain(model: Model, tokenizer: &Tokenizer) -> Result<Model, Box<dyn Error>> {
    let text = |(n, prompt): (usize, String)| {
        let right = usize::from(answer(&prompt));
        let wrong = (right + 1 + n % 9) % 10;
        [format!("{prompt}{right}"), format!("{prompt}{wrong}")]
    };
    let texts: Vec<String> = sums().into_iter().enumerate().flat_map(text).collect();
    let schedule = Schedule::cosine(1e-2, 300).with_warmup(10);
    let mut trainer = Trainer::new(model, OptimConfig::default(), schedule)?;
    let all = texts.iter().map(|text| Ok(TrainingExample::window(&tokenizer.encode(text)?, 1.0)));
    let all: Vec<TrainingExample> = all.collect::<Result<_, Box<dyn Error>>>()?;
    for _ in 0..300 {
        trainer.step(all.clone(), all.len())?;
    }
    Ok(trainer.model)
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
