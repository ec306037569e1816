//! Llama 3's scaling of RoPE frequencies as a table of divisors, the form of GGUF files.
use xtrain_tensor::{RopeScaling, RopeTable};

use crate::config::Config;
use crate::error::Error;

/// Llama 3's low and high frequency factors, which its converter turns into divisors.
const LLAMA3: (f64, f64) = (1.0, 4.0);

/// Maximum relative difference between a divisor that a converter computes in f32 and the divisor of the rule. The
/// wavelength of the converter is the result of a power, a division and a product in f32, and its relative error is
/// several units of 2^-24. Another power of two as the original context changes blended divisors by a tenth or more.
const ROUNDING: f64 = 1e-6;

/// The divisors of a model's RoPE frequencies: computed in f64, rounded once. `None`: the model has none.
pub(crate) fn divisors(cfg: &Config) -> Result<Option<Vec<f32>>, Error> {
    match &cfg.rope_scaling {
        RopeScaling::Divisors(table) => Ok(Some(table.clone())),
        scaling @ RopeScaling::Llama3 { .. } => {
            let table = |scaling| RopeTable::scaled(cfg.rope_theta, scaling, cfg.head_dim, 1);
            let (plain, scaled) = (table(&RopeScaling::Default)?, table(scaling)?);
            let pairs = plain.inverse_frequencies().iter().zip(scaled.inverse_frequencies());
            Ok(Some(pairs.map(|(plain, scaled)| (plain / scaled) as f32).collect()))
        }
        _ => Ok(None),
    }
}

/// The Llama 3 rule whose divisors are exactly `want`, if there is one.
pub(crate) fn exact_rule(cfg: &Config, want: &[f32]) -> Option<RopeScaling> {
    nearest(cfg, want).filter(|(error, _)| *error == 0.0).map(|(_, rule)| rule)
}

/// The Llama 3 rule whose divisors differ from `want` by no more than the rounding errors of f32, if there is one.
pub(crate) fn rule_within_rounding(cfg: &Config, want: &[f32]) -> Option<RopeScaling> {
    nearest(cfg, want).filter(|(error, _)| *error <= ROUNDING).map(|(_, rule)| rule)
}

/// The Llama 3 rule with the divisors nearest to `want`, and the largest relative difference. The factor is the
/// largest divisor, the original context a power of two.
fn nearest(cfg: &Config, want: &[f32]) -> Option<(f64, RopeScaling)> {
    let factor = f64::from(want.iter().copied().fold(1f32, f32::max));
    let finite = want.iter().all(|x| x.is_finite());
    if factor <= 1.0 || 2 * want.len() != cfg.head_dim || !finite {
        return None;
    }
    let (low, high) = LLAMA3;
    let mut best: Option<(f64, RopeScaling)> = None;
    for original in (0..=30).map(|power| f64::from(1u32 << power)) {
        let rule = RopeScaling::Llama3 { factor, low, high, original };
        let table = divisors(&Config { rope_scaling: rule.clone(), ..cfg.clone() }).ok()??;
        let pairs = table.iter().zip(want).map(|(&a, &b)| (f64::from(a) / f64::from(b) - 1.0).abs());
        let error = pairs.fold(0.0, f64::max);
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, rule));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frequencies of Llama-3.2-1B.
    fn llama() -> Config {
        Config { head_dim: 64, rope_theta: 5e5, qk_norm: false, ..Config::tiny() }
    }

    fn rule(original: f64) -> RopeScaling {
        RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original }
    }

    #[test]
    fn a_rule_is_recovered_from_its_own_divisors() {
        let cfg = Config { rope_scaling: rule(8192.0), ..llama() };
        let table = divisors(&cfg).unwrap().unwrap();
        assert!(table.contains(&1.0) && table.contains(&32.0));
        assert_eq!(exact_rule(&cfg, &table), Some(rule(8192.0)));
    }

    #[test]
    fn divisors_computed_in_f32_match_the_rule_within_rounding_only() {
        let cfg = Config { rope_scaling: rule(8192.0), ..llama() };
        let mut table = divisors(&cfg).unwrap().unwrap();
        for blended in table.iter_mut().filter(|x| **x != 1.0 && **x != 32.0) {
            *blended = f32::from_bits(blended.to_bits() + 2);
        }
        assert_eq!(exact_rule(&cfg, &table), None);
        assert_eq!(rule_within_rounding(&cfg, &table), Some(rule(8192.0)));
        table[0] = 1.001;
        assert_eq!(rule_within_rounding(&cfg, &table), None);
        assert_eq!(rule_within_rounding(&cfg, &[1.0; 32]), None, "a factor of 1");
        assert_eq!(rule_within_rounding(&cfg, &[1.0, 32.0]), None, "another number of pairs");
    }
}
