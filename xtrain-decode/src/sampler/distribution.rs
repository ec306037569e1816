//! Sampling by integer weights.
use xtrain_tensor::{
    faults::{self, Fault},
    softmax,
};

/// The distribution of the next token: every kept token with its integer weight.
#[derive(Debug, Clone, Copy)]
pub struct Distribution<'a> {
    z: &'a [f32],
    weights: &'a [u64],
    total: u64,
}

impl<'a> Distribution<'a> {
    /// `total`: the sum of the weights.
    pub(super) fn new(z: &'a [f32], weights: &'a [u64], total: u64) -> Distribution<'a> {
        Distribution { z, weights, total }
    }

    /// The logits after penalty and temperature, -inf where removed.
    pub fn logits(&self) -> &'a [f32] {
        self.z
    }

    /// `W_i = max(1, trunc(exp(z_i - max z) * 2^44))`. 0 where removed or where exp gives 0.
    pub fn weights(&self) -> &'a [u64] {
        self.weights
    }

    /// The sum `S` of the weights, above 0.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lowest `i` with `W_0 + ... + W_i > u * S >> 64`. Integer sums have no order: every device, scan and batch
    /// gives the same token.
    pub fn token(&self, u: u64) -> u32 {
        if faults::on(Fault::SamplerF32RunningSum) {
            return self.token_by_f32(u);
        }
        let r = ((u128::from(u) * u128::from(self.total)) >> 64) as u64;
        softmax::first_above(self.weights, r).expect("r is below the sum of the weights") as u32
    }

    /// The planted fault: 24 random bits against a running f32 sum of probabilities.
    fn token_by_f32(&self, u: u64) -> u32 {
        let r = (u >> 40) as f32 / (1 << 24) as f32;
        let mut sum = 0.0;
        let reached = |&weight: &u64| {
            sum += weight as f32 / self.total as f32;
            sum > r
        };
        self.weights.iter().position(reached).unwrap_or(self.weights.len() - 1) as u32
    }
}
