//! The choice of one token from one row of logits: a pure function of the row, the ids before it, the
//! options and an address.
mod draw;
mod error;
mod filter;
mod options;

#[cfg(test)]
mod tests;

pub use draw::Distribution;
pub use error::SampleError;
pub use options::SampleOptions;

use xtrain_tensor::rng::{Purpose, uniform_u64};
use xtrain_tensor::{
    faults::{self, Fault},
    softmax::lse_row,
};

/// Where the random number of a choice stands. The same address gives the same number in any batch, in
/// any slot, after preemption and in a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The run's seed.
    pub seed: u64,
    /// The sequence's own number, never its slot.
    pub id: u64,
    /// The position of the token that is chosen.
    pub position: u32,
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Its id.
    pub token: u32,
    /// x_y - lse(x), x being the logits as given: before penalty, temperature and filters.
    pub logprob: f32,
    /// z_y - lse(z), z being what penalty, temperature and filters left; 0 at temperature 0.
    pub processed_logprob: f32,
}

/// Chooses tokens by one set of options. It holds buffers and no state: a choice depends on the
/// arguments of [`pick`](Self::pick) alone, and allocates only when a row is longer than any before.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    /// Scaled logits, -inf where removed.
    z: Vec<f32>,
    /// `exp(z - max z)`.
    exps: Vec<f32>,
    /// Integer weights, 0 where removed.
    weights: Vec<u64>,
    /// Ranks, for the filters that order tokens.
    ranks: Vec<u64>,
}

impl Sampler {
    /// The most logits in a row: their integer weights must add up below 2^64.
    pub const MAX_VOCAB: usize = 1 << 19;

    /// A sampler with these options.
    ///
    /// # Errors
    /// An option outside its range, by name.
    pub fn new(options: SampleOptions) -> Result<Sampler, SampleError> {
        options.check()?;
        Ok(Sampler { options, z: Vec::new(), exps: Vec::new(), weights: Vec::new(), ranks: Vec::new() })
    }

    /// The options.
    pub fn options(&self) -> &SampleOptions {
        &self.options
    }

    /// The token at u * S >> 64 among the kept tokens' weights, u being the random number of `address`;
    /// at temperature 0 the lowest index among the largest logits.
    ///
    /// `history` are the ids of prompt and output so far, which the repetition penalty looks at.
    ///
    /// # Errors
    /// A row that is empty, too long, all -inf, or holds a NaN or +inf; an id of `history` outside it;
    /// logits that penalty and temperature drive out of range. The caller knows which row it is.
    pub fn pick(&mut self, logits: &[f32], history: &[u32], address: Address) -> Result<Choice, SampleError> {
        let distribution = self.distribution(logits, history)?;
        let id = if faults::on(Fault::SamplerSharedState) { 0 } else { address.id };
        let token = distribution.token(uniform_u64(address.seed, id, address.position, Purpose::Sample));
        let raw_lse = lse_row(logits);
        let logprob = logits[token as usize] - raw_lse;
        let processed_logprob = if self.options.temperature == 0.0 {
            0.0
        } else if self.options.leave_logits_alone() {
            logprob
        } else {
            self.z[token as usize] - lse_row(&self.z)
        };
        Ok(Choice { token, logprob, processed_logprob })
    }

    /// What a row leaves to draw from: penalty, temperature, top-k, top-p, min-p, in this order. At
    /// temperature 0 it is one token.
    ///
    /// # Errors
    /// Those of [`pick`](Self::pick).
    pub fn distribution(&mut self, logits: &[f32], history: &[u32]) -> Result<Distribution<'_>, SampleError> {
        self.scale(logits, history)?;
        if self.options.temperature == 0.0 {
            self.keep_greedy();
        } else {
            self.weigh();
            self.filter();
        }
        Ok(Distribution::new(&self.z, &self.weights))
    }
}
