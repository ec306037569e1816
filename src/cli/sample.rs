//! The samples that a training run shows.
use super::CliError;
use crate::config::{RunConfig, SampleSection};
use crate::decode::{EngineOptions, Request, SampleOptions, StopConditions, generate};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;

/// `sample.count` continuations of `sample.prompt` after `step`: each drawn at an address of its own, so
/// they are a function of the configuration, the weights and the step.
///
/// # Errors
/// A prompt that leaves no position, or a tokenizer that cannot encode it.
pub(super) fn draw(
    model: &Model,
    tokenizer: &Tokenizer,
    config: &RunConfig,
    (step, engine): (u64, EngineOptions),
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

/// How `[sample]` draws; a filter that keeps everything is none.
fn options(s: &SampleSection) -> SampleOptions {
    SampleOptions {
        temperature: s.temperature as f32,
        top_k: (s.top_k > 0).then_some(s.top_k),
        top_p: (s.top_p < 1.0).then_some(s.top_p as f32),
        min_p: (s.min_p > 0.0).then_some(s.min_p as f32),
        repetition_penalty: None,
    }
}
