//! What the sampler promises, as checks that a planted fault must fail.
mod choices;
mod device;
mod draws;
mod reference;

use super::choose::{Address, Sampler};
use super::options::SampleOptions;

fn sampler(options: SampleOptions) -> Sampler {
    Sampler::new(options).expect("options in their ranges")
}

fn address(seed: u64, id: u64, position: u32) -> Address {
    Address { seed, id, position }
}

/// Normal deviates times `sigma`, with -inf at both ends and in between.
fn wide_row(vocab: usize, sigma: f32) -> Vec<f32> {
    let mut row = vec![0.0; vocab];
    xtrain_tensor::fill_normal(11, vocab as u64, sigma, &mut row);
    for token in [0, vocab / 3, vocab - 1] {
        row[token] = f32::NEG_INFINITY;
    }
    row
}
