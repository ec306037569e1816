//! The samples that a training run shows.
use super::CliError;
use crate::config::RunConfig;
use crate::decode::sampler::{Address, SampleOptions, Sampler};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Eager, Model, NoCache, Rows};

pub(super) fn draw(
    model: &Model,
    tokenizer: &Tokenizer,
    config: &RunConfig,
    step: u64,
) -> Result<String, CliError> {
    let s = &config.sample;
    let mut seq = tokenizer.encode(&s.prompt)?;
    let prompt = seq.len();
    let options = SampleOptions { temperature: s.temperature as f32, ..SampleOptions::default() };
    let mut sampler = Sampler::new(options).map_err(|e| CliError::new(super::Exit::Usage, e))?;
    while seq.len() < model.config().max_positions && seq.len() < prompt + s.max_new {
        let rows = Rows::whole(&[&seq]);
        let hidden = model.forward(&mut Eager, &mut NoCache::new(&rows)?, &rows)?;
        let logits = model.logits(&hidden).map_err(CliError::from)?;
        let v = logits.width();
        let data = logits.data::<f32>().map_err(crate::model::Error::from)?;
        let address = Address { seed: config.train.seed, id: step, position: seq.len() as u32 };
        let choice = sampler
            .pick(&data[data.len() - v..], &seq, address)
            .map_err(|e| CliError::new(super::Exit::Data, e))?;
        seq.push(choice.token);
    }
    Ok(tokenizer.decode(&seq))
}
