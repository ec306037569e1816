//! Tests of the sampler. Where a planted fault exists, a test shows that the check catches it.
mod choices;
mod device;
mod reference;
mod samples;
mod top;

use super::choose::{Address, Sampler};
use super::options::SampleOptions;

fn sampler(options: SampleOptions) -> Sampler {
    Sampler::new(options).expect("options in their ranges")
}

fn address(seed: u64, id: u64, position: u32) -> Address {
    Address { seed, id, position }
}

/// Normal deviates times `sigma`, with -inf as first and last logit and at a third of the row.
fn wide_row(vocab: usize, sigma: f32) -> Vec<f32> {
    let mut row = vec![0.0; vocab];
    xtrain_tensor::fill_normal(11, vocab as u64, sigma, &mut row);
    for token in [0, vocab / 3, vocab - 1] {
        row[token] = f32::NEG_INFINITY;
    }
    row
}
