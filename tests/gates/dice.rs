//! Addressed dice: what a gate draws is a function of a seed, a case and the number of the throw.
use xtrain::tensor::rng::{Purpose, uniform_u64};

/// The throws of one case.
#[derive(Debug)]
pub(crate) struct Dice {
    seed: u64,
    case: u64,
    thrown: u32,
}

impl Dice {
    pub(crate) fn new(seed: u64, case: u64) -> Dice {
        Dice { seed, case, thrown: 0 }
    }

    /// 64 random bits.
    pub(crate) fn word(&mut self) -> u64 {
        self.thrown += 1;
        uniform_u64(self.seed, self.case, self.thrown, Purpose::DataOrder)
    }

    /// From 0 to `n - 1`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// From `least` to `most`.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most + 1 - least)
    }

    /// True once in `n` throws.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// In random order.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for n in (1..all.len()).rev() {
            all.swap(n, self.below(n + 1));
        }
    }
}

/// Values of the kinds that break kernels: most uniform within `scale`, the others zeros of both signs,
/// denormals, exact ties and a few large ones.
pub(crate) fn values(n: usize, scale: f32, dice: &mut Dice) -> Vec<f32> {
    let value = |w: u64| {
        let (kind, sign) = (w >> 60, if w >> 59 & 1 == 0 { 1.0 } else { -1.0 });
        let fraction = (w >> 8 & 0xff_ffff) as f32 * (1.0 / (1 << 24) as f32);
        sign * match kind {
            0 => 0.0,
            1 => [0.25, 0.5, 0.5, 1.0][(w & 3) as usize] * scale,
            2 if w & 3 == 0 => f32::from_bits((w >> 8) as u32 & 0x7f_ffff),
            2 if w & 3 == 1 => 8.0 * fraction * scale,
            _ => 1.5 * fraction * scale,
        }
    };
    (0..n).map(|_| value(dice.word())).collect()
}
