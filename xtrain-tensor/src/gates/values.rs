//! Operands that break kernels, and random choices of shapes.
use crate::Dtype;
use crate::rng::{Purpose, draw};
use crate::testing::{arbitrary, ugly};

/// Sizes around the chunk sizes of the orders of reduction.
pub(super) const UGLY: [usize; 10] = [1, 3, 5, 7, 31, 32, 33, 63, 64, 65];

/// A kind of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// Uniform in [-1, 1).
    Plain,
    /// Normal deviates, denormals, zeros of both signs, ties, and values from 2^-120 to 2^30.
    Ugly,
    /// Denormals and values whose products underflow, so that sums end at a zero of either sign.
    Tiny,
    /// Values around 2^-63, so that products and sums are near the smallest normal number.
    Edge,
    /// Values from 2^100 to 2^126 and zeros, all of both signs: squares overflow, sums of a few do not.
    Huge,
}

impl Values {
    /// The kinds for every operation.
    pub(super) const ALL: [Values; 4] = [Values::Ugly, Values::Plain, Values::Edge, Values::Tiny];

    /// The kind of values of case `i`.
    pub(super) fn of(i: usize) -> Values {
        Values::ALL[i % 4]
    }

    /// `n` values, a function of `seed`.
    pub(super) fn fill(self, n: usize, seed: u64) -> Vec<f32> {
        let power = |e: i32| 2f64.powi(e) as f32;
        match self {
            Values::Plain => arbitrary(n, seed),
            Values::Ugly => {
                let bounded = |x: f32| if x.abs() > power(20) { x * power(-30) } else { x };
                ugly(n, seed).into_iter().map(bounded).collect()
            }
            Values::Tiny => {
                let tiny = |(i, x): (usize, f32)| match draw(seed, i as u64, 3, Purpose::DataOrder)[0] % 4 {
                    0 => 0.0f32.copysign(x),
                    1 => x * power(-149),
                    2 => x * power(-130),
                    _ => x * power(-75),
                };
                arbitrary(n, seed).into_iter().enumerate().map(tiny).collect()
            }
            Values::Edge => {
                let edge = |(i, x): (usize, f32)| {
                    let word = draw(seed, i as u64, 4, Purpose::DataOrder)[0];
                    let x = if word & 8 == 0 { 1.0f32.copysign(x) } else { x };
                    x * power(-64 + (word % 4) as i32)
                };
                arbitrary(n, seed).into_iter().enumerate().map(edge).collect()
            }
            Values::Huge => {
                let huge = |(i, x): (usize, f32)| match draw(seed, i as u64, 5, Purpose::DataOrder)[0] % 32 {
                    word @ 0..27 => (1.0 + x.abs() / 2.0).copysign(x) * power(100 + word as i32 % 27),
                    _ => 0.0f32.copysign(x),
                };
                arbitrary(n, seed).into_iter().enumerate().map(huge).collect()
            }
        }
    }
}

/// A dtype and a kind of values in the name of a case.
pub(super) fn label(dtype: Dtype, values: Values) -> String {
    format!("{dtype}-{values:?}").to_lowercase()
}

/// Random choices, each a function of a seed and the number of the choice.
pub(super) struct CaseRng {
    seed: u64,
    at: u64,
}

impl CaseRng {
    pub(super) fn new(seed: u64) -> CaseRng {
        CaseRng { seed, at: 0 }
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.at += 1;
        draw(self.seed, self.at, 7, Purpose::DataOrder)[0] as usize % n
    }

    /// One of `choices`.
    pub(super) fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// `0..n` in random order.
    pub(super) fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }

    /// `n` ids below `bound`.
    pub(super) fn ids(&mut self, n: usize, bound: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(bound) as u32).collect()
    }
}
