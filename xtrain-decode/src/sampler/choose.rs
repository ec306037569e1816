//! The sampler.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::rng::{Purpose, uniform_u64};
use xtrain_tensor::softmax::{lse_row, lse_rows_masked};

use super::distribution::Distribution;
use super::error::SampleError;
use super::mask::TokenMask;
use super::options::SampleOptions;
use super::process::ProcessedLogits;

/// The address of a random number. The same address gives the same number in any batch and any sequence slot, after
/// preemption and in a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The seed of the run.
    pub seed: u64,
    /// The sequence id, never its slot.
    pub id: u64,
    /// The position of the sampled token.
    pub position: u32,
}

/// A sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The token id.
    pub token: u32,
    /// `x_y - lse(x)` for the logits `x` as given: before penalty, temperature and filters.
    pub logprob: f32,
    /// `z_y - lse(z)` for the logits `z` after penalty, temperature, mask and filters. 0 at temperature 0.
    pub processed_logprob: f32,
}

/// Samples tokens with one set of options. It holds buffers and no state: a choice depends only on the
/// arguments of [`pick`](Self::pick). It allocates only if a row is longer than all rows before.
///
/// ```
/// use xtrain_decode::SampleOptions;
/// use xtrain_decode::sampler::{Address, Sampler};
///
/// let mut greedy = Sampler::new(SampleOptions::greedy())?;
/// let choice = greedy.pick(&[0.5, 2.0, -1.0], &[], Address { seed: 0, id: 0, position: 3 })?;
/// assert_eq!(choice.token, 1);
/// # Ok::<(), xtrain_decode::sampler::SampleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    processed: ProcessedLogits,
}

impl Sampler {
    /// Maximum number of logits in a row: the sum of their integer weights must be below 2^64.
    pub const MAX_VOCAB: usize = ProcessedLogits::MAX_VOCAB;

    /// A sampler with these options.
    ///
    /// # Errors
    /// [`SampleError::Option`] for an option outside its range.
    pub fn new(options: SampleOptions) -> Result<Sampler, SampleError> {
        options.check()?;
        Ok(Sampler { options, processed: ProcessedLogits::default() })
    }

    /// The options.
    pub fn options(&self) -> &SampleOptions {
        &self.options
    }

    /// Samples the token at `u * S >> 64` among the weights of the kept tokens, where `u` is the random number of
    /// `address` and `S` the sum of the weights. At temperature 0 it is the lowest index among the largest logits.
    ///
    /// `history` holds the ids of prompt and output so far, for the repetition penalty.
    ///
    /// # Errors
    /// A row that is empty, too long, all -inf, or holds a NaN or +inf; an id of `history` that has no logit; logits
    /// that penalty and temperature drive out of range. The caller adds the row number to the error.
    pub fn pick(&mut self, logits: &[f32], history: &[u32], address: Address) -> Result<Choice, SampleError> {
        self.pick_allowed(logits, history, None, address)
    }

    /// [`pick`](Self::pick) among the tokens of `mask`. `None`: among all.
    ///
    /// # Errors
    /// As [`pick`](Self::pick); [`SampleError::NothingAllowed`] if no token of the mask has a logit above -inf.
    pub fn pick_allowed(
        &mut self,
        logits: &[f32],
        history: &[u32],
        mask: Option<&TokenMask>,
        address: Address,
    ) -> Result<Choice, SampleError> {
        self.processed.process(&self.options, logits, history, mask)?;
        let distribution = self.processed.distribution();
        let id = if faults::on(Fault::RngIgnoresSequenceId) { 0 } else { address.id };
        let token = distribution.token(uniform_u64(address.seed, id, address.position, Purpose::Sample));
        let unchanged = self.options.leaves_logits_unchanged();
        let masked = mask.is_some() && !faults::on(Fault::LogProbIgnoresConstraint);
        let z = self.processed.logits();
        let [raw_lse, processed_lse] = match (self.options.temperature == 0.0, unchanged, masked) {
            // the processed row has one token
            (true, ..) => [lse_row(logits), z[token as usize]],
            (_, true, false) => [lse_row(logits); 2],
            (_, true, true) => lse_rows_masked(logits, z),
            (_, false, _) => [lse_row(logits), lse_row(z)],
        };
        let logprob = logits[token as usize] - raw_lse;
        let processed_logprob = z[token as usize] - processed_lse;
        Ok(Choice { token, logprob, processed_logprob })
    }

    /// The distribution of the next token after penalty, temperature, top-k, top-p and min-p, in this order. At
    /// temperature 0 it has one token.
    ///
    /// # Errors
    /// As [`pick`](Self::pick).
    pub fn distribution(&mut self, logits: &[f32], history: &[u32]) -> Result<Distribution<'_>, SampleError> {
        self.processed.process(&self.options, logits, history, None)?;
        Ok(self.processed.distribution())
    }

    /// The addresses of the buffers.
    #[cfg(test)]
    pub(super) fn buffers(&self) -> [usize; 3] {
        self.processed.buffers()
    }
}
