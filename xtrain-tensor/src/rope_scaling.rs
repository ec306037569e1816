//! Scaling of RoPE frequencies, which extends a model to contexts longer than its training context.
use crate::dd::Dd;
use crate::faults::{self, Fault};
use crate::{Error, Result};

/// A scaling of the frequencies `inv[i] = theta^(-2i / head_dim)`. It is computed in f64, with the operations in the
/// order of the reference implementation.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    Default,
    /// `inv / factor`: positions are interpolated.
    Linear {
        /// New context length / original context length.
        factor: f64,
    },
    /// Llama 3: long wavelengths are divided by the factor, short ones are kept, those in between are blended.
    Llama3 {
        /// New context length / original context length.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// The original context length.
        original: f64,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071): a linear ramp over the pairs, from frequencies that are kept to
    /// frequencies that are divided by the factor. Cosines and sines are multiplied by `attention`.
    Yarn(Yarn),
    /// `inv[i] / divisors[i]`: an explicit table from the model file.
    Divisors(Vec<f32>),
}

/// The parameters of [`RopeScaling::Yarn`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// New context length / original context length.
    pub factor: f64,
    /// The original context length.
    pub original: f64,
    /// Pairs with more rotations than this over the original context are kept.
    pub beta_fast: f64,
    /// Pairs with fewer rotations than this are divided.
    pub beta_slow: f64,
    /// Multiplier of cosines and sines. `None`: `0.1 log(factor) + 1`.
    pub attention: Option<f64>,
    /// Rounding of the ends of the ramp.
    pub truncate: Truncate,
}

/// Rounding of the ends of YaRN's ramp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncate {
    /// The start is rounded down, the end up, to whole pairs.
    #[default]
    Whole,
    /// Neither is rounded.
    Exact,
}

impl RopeScaling {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first invalid number.
    pub fn check(&self) -> Result<()> {
        let require = |want, values: &[f64], valid: fn(f64) -> bool| match values.iter().find(|&&x| !valid(x))
        {
            Some(got) => Err(Error::Argument { op: "rope scaling", want, got: got.to_string() }),
            None => Ok(()),
        };
        let positive =
            |values: &[f64]| require("positive and finite numbers", values, |x| x > 0.0 && x.is_finite());
        match self {
            RopeScaling::Default => Ok(()),
            RopeScaling::Linear { factor } => positive(&[*factor]),
            &RopeScaling::Llama3 { factor, low, high, original } => {
                positive(&[factor, low, high, original])?;
                require("high_freq_factor above low_freq_factor", &[high - low], |gap| gap > 0.0)
            }
            RopeScaling::Yarn(y) => {
                positive(&[y.factor, y.original, y.beta_fast, y.beta_slow])?;
                positive(y.attention.as_slice())
            }
            RopeScaling::Divisors(table) => table.iter().try_for_each(|&x| positive(&[f64::from(x)])),
        }
    }

    /// Scales the frequencies of `theta` in place. Returns the multiplier of cosines and sines.
    pub(crate) fn apply(&self, inverse: &mut [f64], theta: f64) -> Result<f64> {
        self.check()?;
        match self {
            RopeScaling::Default => {}
            RopeScaling::Linear { factor } => inverse.iter_mut().for_each(|inv| *inv /= factor),
            &RopeScaling::Llama3 { factor, low, high, original } => {
                inverse.iter_mut().for_each(|inv| *inv = llama3(*inv, factor, low, high, original));
            }
            RopeScaling::Yarn(yarn) => return Ok(yarn.apply(inverse, theta)),
            RopeScaling::Divisors(table) if table.len() != inverse.len() => {
                let got = format!("{} divisors for {} pairs", table.len(), inverse.len());
                return Err(Error::Argument { op: "rope scaling", want: "one divisor for each pair", got });
            }
            RopeScaling::Divisors(table) => {
                inverse.iter_mut().zip(table).for_each(|(inv, &x)| *inv /= f64::from(x));
            }
        }
        Ok(1.0)
    }
}

fn llama3(inv: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * std::f64::consts::PI / inv;
    if wavelength > original / low {
        return inv / factor;
    }
    if wavelength < original / high {
        return inv;
    }
    let smooth = (original / wavelength - low) / (high - low);
    (1.0 - smooth) * inv / factor + smooth * inv
}

impl Yarn {
    fn apply(&self, inverse: &mut [f64], theta: f64) -> f64 {
        let log = |x: f64| Dd::log(x).high;
        let dim = 2.0 * inverse.len() as f64;
        // the pair with this number of rotations over the original context
        let pair = |rotations: f64| {
            (dim * log(self.original / (rotations * 2.0 * std::f64::consts::PI))) / (2.0 * log(theta))
        };
        let rounding = if faults::on(Fault::YarnAlwaysTruncates) { Truncate::Whole } else { self.truncate };
        let (low, high) = match rounding {
            Truncate::Whole => (pair(self.beta_fast).floor(), pair(self.beta_slow).ceil()),
            Truncate::Exact => (pair(self.beta_fast), pair(self.beta_slow)),
        };
        let pairs = faults::on(Fault::YarnRampEndsAtLastPair);
        let (low, mut high) = (low.max(0.0), high.min(if pairs { dim / 2.0 } else { dim } - 1.0));
        if low == high {
            high += 0.001;
        }
        for (i, inv) in inverse.iter_mut().enumerate() {
            let keep = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            *inv = *inv / self.factor * (1.0 - keep) + *inv * keep;
        }
        let default = if self.factor <= 1.0 { 1.0 } else { 0.1 * log(self.factor) + 1.0 };
        self.attention.filter(|_| !faults::on(Fault::YarnAttentionIgnored)).unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got / want - 1.0).abs() < 1e-13, "{got:?}, want {want:?}");
        }
    }

    #[test]
    fn linear_divides_and_default_does_not() {
        let mut inv = [1.0, 0.5, 0.125];
        assert_eq!(RopeScaling::Default.apply(&mut inv, 1e4).expect("scaled"), 1.0);
        assert_eq!(inv, [1.0, 0.5, 0.125]);
        RopeScaling::Linear { factor: 4.0 }.apply(&mut inv, 1e4).expect("scaled");
        assert_eq!(inv, [0.25, 0.125, 0.03125]);
        RopeScaling::Divisors(vec![1.0, 2.0, 4.0]).apply(&mut inv, 1e4).expect("scaled");
        assert_eq!(inv, [0.25, 0.0625, 0.0078125]);
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_divides_long_ones() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
        // wavelengths 6.28, 31.4, 628: below 16, between, above 64
        let mut inv = [1.0, 0.2, 0.01];
        scaling.apply(&mut inv, 500.0).expect("scaled");
        let smooth = (64.0 / (2.0 * std::f64::consts::PI / 0.2) - 1.0) / 3.0;
        near(&inv, &[1.0, (1.0 - smooth) * 0.2 / 8.0 + smooth * 0.2, 0.01 / 8.0]);
    }

    #[test]
    fn yarn_ramps_between_whole_pairs() {
        let yarn = Yarn {
            factor: 4.0,
            original: 64.0,
            beta_fast: 4.0,
            beta_slow: 1.0,
            attention: None,
            truncate: Truncate::Whole,
        };
        let theta = 1e4f64;
        let plain: Vec<f64> = (0..8).map(|i| theta.powf(-f64::from(i) / 8.0)).collect();
        let mut inv = plain.clone();
        let amplitude = RopeScaling::Yarn(yarn).apply(&mut inv, theta).expect("scaled");
        // pair(4) = 0.81 and pair(1) = 2.02, so the ramp runs from 0 to 3
        let keep = [1.0, 2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let want: Vec<f64> =
            plain.iter().zip(keep).map(|(p, keep)| p / 4.0 * (1.0 - keep) + p * keep).collect();
        near(&inv, &want);
        near(&[amplitude], &[0.1 * 4f64.ln() + 1.0]);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for bad in [
            RopeScaling::Linear { factor: 0.0 },
            RopeScaling::Linear { factor: f64::NAN },
            RopeScaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original: 64.0 },
            RopeScaling::Divisors(vec![1.0, -1.0]),
        ] {
            assert!(bad.apply(&mut [1.0, 0.5], 1e4).is_err(), "{bad:?}");
        }
        assert!(RopeScaling::Divisors(vec![1.0]).apply(&mut [1.0, 0.5], 1e4).is_err());
    }
}
