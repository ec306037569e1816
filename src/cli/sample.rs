//! Text samples generated during training.
use super::exit::CliError;
use crate::config::{RunConfig, SampleSection};
use crate::decode::{EngineOptions, Request, SampleOptions, StopConditions, generate};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;

/// Generates `sample.count` continuations of `sample.prompt` at `step`. Each has its own sample id, so the text is a
/// function of the configuration, the weights and the step. Fails if the prompt fills the context of the model.
pub(super) fn generate_samples(
    model: &Model,
    tokenizer: &Tokenizer,
    config: &RunConfig,
    step: u64,
    engine: EngineOptions,
) -> Result<String, CliError> {
    let s = &config.sample;
    let ids = tokenizer.encode(&s.prompt)?;
    let request = |i: u64| Request {
        id: step * s.count as u64 + i,
        seed: config.train.seed,
        prompt: ids.clone(),
        options: options(s),
        max_new: s.max_new,
        stop: StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() },
    };
    let requests = (0..s.count as u64).map(request).collect();
    let mut text = String::new();
    for completion in generate(model, requests, engine)? {
        text += &format!("{}{}\n", s.prompt, completion.text(tokenizer));
    }
    Ok(text.trim_end().to_string())
}

/// The sampling options of `[sample]`. A filter that keeps all tokens is `None`.
fn options(s: &SampleSection) -> SampleOptions {
    SampleOptions {
        temperature: s.temperature as f32,
        top_k: (s.top_k > 0).then_some(s.top_k),
        top_p: (s.top_p < 1.0).then_some(s.top_p as f32),
        min_p: (s.min_p > 0.0).then_some(s.min_p as f32),
        repetition_penalty: None,
    }
}
