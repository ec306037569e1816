//! Samples one token from one row of logits: a pure function of the row, the ids before it, the options, the allowed
//! tokens and an address.
//!
//! The token distribution is held as integer weights, whose sum does not depend on an order. Random numbers are
//! addressed by seed, sequence id and position, so there is no random state. The filters and their order are those of
//! docs/numerics.md, section 7.
mod choose;
mod distribution;
mod error;
mod mask;
mod options;
mod process;
mod top;

#[cfg(test)]
mod tests;

pub use choose::{Address, Choice, Sampler};
pub use distribution::Distribution;
pub use error::SampleError;
pub use mask::TokenMask;
pub use options::SampleOptions;
pub use top::{TokenLogprob, top_logprobs};
