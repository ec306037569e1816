//! Every variant of [`RlError`], each from a step with one defect.
use crate::rl::{AdvantageOptions, PolicyLoss, PolicyRow, RlError, advantages};
use xtrain_tensor::testing::named_cases::{check, variants};

fn of_rewards(rewards: &[Vec<Option<f64>>]) -> RlError {
    advantages(rewards, &AdvantageOptions::new(2, vec![1.0, 1e200])).unwrap_err()
}

fn of_row(loss: &PolicyLoss, row: PolicyRow<'_>) -> RlError {
    let valid = PolicyRow { reference: Some(&[-1.0]), entropy: Some(&[1.0]), ..row_of(&[-1.0]) };
    loss.evaluate(&[valid, row]).unwrap_err()
}

fn row_of(logp: &[f64]) -> PolicyRow<'_> {
    PolicyRow::on_policy(logp, &[true; 4][..logp.len()], 1.0)
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(RlError: Option Groups Functions Reward Deviation Length Missing NotFinite);
    let good = vec![Some(1.0), None];
    let (plain, kl) = (PolicyLoss::default(), PolicyLoss { beta: 0.1, ..PolicyLoss::default() });
    let bonus = PolicyLoss { entropy_coef: 0.1, ..PolicyLoss::default() };
    let quantile = PolicyLoss { top_entropy_quantile: 0.5, ..PolicyLoss::default() };
    let logp = [-1.0, -2.0];
    let second = "completion 1: ";
    let no_group = advantages(&[], &AdvantageOptions::new(0, vec![1.0])).unwrap_err();
    let no_function = advantages(&[], &AdvantageOptions::new(1, vec![])).unwrap_err();
    let scaled = AdvantageOptions::new(2, vec![1e-200, 1.0]);
    let infinite = advantages(&[], &AdvantageOptions::new(1, vec![f64::INFINITY])).unwrap_err();
    check(
        &variants,
        &[
            ("an empty group", no_group, &["group: expected at least 1", "found 0"]),
            ("no reward function", no_function, &["weights: expected", "found none"]),
            ("an infinite weight", infinite, &["weights: expected finite", "found inf"]),
            ("an incomplete group", of_rewards(&vec![good.clone(); 3]), &["multiple of 2", "found 3"]),
            ("a missing reward", of_rewards(&[good.clone(), vec![None]]), &[second, "2 rewards, found 1"]),
            (
                "a reward that is NaN",
                of_rewards(&[good.clone(), vec![None, Some(f64::NAN)]]),
                &[second, "reward function 1: ", "found NaN"],
            ),
            (
                "a weighted reward that overflows",
                of_rewards(&[good, vec![None, Some(1e200)]]),
                &[second, "weighted reward", "found inf"],
            ),
            (
                "a reward whose square overflows",
                advantages(&[vec![Some(0.0), Some(1.0)], vec![Some(2e200), None]], &scaled).unwrap_err(),
                &[second, "reward 2e200: "],
            ),
            (
                "a short mask",
                of_row(&plain, PolicyRow { mask: &[true], ..row_of(&logp) }),
                &[second, "mask: expected 2 values, found 1"],
            ),
            (
                "too few old log-probabilities",
                of_row(&plain, PolicyRow { old: &[-1.0], ..row_of(&logp) }),
                &[second, "old: expected 2 values, found 1"],
            ),
            ("no reference", of_row(&kl, row_of(&logp)), &[second, "reference: ", "beta is set"]),
            ("no entropies", of_row(&bonus, row_of(&logp)), &[second, "entropy: ", "entropy_coef is set"]),
            (
                "no entropies for the quantile",
                of_row(&quantile, row_of(&logp)),
                &[second, "top_entropy_quantile is set"],
            ),
            (
                "a log-probability of minus infinity",
                of_row(&plain, row_of(&[-1.0, f64::NEG_INFINITY])),
                &["completion 1, token 1: logp: ", "found -inf"],
            ),
            (
                "an advantage that is NaN",
                of_row(&plain, PolicyRow { advantage: f64::NAN, ..row_of(&logp) }),
                &["completion 1: advantage: ", "found NaN"],
            ),
        ],
    );
}
