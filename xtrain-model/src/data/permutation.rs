//! A random permutation of 0..n in constant memory.

/// Number of rounds of the Feistel network, each with its own key.
pub(crate) const ROUNDS: usize = 6;

/// A permutation of `0..n`: a Feistel network on the next power of four with cycle walking (Black and Rogaway, CT-RSA
/// 2002). Integer arithmetic only: the same order on every machine.
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..n` with `keys`. `n` is at most 2^62.
    pub fn new(n: u64, keys: [u64; ROUNDS]) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation { n, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The image of `i < n`: below `n` and different for every `i`.
    pub fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "{i} is not below {}", self.n);
        let mut x = self.network(i);
        while x >= self.n {
            x = self.network(x);
        }
        x
    }

    fn network(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of a run's data depends on these bits.
    #[test]
    fn mixing_gives_the_numbers_of_split_mix_64() {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let first: [u64; 3] = std::array::from_fn(|i| mix(STEP.wrapping_mul(i as u64 + 1)));
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
