//! Random cases: each draw is a function of a seed, the number of the case and the number of the draw.
use xtrain::tensor::rng::{Purpose, uniform_u64};

/// The random numbers of one case.
#[derive(Debug)]
pub(crate) struct CaseRng {
    seed: u64,
    case: u64,
    draws: u32,
}

impl CaseRng {
    pub(crate) fn new(seed: u64, case: u64) -> CaseRng {
        CaseRng { seed, case, draws: 0 }
    }

    /// 64 random bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.draws += 1;
        uniform_u64(self.seed, self.case, self.draws, Purpose::DataOrder)
    }

    /// A number from 0 to `n - 1`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// A number from `min` to `max`, both included.
    pub(crate) fn between(&mut self, min: usize, max: usize) -> usize {
        min + self.below(max + 1 - min)
    }

    /// True with probability 1 / `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `items`.
    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Puts `items` in random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n + 1));
        }
    }
}

/// Values that are likely to expose errors in kernels. Most are uniform within 1.5 `scale`; the others are zeros of
/// both signs, denormals, exact ties and a few large values.
pub(crate) fn values(n: usize, scale: f32, rng: &mut CaseRng) -> Vec<f32> {
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
    (0..n).map(|_| value(rng.next_u64())).collect()
}
