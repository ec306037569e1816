//! Counter-based random numbers: Philox4x32-10, a pure function of (seed, id, position, purpose).
//!
//! There is no generator state to save or to share. The address (seed, id, position, purpose) determines the number.
use std::convert::Infallible;

/// The purpose of a random number. It is the last word of the address, so two different uses never share a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Sampling a token.
    Sample = 0,
    /// Initial weights.
    Weights = 1,
    /// Order of the training data.
    DataOrder = 2,
    /// Random prompts of the command `verify`, and training prompts of tasks.
    Prompts = 3,
}

/// Philox4x32-10 of Random123 (Salmon et al., SC 2011): ten rounds over four words, with the constants and the word
/// order of that library.
///
/// ```
/// use xtrain_tensor::rng::philox;
/// assert_eq!(philox([0, 0], [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
#[inline]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let ([mut k0, mut k1], mut c) = (key, counter);
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(b >> 32) as u32 ^ c[1] ^ k0, b as u32, (a >> 32) as u32 ^ c[3] ^ k1, a as u32];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    c
}

/// Returns the four random words at an address. The key is (seed low, seed high); the counter is (id low, id high,
/// position, purpose).
pub fn draw(seed: u64, id: u64, position: u32, purpose: Purpose) -> [u32; 4] {
    let counter = [id as u32, (id >> 32) as u32, position, purpose as u32];
    philox([seed as u32, (seed >> 32) as u32], counter)
}

/// Returns the 64 random bits at an address: word0 + 2^32 word1.
pub fn uniform_u64(seed: u64, id: u64, position: u32, purpose: Purpose) -> u64 {
    let [low, high, ..] = draw(seed, id, position, purpose);
    u64::from(low) | u64::from(high) << 32
}

/// A `rand` generator over the addresses (seed, id, 0), (seed, id, 1), ..., word by word.
///
/// For corpora, generated prompts and tests. Weights and tokens use [`draw`] only, because the distributions of `rand`
/// do not guarantee bits.
#[derive(Debug, Clone)]
pub struct PhiloxRng {
    seed: u64,
    id: u64,
    purpose: Purpose,
    words_taken: u64,
    block: [u32; 4],
}

impl PhiloxRng {
    /// Creates a generator that starts at position 0 of (seed, id, purpose). It repeats after 2^34 words.
    pub fn new(seed: u64, id: u64, purpose: Purpose) -> PhiloxRng {
        PhiloxRng { seed, id, purpose, words_taken: 0, block: [0; 4] }
    }

    fn next_word(&mut self) -> u32 {
        let at = (self.words_taken % 4) as usize;
        if at == 0 {
            self.block = draw(self.seed, self.id, (self.words_taken / 4) as u32, self.purpose);
        }
        self.words_taken += 1;
        self.block[at]
    }
}

impl rand_core::TryRng for PhiloxRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_word())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let low = u64::from(self.next_word());
        Ok(low | u64::from(self.next_word()) << 32)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(4) {
            let word = self.next_word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::Rng as _;

    #[test]
    fn philox_has_the_known_answers_of_random123() {
        let ones = u32::MAX;
        assert_eq!(philox([0, 0], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ones, ones], [ones; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let key = [0xa409_3822, 0x299f_31d0];
        assert_eq!(philox(key, counter), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn every_part_of_the_address_is_a_separate_word() {
        let (seed, id) = (0x1111_2222_3333_4444, 0x5555_6666_7777_8888);
        let want = philox([0x3333_4444, 0x1111_2222], [0x7777_8888, 0x5555_6666, 9, 2]);
        assert_eq!(draw(seed, id, 9, Purpose::DataOrder), want);
        let u = uniform_u64(seed, id, 9, Purpose::DataOrder);
        assert_eq!(u, u64::from(want[0]) + (u64::from(want[1]) << 32));
    }

    #[test]
    fn the_generator_reads_the_addresses_in_order() {
        let mut rng = PhiloxRng::new(7, 3, Purpose::Sample);
        let (first, second) = (draw(7, 3, 0, Purpose::Sample), draw(7, 3, 1, Purpose::Sample));
        assert_eq!(rng.next_u64(), uniform_u64(7, 3, 0, Purpose::Sample));
        assert_eq!([rng.next_u32(), rng.next_u32()], first[2..]);
        let mut bytes = [0u8; 6];
        rng.fill_bytes(&mut bytes);
        assert_eq!(bytes[..4], second[0].to_le_bytes());
        assert_eq!(bytes[4..], second[1].to_le_bytes()[..2]);
    }
}
